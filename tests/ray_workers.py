"""What workers on Ray load: with a process for each, none imports what it does not need."""

import os
import time
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError


def loaded(deadly: str = "", mark: Path | None = None, every_time: bool = False) -> Any:
    """What a worker loads: the fake engine, whose process ends at a prompt that holds the word,
    the first time or every time."""
    from collect_fakes import FakeEngine

    engine = FakeEngine()
    word = sum(map(ord, deadly))

    def hook(name: str, prompts: list[list[int]]) -> None:
        if deadly and any(word in prompt for prompt in prompts):
            assert mark is not None
            if every_time or not mark.exists():
                mark.touch()
                os._exit(1)

    engine.batch.hook = hook
    return engine, engine.batch


def slow_at(word: str) -> Any:
    """What a worker loads: the fake engine, which takes a minute over a prompt with the word."""
    from collect_fakes import FakeEngine

    engine = FakeEngine()

    def hook(name: str, prompts: list[list[int]]) -> None:
        if any(sum(map(ord, word)) in prompt for prompt in prompts):
            time.sleep(60)

    engine.batch.hook = hook
    return engine, engine.batch


def broken() -> Any:
    raise DraftpickError("this engine cannot be loaded here")
