"""A server over two fake endpoints, and what it is asked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from serve_toys import Served, served

from decoders.arms import recipe
from decoders.endpoints.engine import EndpointEngine
from decoders.testing.fake_server import FakeEndpoint, listening
from policies import fixed_policy

CHAT = "/v1/chat/completions"
PROMPT = "why is the sky blue"
ANSWER = "WHY IS THE SKY BLUE"


FIRST_BEST = fixed_policy(("first", "second"), "first")


@contextmanager
def serving(
    slots: int = 3, spans: Any = None, **body: Any
) -> Iterator[tuple[Served, FakeEndpoint, FakeEndpoint]]:
    """spans: as of `served`. body: more of the recipe of the first arm."""
    first, second = FakeEndpoint(), FakeEndpoint(words=lambda prompt: ["second", " best"])
    with listening(first, second):
        usual = {"kind": "endpoint", "model": "m"}
        arms = {
            "first": recipe(**{"name": "first", "url": first.url, **usual, **body}),
            "second": recipe(name="second", url=second.url, **usual),
        }
        with served(
            engine=EndpointEngine(arms), slots=slots, policy=FIRST_BEST, spans=spans
        ) as server:
            yield server, first, second


def asked(**named: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, **named}


def text_of(response: Any) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def events(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line[:7] == "data: {"]
