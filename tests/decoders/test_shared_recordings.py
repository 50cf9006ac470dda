"""Passes that several answers share, recorded; on a CPU they are traced (`replayed.traced`).

The first row has rounds of its own, which are written ahead of the host.
"""

import itertools
from typing import Any

import pytest
import torch
from decoder_toys import Tiny, native, recorded
from engine_toys import PROMPT, PROMPTS, Asked, Gone, arms, together
from replayed import traced

from decoders import Engine
from decoders.backends.batched.slots import BatchSlots, PassRequest
from decoders.backends.cuda.recorded import Run
from decoders.backends.native import PREFILL_CHUNK
from decoders.common.errors import ContextTooLong, NotANumber
from decoders.continuous_batching import ContinuousBatch
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import assume
from decoders.records import Request, Sampling
from decoders.sampling.race import Clocks
from decoders.verify.coupled import Coupled, compared


def test_answers_by_recorded_passes_are_the_others(tiny: Tiny, every_way: Engine) -> None:
    engine, target = every_way, recorded(tiny(max_position_embeddings=1024), torch.float32)[0]
    same = Engine(target, engine.arms, name="tiny", tokenizer=engine.tokenizer)
    assume(target, PassCosts((1.0, 1.1, 1.2, 1.3, 1.6, 2.0)))
    pairs = zip(itertools.cycle(PROMPTS), [arm for arm in engine.arm_names if arm != "calm"])
    asked = [Asked(arm, prompt, Request(9)) for prompt, arm in pairs]
    batch = ContinuousBatch(same, 5)
    assert batch.passes.passes == "recorded"
    together(batch, asked)
    for one in asked:
        assert one.result is not None and one.result.ids == one.alone(engine), one.arm


def test_a_recording_serves_any_rows_and_positions(tiny: Tiny) -> None:
    """One of eight tokens, also where there are fewer; one answer's alone in a row without a
    recording of its own; longer sequences want another, as do more tokens."""
    like = native(tiny(max_position_embeddings=512))
    made = list[object]()

    def record(run: Run) -> Run:
        made.append(run)
        return traced(run)

    like.record_passes(record)
    slots, lengths = BatchSlots(like, 6), (3, 40, 9, 200, 3, 70)
    alone = [native(tiny(max_position_embeddings=512)) for _ in lengths]
    for slot, other, length in zip(slots.all, alone, lengths, strict=True):
        prompt = [(7 * i + length) % 16 for i in range(length)]
        logits = (backend.prefill(prompt).logits for backend in (slot, other))
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    assert len(made) == 6  # of 8, 16, 64, 128 and 256 tokens; row 0 has its own of three
    made.clear()
    for turn, rows in enumerate([(1, 2), (5, 1, 3), (0, 4), (2,), (1, 4, 0)]):
        ids = [
            torch.tensor([(turn + 3 * row + i) % 16 for i in range(1 + row % 2)]) for row in rows
        ]
        wanted = [PassRequest(slots.all[row], own) for row, own in zip(rows, ids, strict=True)]
        for row, own, logits in zip(rows, ids, slots.read(wanted), strict=True):
            torch.testing.assert_close(logits, alone[row].extend(own), rtol=1e-5, atol=1e-5)
        slots.all[1].truncate(41)  # of what row 1 has read, one token is kept
        alone[1].truncate(41)
    assert len(made) == 1
    for row in (3, 5):
        seven = torch.arange(7)
        logits, _ = slots.read([PassRequest(slots.all[at], seven) for at in (row, 2)])
        torch.testing.assert_close(logits, alone[row].extend(seven), rtol=1e-5, atol=1e-5)
    assert len(made) == 2
    for row in (3, 2):
        slots.all[row].prefill([5] * 300)
    made.clear()
    slots.read([PassRequest(slots.all[row], torch.tensor([1])) for row in (3, 2)])
    assert len(made) == 1
    slots.all[2].prefill([5] * 511)
    with pytest.raises(ContextTooLong):
        slots.read([PassRequest(slots.all[row], torch.tensor([1, 2])) for row in (3, 2)])
    assert slots.all[3].length == 301


