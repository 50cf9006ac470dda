"""Several answers at a time: each is its own, and nobody waits for another to end."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from serve_toys import LETTERS, Heard, Served, ToyPolicy, generation, native_engine, served, until
from torch import Tensor

from decoders import Engine
from decoders.arms import recipe
from decoders.backends.batched.slots import BatchSlots, PassRequest
from decoders.backends.native import LlamaBackend
from decoders.common.errors import Cancelled
from decoders.continuous_batching import ContinuousBatch, SingleSlot, batch_engine
from decoders.costs import under_load
from decoders.costs.passes import known
from decoders.records import Request, Sampling
from router.records import AskOptions
from router.routing.router import Router
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, Scheduler

SLOTS = 4
WORDS = ("abcabcabc", "hellothere", "zzz", "alongerlineofletters", "qrs", "tengreenbottles")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return native_engine(tmp_path_factory.mktemp("tiny"))


def scheduler_of(engine: Engine, slots: int = SLOTS) -> Scheduler:
    return Scheduler(
        {DEFAULT: Router(engine, ToyPolicy())}, FairQueue(32), batch_engine(engine, slots)
    )


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Scheduler]:
    made = scheduler_of(engine)
    yield made
    made.close()


def test_one_that_leaves_ends_and_the_others_go_on(scheduler: Scheduler, engine: Engine) -> None:
    stays, leaves = Heard(), Heard(leave_after=3)
    scheduler.submit(generation(tokens=100, arm="autoregressive"), stays)
    leaves.handle = scheduler.submit(generation(WORDS[1], tokens=100, arm="autoregressive"), leaves)
    assert leaves.ended.wait(20) and isinstance(leaves.error, Cancelled)
    assert leaves.rounds == 3 and not stays.ended.is_set()
    assert stays.ended.wait(20) and stays.result is not None
    expected = engine.decode("autoregressive", generation().prompt_ids, Request(100))
    assert stays.ids == expected.ids
    assert until(lambda: scheduler.running == 0)


def test_one_that_leaves_while_its_prompt_is_read_ends_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(engine)
    read, began = BatchSlots.read, threading.Event()

    def slowly(self: BatchSlots, wanted: Sequence[PassRequest]) -> list[Tensor]:
        began.set()
        time.sleep(0.02)
        return read(self, wanted)

    monkeypatch.setattr(BatchSlots, "read", slowly)
    # a part between two passes
    monkeypatch.setattr("decoders.continuous_batching.PROMPT_TOKENS", 1)
    monkeypatch.setattr("decoders.requests.reading.PREFILL_CHUNK", 1)
    stays, leaves = Heard(), Heard()
    scheduler.submit(generation(tokens=200, arm="autoregressive"), stays)
    assert began.wait(20)
    handle = scheduler.submit(generation("a" * 100, tokens=5, arm="autoregressive"), leaves)
    assert until(lambda: scheduler.running == 2)
    handle.cancel()
    assert leaves.ended.wait(1) and isinstance(leaves.error, Cancelled)  # of two seconds of reading
    assert leaves.rounds == 0 and leaves.decision is None and not stays.ended.is_set()
    scheduler.close()


def test_one_that_leaves_a_single_slot_while_its_prompt_is_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(engine, slots=1)
    target: LlamaBackend = engine.target
    read, hidden, began = list[int](), target._hidden, threading.Event()

    def slowly(ids: Tensor, *more: object) -> Tensor:
        read.append(len(ids))
        began.set()
        time.sleep(0.02)
        return hidden(ids, *more)

    monkeypatch.setattr(target, "_hidden", slowly)
    monkeypatch.setattr("decoders.backends.native.PREFILL_CHUNK", 1)
    leaves = Heard()
    handle = scheduler.submit(generation("b" * 100, tokens=5, arm="copy"), leaves)
    assert began.wait(20)
    handle.cancel()
    assert leaves.ended.wait(1) and isinstance(leaves.error, Cancelled)  # of two seconds of reading
    assert leaves.decision is None and len(read) < 60
    assert engine.cached_prefix(generation("b" * 100).prompt_ids) == len(read)
    scheduler.close()


def test_closing_cancels_all_that_were_taken(engine: Engine) -> None:
    scheduler = scheduler_of(engine)
    told = [Heard() for _ in range(7)]
    for heard in told:
        scheduler.submit(generation(tokens=200), heard)
    assert until(lambda: scheduler.running == SLOTS)
    scheduler.close()
    assert all(heard.ended.is_set() and isinstance(heard.error, Cancelled) for heard in told)
    assert scheduler.running == scheduler.waiting == 0


def test_answers_over_http_are_what_each_would_be_alone(engine: Engine) -> None:
    asked = [f"{word}{LETTERS[i]}" for i, word in enumerate(WORDS * 3)]
    arms = (None, "copy", "autoregressive")
    with served(engine=engine, slots=SLOTS, places=64) as running:

        def ask(n: int) -> tuple[str, int]:
            stream = running.client().completions.create(
                model=arms[n % 3] or "auto", prompt=asked[n], max_tokens=20 + n, temperature=n % 2,
                seed=n, stream=True, extra_body={"explain": True},
            )  # fmt: skip
            first, *parts = (part for part in stream if part.choices)
            text = "".join(part.choices[0].text for part in parts)
            return text, first.model_extra["draftpick"]["running"]

        with ThreadPoolExecutor(len(asked)) as pool:
            told = list(pool.map(ask, range(len(asked))))
    alone = Router(engine, ToyPolicy())
    for n, (text, _) in enumerate(told):
        request = Request(20 + n, Sampling(n % 2), seed=n)
        ids = engine.encode_text(asked[n])
        assert text == alone.answer(ids, request, AskOptions(arms[n % 3])).result.text
    assert max(beside for _, beside in told) == SLOTS - 1


def test_rooms_of_one_answer(engine: Engine, toy: Served) -> None:
    rooms = batch_engine(engine, 1), batch_engine(engine, 2), batch_engine(toy.engine, 8)
    assert [*map(type, rooms)] == [SingleSlot, ContinuousBatch, SingleSlot]


def test_costs_of_shared_passes_are_kept(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_load, "others", lambda before, after: 0.0)
    arms = {"auto": recipe(name="auto", kind="max_gram", by_cost=True)}
    by_cost = Engine(engine.target, arms, name="tiny", tokenizer=engine.tokenizer)
    batch = batch_engine(by_cost, 2, cache=tmp_path)
    targets = [slot.engine.target for slot in batch.slots]
    assert all(isinstance(known(each), under_load.UnderLoad) for each in targets)
    assert len(list(tmp_path.iterdir())) == 1
    held = weakref.ref(batch)
    del batch, targets
    gc.collect()
    assert held() is None  # with all that its slots hold


def test_the_next_turn_goes_where_the_last_was_written(
    scheduler: Scheduler, engine: Engine
) -> None:
    first, other = Heard(), Heard()
    scheduler.submit(generation("abcdefghij" * 4, tokens=10, arm="copy"), first)
    scheduler.submit(generation("zyx" * 9, tokens=3, arm="copy"), other)
    assert first.ended.wait(20) and other.ended.wait(20) and first.result is not None
    turn = [*first.result.result.prompt_ids, *first.ids, 3, 4]
    slots = scheduler._batch.slots
    assert max(slot.engine.cached_prefix(turn) for slot in slots) == len(turn) - 3
    again = Heard()
    scheduler.submit(replace(generation(tokens=12, arm="copy"), prompt_ids=turn), again)
    assert again.ended.wait(20) and again.result is not None
    assert again.ids == engine.decode("copy", turn, Request(12)).ids
    used = [slot for slot in slots if slot.engine.cached_prefix([*turn, *again.ids]) > len(turn)]
    assert len(used) == 1 and used[0].engine.target.prompts_read >= 2


def test_a_shared_pass_that_fails_ends_its_answers_and_no_others(
    scheduler: Scheduler, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(wanted: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as broken:
        broken.setattr(scheduler._batch.passes, "read", fails)
        told = [Heard() for _ in range(SLOTS + 2)]
        for heard in told:
            scheduler.submit(generation(arm="autoregressive"), heard)
        assert all(heard.ended.wait(20) for heard in told)
        assert all("out of luck" in str(heard.error) for heard in told)
    after = Heard()
    scheduler.submit(generation(arm="autoregressive"), after)
    assert after.ended.wait(20) and after.result is not None
    assert after.ids == engine.decode("autoregressive", generation().prompt_ids, Request(20)).ids
