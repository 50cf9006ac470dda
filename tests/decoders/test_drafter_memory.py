"""Drafters load when first used, the least recently used give way, and nothing of it is charged to
an answer."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import Tiny, native, random_cell, save_cell
from engine_toys import PROMPT, tokenizer

from decoders import Engine
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.continuous_batching import ContinuousBatch
from decoders.models.drafter_memory import LONGEST_S, DrafterMemory, LoadFailed, NoRoom, storages
from decoders.models.memory import OutOfMemory
from decoders.records import Request
from decoders.sampling.draft_vocab import DraftVocab

SMALL = ("one", "two", "three")
REQUEST = Request(max_new_tokens=12)


@pytest.fixture(scope="module")
def folders(tiny: Tiny) -> dict[str, Path]:
    return {name: tiny(seed=5 + at, num_hidden_layers=1) for at, name in enumerate(SMALL)}


def engine_of(tiny: Tiny, folders: dict[str, Path], limit: int | None = None) -> Engine:
    """Three drafters of the same size; `again` shares the first one's weights."""
    drafters = {**folders, "again": folders["one"]}
    arms = {
        name: recipe(name=name, kind="neural", drafter=str(folder), length={"k": 3})  # type: ignore[arg-type]
        for name, folder in drafters.items()
    }
    arms["plain"] = recipe(name="plain", kind="autoregressive")
    words = tokenizer([f"w{i}" for i in range(15)])
    return Engine(native(tiny()), arms, name="tiny", tokenizer=words, drafters=DrafterMemory(limit))


@pytest.fixture(scope="module")
def size(tiny: Tiny, folders: dict[str, Path]) -> int:
    """Bytes of one drafter."""
    engine = engine_of(tiny, folders)
    engine.strategy("one")
    return engine.drafters.bytes


def test_a_drafter_takes_what_its_tensors_take(
    tiny: Tiny, folders: dict[str, Path], size: int
) -> None:
    engine = engine_of(tiny, folders)
    backend: Any = engine.strategy("one").drafter.backend  # type: ignore[attr-defined]
    rope = sum(each.numel() * each.element_size() for each in backend._rope)
    embedding = 16 * 32  # tied to the head, which lies packed beside it
    assert size == (backend.parameters + embedding) * backend.dtype.itemsize + rope


def test_shared_weights_count_once(tiny: Tiny, folders: dict[str, Path], size: int) -> None:
    engine = engine_of(tiny, folders)
    for name in ("one", "again", "plain"):
        engine.strategy(name)
    rope = engine.strategy("one").drafter.backend._rope  # type: ignore[attr-defined]
    own = sum(each.numel() * each.element_size() for each in rope)  # a table for each
    assert engine.drafters.bytes == size + own


def test_views_and_what_is_the_targets_own_do_not_count() -> None:
    whole = torch.zeros(100)

    class Thing:
        def __init__(self) -> None:
            self.parts, self.other = [whole[:10], whole[10:]], {"its": torch.zeros(3)}

    thing = Thing()
    assert sum(storages(thing).values()) == 412
    assert sum(storages(thing, beside=[whole]).values()) == 12
    assert sum(storages(thing, apart=[thing.other]).values()) == 400


def test_the_least_recently_used_gives_way_and_its_memory_comes_back(
    tiny: Tiny, folders: dict[str, Path], size: int
) -> None:
    free = engine_of(tiny, folders)
    wanted = {name: free.decode(name, PROMPT, REQUEST).ids for name in SMALL}
    engine = engine_of(tiny, folders, limit=2 * size)
    assert engine.decode("one", PROMPT, REQUEST).ids == wanted["one"]
    assert engine.decode("two", PROMPT, REQUEST).ids == wanted["two"]
    engine.decode("one", PROMPT, REQUEST)  # so that `two` is the older one
    backend: Any = engine.made("two").drafter.backend  # type: ignore[union-attr]
    gone = weakref.ref(backend.weights.layers[0])
    numbers = backend.parameters
    del backend
    free = None  # type: ignore[assignment]  # it holds the same weights
    gc.collect()
    held = living()
    assert engine.decode("three", PROMPT, REQUEST).ids == wanted["three"]
    assert engine.drafters.arms == ["one", "three"] and engine.made("two") is None
    assert gone() is None
    assert abs(living() - held) < numbers  # one went and one came
    assert engine.drafters.bytes == 2 * size
    assert engine.decode("two", PROMPT, REQUEST).ids == wanted["two"]  # it comes again
    assert engine.drafters.arms == ["three", "two"]


def living() -> int:
    """Numbers in all tensors that somebody holds."""
    gc.collect()
    return sum(each.numel() for each in gc.get_objects() if type(each) is torch.Tensor)


def test_without_a_limit_all_stay(tiny: Tiny, folders: dict[str, Path]) -> None:
    engine = engine_of(tiny, folders)
    for name in SMALL:
        engine.decode(name, PROMPT, REQUEST)
    assert engine.drafters.arms == [*SMALL]


