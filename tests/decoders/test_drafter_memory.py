"""Drafters load when first used, idle ones give way where memory runs out, and nothing of it is
charged to an answer."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from decoder_toys import Tiny, native
from engine_toys import PROMPT, WORDS, arms, tokenizer

from decoders import Engine
from decoders.common.breaker import Breaker
from decoders.models import drafter_memory
from decoders.models.drafter_memory import FIRST_S, LoadFailed
from decoders.models.memory import OutOfMemory
from decoders.records import Request
from decoders.testing.toys import Streamed

SMALL = ("one", "two", "three")
REQUEST = Request(max_new_tokens=12)


@pytest.fixture(scope="module")
def folders(tiny: Tiny) -> dict[str, Path]:
    return {name: tiny(seed=5 + at, num_hidden_layers=1) for at, name in enumerate(SMALL)}


def engine_of(tiny: Tiny, folders: dict[str, Path]) -> Engine:
    """Three drafters of the same size."""
    body = {"kind": "neural", "length": {"k": 3}}
    made = arms({name: body | {"drafter": str(folder)} for name, folder in folders.items()})
    return Engine(native(tiny()), made, name="tiny", tokenizer=tokenizer(WORDS))


def test_what_cannot_be_loaded_sleeps_and_is_tried_again(tiny: Tiny, tmp_path: Path) -> None:
    engine = engine_of(tiny, dict.fromkeys(SMALL, tmp_path))
    with pytest.raises(LoadFailed, match=r"holds no config\.json") as failed:
        engine.decode("one", PROMPT, REQUEST)
    assert failed.value.arm == "one" and failed.value.load_s > 0
    assert set(engine.asleep) == {"one"}
    assert 0 < engine.asleep["one"].pause_s <= FIRST_S
    good = engine_of(tiny, {"one": tiny(seed=5, num_hidden_layers=1)})
    engine.arms["one"] = good.arms["one"]
    engine.drafters.wake()
    engine.decode("one", PROMPT, REQUEST)
    assert not engine.asleep


def test_who_insists_on_a_drafter_waits_like_the_others(
    tiny: Tiny, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(drafter_memory, "Breaker", partial(Breaker, clock=lambda: now[0]))
    engine, tries = engine_of(tiny, folders), list[float]()

    def never() -> Any:
        tries.append(now[0])
        raise OutOfMemory("there is none")

    for second in (0.0, 0.5, 1.0, 2.5, 3.0, 6.9, 7.0):
        now[0] = second
        with pytest.raises(LoadFailed, match="there is none"):
            engine.drafters.load(engine, "two", never)
    assert tries == [0.0, 1.0, 3.0, 7.0]


def test_idle_ones_go_where_memory_runs_out(tiny: Tiny, folders: dict[str, Path]) -> None:
    engine = engine_of(tiny, folders)
    engine.strategy("one")
    tries = []

    def build() -> Any:
        tries.append([*engine.drafters.arms])
        if len(tries) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        return engine.arms["two"].build(engine.target, engine.tokenizer)

    engine.drafters.load(engine, "two", build)
    assert tries == [["one"], []]

    def never() -> Any:
        raise OutOfMemory("there is none")

    with engine.drafters.at_work("two"), pytest.raises(LoadFailed, match="there is none"):
        engine.drafters.load(engine, "three", never)
    assert engine.drafters.arms == ["two"]


class Loading(Streamed):
    """In its second round another answer's arm is loaded."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        super().__init__()
        self.engine, self.seconds, self.rounds = engine, seconds, 0

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.rounds += 1
        if self.rounds == 2:
            self.engine.drafters.load(self.engine, "slow", self.build)

    def build(self) -> Any:
        time.sleep(self.seconds)
        return self.engine.strategy("autoregressive")


def test_loading_is_told_and_no_arm_is_charged_for_it(tiny: Tiny, folders: dict[str, Path]) -> None:
    engine = engine_of(tiny, folders)
    first = engine.decode("one", PROMPT, REQUEST)
    assert first.load_s is not None and first.load_s == pytest.approx(engine.drafters.load_s)
    assert engine.decode("one", PROMPT, REQUEST).load_s is None
    engine.strategy("autoregressive")
    started = time.perf_counter()
    result = engine.decode("one", PROMPT, REQUEST, streamer=Loading(engine, 0.1))
    took_s = time.perf_counter() - started
    assert result.load_s is not None and 0.1 <= result.load_s < took_s
    assert result.wall_s <= took_s - 0.1
