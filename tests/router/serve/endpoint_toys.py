"""A server over two fake endpoints, and what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from serve_toys import Served, served

from decoders.arms import recipe
from decoders.endpoints.engine import EndpointEngine
from decoders.testing.fake_server import FakeEndpoint, listening
from policies import Decision

CHAT = "/v1/chat/completions"
PROMPT = "why is the sky blue"
ANSWER = "WHY IS THE SKY BLUE"


class FirstBest:
    """Its first arm has the highest score."""

    name, embedder = "first", "any"
    arms = ("first", "second")
    origin = SimpleNamespace(arms_fingerprint="", features=())

    def distribution(self, x: Any) -> Any:
        return np.array([[0.75, 0.25]])

    def choose(self, x: Any, rng: Any = None) -> Any:
        return Decision("first", 0, 1.0, [2.0, 1.0])


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
            engine=EndpointEngine(arms), slots=slots, policy=FirstBest(), spans=spans
        ) as server:
            yield server, first, second


def asked(**named: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, **named}


def text_of(response: Any) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def events(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line[:7] == "data: {"]