def test_one_at_work_in_any_seat_stays(tiny: Tiny, folders: dict[str, Path], size: int) -> None:
    alone = engine_of(tiny, folders).decode("one", PROMPT, REQUEST).ids
    engine = engine_of(tiny, folders, limit=size)
    batch = ContinuousBatch(engine, 2)
    told: dict[str, Any] = {}

    def ask(arm: str) -> Callable[[Engine], None]:
        def answer(own: Engine) -> None:
            try:
                told[arm] = own.decode(arm, PROMPT, REQUEST, own.prefill(PROMPT))
            except DraftpickError as error:
                told[arm] = error

        return answer

    batch.begin(batch.free(), ask("one"))
    batch.step()
    batch.step()
    batch.begin(batch.free(), ask("two"))
    while batch.running:
        batch.step()
    assert isinstance(told["two"], NoRoom) and "at work: one" in str(told["two"])
    assert told["one"].ids == alone
    assert "two" in engine.asleep  # for a second
    batch.begin(batch.free(), ask("two"))  # `one` is idle now
    while batch.running:
        batch.step()
    assert told["two"].ids == engine_of(tiny, folders).decode("two", PROMPT, REQUEST).ids
    assert engine.drafters.arms == ["two"] and not engine.asleep
    assert all(slot.engine.made("one") is None for slot in batch.slots)


def test_an_arm_in_a_seat_holds_its_own_alone(tiny: Tiny, tmp_path: Path) -> None:
    """A recurrent drafter takes its steps together with other seats', and so knows of them."""
    save_cell(tmp_path, random_cell(32, 1), DraftVocab([*range(1, 15)], 16))
    engine = engine_of(tiny, dict.fromkeys(SMALL, tiny(seed=5, num_hidden_layers=1)))
    for name in ("cell", "twin"):
        engine.arms[name] = recipe(name=name, kind="recurrent", drafter=str(tmp_path))
        engine.arms[name].prepare(engine.target)
    batch = ContinuousBatch(engine, 2)
    for slot in batch.slots:
        for name in ("one", "cell", "twin"):
            slot.engine.strategy(name)
    one, cell, twin = (engine.drafters._storages[name] for name in ("one", "cell", "twin"))
    assert not set(cell) & set(one)
    own = sum(size for key, size in cell.items() if key not in twin)  # the states of its sequences
    assert own < sum(cell.values()) / 10
    before = engine.drafters.bytes
    engine.drafters._let_go("cell")
    assert engine.drafters.bytes == before - own


def test_an_arm_that_is_larger_than_all_the_room_evicts_nothing(
    tiny: Tiny, folders: dict[str, Path], size: int
) -> None:
    engine = engine_of(tiny, folders, limit=size - 1)
    engine.strategy("plain")
    with pytest.raises(LoadFailed, match=r"take 0\.0 MB, and all drafters .*--drafter-memory"):
        engine.decode("one", PROMPT, REQUEST)
    assert engine.made("one") is None and engine.drafters.bytes == 0
    assert engine.drafters.arms == ["plain"]
    assert engine.asleep["one"].pause_s > LONGEST_S - 60
    with pytest.raises(DraftpickError, match="0 bytes or more"):
        DrafterMemory(-1)


def test_what_cannot_be_loaded_sleeps_and_is_tried_again(tiny: Tiny, tmp_path: Path) -> None:
    engine = engine_of(tiny, dict.fromkeys(SMALL, tmp_path))
    with pytest.raises(LoadFailed, match=r"holds no config\.json") as failed:
        engine.decode("one", PROMPT, REQUEST)
    assert failed.value.arm == "one" and failed.value.load_s > 0
    assert set(engine.asleep) == {"one"}
    first_s = engine.asleep["one"].pause_s
    with pytest.raises(LoadFailed):  # who insists is not kept from trying
        engine.strategy("one")
    assert first_s < engine.asleep["one"].pause_s < LONGEST_S
    good = engine_of(tiny, {"one": tiny(seed=5, num_hidden_layers=1)})
    engine.arms["one"] = good.arms["one"]
    engine.decode("one", PROMPT, REQUEST)
    assert not engine.asleep


def test_idle_ones_go_where_memory_runs_out(tiny: Tiny, folders: dict[str, Path]) -> None:
    engine = engine_of(tiny, folders)
    engine.strategy("one")
    tries = []

    def build() -> Any:
        tries.append(engine.drafters.arms)
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


class Loading:
    """A streamer in whose second round another answer's arm is loaded."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.engine, self.seconds, self.rounds = engine, seconds, 0

    def put(self, ids: Any) -> None:
        pass

    def end(self) -> None:
        pass

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.rounds += 1
        if self.rounds == 2:
            self.engine.drafters.load(self.engine, "slow", self.build)

    def build(self) -> Any:
        time.sleep(self.seconds)
        return self.engine.strategy("plain")


def test_loading_is_told_and_no_arm_is_charged_for_it(tiny: Tiny, folders: dict[str, Path]) -> None:
    engine = engine_of(tiny, folders)
    first = engine.decode("one", PROMPT, REQUEST)
    assert first.load_s is not None and first.load_s == pytest.approx(engine.drafters.load_s)
    assert engine.decode("one", PROMPT, REQUEST).load_s is None
    engine.strategy("plain")
    started = time.perf_counter()
    result = engine.decode("one", PROMPT, REQUEST, streamer=Loading(engine, 0.5))
    took_s = time.perf_counter() - started
    assert result.load_s is not None and 0.5 <= result.load_s < took_s
    assert result.wall_s <= took_s - 0.5