@pytest.mark.parametrize("record", [True, False])
def test_a_shared_pass_tells_what_drafts_are_held_to(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, record: bool
) -> None:
    """So that no answer looks for itself; what is filtered, or penalised, still does. The first
    row, which reads alone at the end and may have rounds of its own, is at work on a long
    answer."""
    target = native(tiny(max_position_embeddings=512))
    if record:
        target.record_passes(traced)
    assume(target, PassCosts((1.0, 1.1, 1.2, 1.3, 1.6, 2.0)))
    made = arms(copy={"kind": "max_gram", "length": {"k": 5}, "shortest": 1})
    engine = Engine(target, made, name="tiny")
    plain = Engine(native(tiny(max_position_embeddings=512)), engine.arms, name="tiny")
    verified, verify = list[Sampling](), Coupled.verify

    def counted(self: Coupled, *given: Any) -> Any:
        verified.append(given[2])
        return verify(self, *given)

    asked = [Asked("autoregressive", [1], Request(40))]
    several = Sampling(), Sampling(0.8), Sampling(repetition_penalty=1.2), Sampling(0.8, top_k=5)
    for sampling in several:
        asked += [Asked(arm, PROMPTS[0], Request(9, sampling, seed=4)) for arm in engine.arm_names]
    batch = ContinuousBatch(engine, len(asked))
    with monkeypatch.context() as patch:
        patch.setattr(Coupled, "verify", counted)
        together(batch, asked)
    assert {*verified} - {Sampling()} == {*several[2:]}
    for one in asked:
        assert one.result is not None and one.result.ids == one.alone(plain)
    target.weights.norm.fill_(float("nan"))
    batch = ContinuousBatch(engine, 3)
    for slot in batch.slots[1:]:
        slot.engine.target.prefill(PROMPTS[0])
        slot.engine.target.clocks = Clocks()
    batch.passes.read(
        [PassRequest(slot.engine.target, torch.tensor([1])) for slot in batch.slots[1:]]
    )
    with pytest.raises(NotANumber):
        compared([], batch.slots[1].engine.target.told or [])


def test_others_go_on_between_rounds_of_the_first_row(tiny: Tiny) -> None:
    """Which is written ahead of the host, sampled answers too; not where no answer may depend on
    its company."""
    target, _ = recorded(tiny(max_position_embeddings=512), torch.float32)
    assume(target, PassCosts((1.0, 1.1, 1.2, 1.3, 1.6, 2.0)))
    plain = Engine(native(tiny(max_position_embeddings=512)), arms(), name="tiny")
    engine = Engine(target, arms(), name="tiny")
    for steady in (False, True):
        batch = ContinuousBatch(engine, 2, steady)
        request = Request(12, Sampling(0.9), seed=3)
        first, other = (Asked("autoregressive", prompt, request) for prompt in PROMPTS[:2])
        written = []
        for asked in (first, other):
            batch.begin(batch.free(), asked.answer)
        while batch.running:
            batch.step()
            written.append((len(first.written), len(other.written)))
        slot = batch.slots[0].engine
        writer = slot.strategy("autoregressive").writers[slot.target]
        assert (writer.rounds is None) == steady
        assert all(abs(one - two) <= 1 for one, two in written) and len(written) >= 11
        for asked in (first, other):
            assert asked.result is not None and asked.result.ids == asked.alone(plain)


def test_an_answer_written_ahead_is_stopped(tiny: Tiny) -> None:
    target, _ = recorded(tiny(max_position_embeddings=512), torch.float32)
    batch = ContinuousBatch(Engine(target, arms(), name="tiny"), 2)
    slot, told = batch.slots[0], list[str]()

    def answer(engine: Engine) -> None:
        try:
            Asked("autoregressive", PROMPT, Request(30)).answer(engine)
        except Gone:
            told.append("gone")

    for _ in range(2):
        batch.begin(slot, answer)
        for _ in range(4):
            batch.step()
        batch.stop(slot, Gone())
        assert batch.running == 0
    assert told == ["gone", "gone"]
    again = Asked("autoregressive", PROMPT, Request(9))
    together(batch, [again])
    assert again.result is not None and again.result.ids == again.alone(Engine(target, arms()))


@pytest.mark.parametrize(("device", "part"), [("cpu", 256), ("cuda", PREFILL_CHUNK)])
def test_large_models_read_longer_parts_on_a_gpu(
    device: str, part: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoders.backends.native.LARGE_MODEL", 100)
    target = native(tiny())
    target.device = torch.device(device)
    assert target.part == part
