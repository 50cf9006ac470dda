"""`draftpick serve`: which options go together, without a command line, a socket or a model."""

from pathlib import Path
from typing import Any

import pytest

from decoders.common.errors import DraftpickError
from router.commands.serve.options import ServeOptions
from router.commands.serve.plan import plan
from router.commands.serve.served import Served
from router.commands.with_records import made


def planned(**options: Any) -> Served:
    return plan(made(ServeOptions, options))


def test_the_defaults() -> None:
    found = planned()
    assert (found.asked.host, found.asked.port, found.asked.drain) == ("127.0.0.1", 8000, 30.0)
    assert (found.asked.slots, found.asked.queue, found.asked.warm_up) == (8, 64, True)
    assert found.named == {} and found.settings.api_key is None


def test_options_reach_what_is_served() -> None:
    found = planned(
        policy=["here", "mine=runs:/1/there"],
        api_key=" key\n",  # as a file that holds it ends
        allow_origin=["https://Chat.example"],
        max_tokens=32,
        temperature=0.5,
        queue=3,
        timeout=5.0,
        folder=Path("log"),
        text=True,
        device="cpu",
        isolate_by="X-User",
        earlier_tokens=99,
        earlier_age=2.0,
        prefix_memory="2MB",
    )
    asked, settings = found.asked, found.settings
    assert found.named == {"default": "here", "mine": "runs:/1/there"} and asked.queue == 3
    assert (asked.log.folder, asked.log.text) == (Path("log"), True)
    assert asked.options.device == "cpu"
    assert settings.api_key is not None and settings.timeout_s == 5.0
    assert settings.api_key.get_secret_value() == "key"
    assert settings.origins == ("https://chat.example",)
    assert (settings.limits.most_tokens, settings.limits.most_answers) == (32, 3)
    assert settings.limits.usual.temperature == 0.5
    assert settings.isolate_by == "x-user" and found.earlier == (99, 7200.0)
    assert planned(earlier_tokens=0).earlier is None
    assert (found.prefix_memory, planned().prefix_memory) == (2_000_000, None)
    assert planned(prefix_memory="512MiB").prefix_memory == 2**29
    assert " key" not in repr(found)
    assert not Path("log").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": ""}, "DRAFTPICK_API_KEY is empty"),
        ({"policy": ["a=b", "a=c"]}, "two policies called a"),
        ({"policy": ["here", "there"]}, "NAME=there"),
        ({"allow_origin": ["chat.example"]}, "--allow-origin is a scheme and a host"),
        ({"prefix_memory": "-1GB"}, "--prefix-memory is a size, for instance 2GB"),
        ({"prefix_memory": ""}, "--prefix-memory is a size"),
        *(({"isolate_by": wrong}, "--isolate-by is key, none or the name of a header")
          for wrong in ("", "x user", "größe", "x:y")),
        ({"text": True}, "--log FOLDER"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        planned(**options)
