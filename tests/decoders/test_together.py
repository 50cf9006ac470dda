"""Answers that share the target's passes are those that each would be alone."""

from pathlib import Path

import pytest
import torch
from backend_toys import close
from decoder_toys import CPU, Tiny, native
from effort import examples
from engine_toys import PROMPT, PROMPTS, Asked, arms, together
from hypothesis import given
from hypothesis import strategies as st
from replayed import traced

from decoders import Engine
from decoders.backends.batched.slots import BatchSlots, PassRequest
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.continuous_batching import CellWork, ContinuousBatch
from decoders.costs import under_load
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import assume, known
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.records import Request
from decoders.requests.reading import PREFILL_CHUNK
from decoders.testing.toys import ToyBackend

MANY = [1 + i % 13 for i in range(2 * PREFILL_CHUNK + 30)]


@pytest.fixture(scope="module")
def engine(every_way: Engine) -> Engine:
    return every_way


def test_each_answer_is_what_it_would_be_alone(engine: Engine) -> None:
    """At temperature 0; tests/decoders/test_same_answer.py has the others."""
    asked = [
        Asked(arm, PROMPTS[(i + j) % len(PROMPTS)], Request(12 + j))
        for j in range(3)
        for i, arm in enumerate(engine.arm_names)
    ]
    expected = [one.alone(engine) for one in asked]
    batch = ContinuousBatch(engine, 5)
    together(batch, asked)
    for one, ids in zip(asked, expected, strict=True):
        assert one.result is not None and one.result.ids == ids, one.arm
        assert one.result.arm == one.arm
    assert batch.running == 0


def test_passes_are_shared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ContinuousBatch(engine, 4)
    rows: list[int] = []
    read = batch.passes.read
    monkeypatch.setattr(
        batch.passes, "read", lambda wanted: rows.append(len(wanted)) or read(wanted)
    )
    together(batch, [Asked("autoregressive", prompt, Request(10)) for prompt in PROMPTS[:4]])
    assert rows == [4] * 9  # the prompts' own passes give the first tokens


def test_steps_of_one_cell_are_taken_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = ContinuousBatch(engine, 3)
    head = {id(slot.engine.strategy("cell").drafter.head) for slot in batch.slots}  # type: ignore[attr-defined]
    assert len(head) == 1  # its weights are there once
    held = batch.slots[0].engine.strategy("cell").drafter.head  # type: ignore[attr-defined]
    rows: list[int] = []
    step = held.step
    monkeypatch.setattr(held, "step", lambda s, t: rows.append(len(t)) or step(s, t))
    together(batch, [Asked("cell", prompt, Request(9)) for prompt in PROMPTS[:3]])
    assert max(rows) == 3


def test_others_go_on_while_long_prompts_are_read(engine: Engine) -> None:
    batch = ContinuousBatch(engine, 3)
    short = Asked("autoregressive", PROMPT, Request(30))
    expected = short.alone(engine)
    written: list[int] = []
    batch.begin(batch.slots[0], short.answer)
    for other in range(5):
        if (slot := batch.free()) is not None:
            batch.begin(slot, Asked("copy", [1 + other, *MANY], Request(1)).answer)
        batch.step()
        written.append(len(short.written))
    assert written == [1, 2, 3, 4, 5]
    together(batch)
    assert short.result is not None and short.result.ids == expected


def test_no_draft_waits_while_prompts_are_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time would count as the drafter's."""
    batch, waiting = ContinuousBatch(engine, 3), list[int]()
    real = LlamaBackend._prompt

    def reads(backend: LlamaBackend, ids: torch.Tensor) -> torch.Tensor:
        waiting.append(sum(isinstance(slot.wants, CellWork) for slot in batch.slots))
        return real(backend, ids)

    monkeypatch.setattr(LlamaBackend, "_prompt", reads)
    prompts = [PROMPT, [3, *MANY], [4, *MANY]]  # the second drafts while the third is read
    together(batch, [Asked("cell", prompt, Request(30)) for prompt in prompts])
    assert len(waiting) >= 7 and not any(waiting)


def test_what_an_answer_raises_comes_out_of_step(engine: Engine) -> None:
    batch = ContinuousBatch(engine, 2)

    def wrong(engine: Engine) -> None:
        raise ValueError("no")

    batch.begin(batch.slots[0], wrong)
    with pytest.raises(ValueError, match="no"):
        batch.step()
    assert batch.running == 0


def test_closing_ends_what_is_at_work(engine: Engine) -> None:
    batch = ContinuousBatch(engine, 2)
    ended: list[str] = []

    def answer(engine: Engine) -> None:
        try:
            engine.decode("copy", PROMPT, Request(40))
        finally:
            ended.append("over")

    for end in (batch.close, batch.__del__):
        batch.begin(batch.slots[0], answer)
        batch.step()
        assert not torch.is_inference_mode_enabled()
        end()
        assert ended.pop() == "over" and batch.running == 0
        assert not torch.is_inference_mode_enabled()  # it is the whole thread's


def test_a_backend_without_shared_passes_is_refused() -> None:
    engine = Engine(ToyBackend(torch.zeros(4, 4)), arms())
    with pytest.raises(DraftpickError, match="native backend alone"):
        ContinuousBatch(engine, 2)


def test_batch_invariant_answers_on_a_gpu_are_one_at_a_time(tiny: Tiny) -> None:
    target = native(tiny())
    target.device = torch.device("cuda")
    with pytest.raises(DraftpickError, match="--slots 1"):
        ContinuousBatch(Engine(target, {}), 2, batch_invariant=True)


# -- one pass --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> LlamaBackend:
    return native(tiny(max_position_embeddings=512))


def test_answers_that_are_all_ahead_by_exits(model: LlamaBackend) -> None:
    """Nothing is left for the lower layers to read."""
    slots, alone, ids = BatchSlots(model, 2), model.sharing_weights(512), torch.tensor([3, 1])
    for backend in (*slots.all, alone):
        backend.open_exit(1)
        backend.prefill([5, 2, 7])
        backend.lower(1, ids)
    own = alone.extend(ids)
    for logits in slots.read([PassRequest(slot, ids) for slot in slots.all]):
        close(logits, own, 1e-5)


@pytest.mark.parametrize("record", [False, True])
@examples(30)
@given(data=st.data())
def test_one_pass_gives_what_each_would_have_read(
    model: LlamaBackend, record: bool, data: st.DataObject
) -> None:
    """Chains and trees, sequences of any length, exits ahead or not; all caches and states."""
    like = model.sharing_weights(512)
    if record:
        like.record_passes(traced)
    slots = BatchSlots(like, 12)
    assert slots.passes == ("recorded" if record else "eager")
    rows = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=5, unique=True))
    wanted, expected = [], []
    for row in rows:
        slot = slots.all[row]
        exits, states = data.draw(st.booleans()), data.draw(st.booleans())
        prompt = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=140))
        ids = torch.tensor(data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=7)))
        tree = data.draw(st.booleans())
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(ids))] if tree else None
        ahead = data.draw(st.integers(0, len(ids))) if exits and not tree else 0
        alone = model.sharing_weights(512)
        for backend in (slot, alone):
            if exits:
                backend.open_exit(1)
            if states:
                backend.keep_states()
            backend.prefill(prompt)
            if ahead:
                backend.lower(1, ids[:ahead])
        wanted.append(PassRequest(slot, ids, parents))
        logits = alone.extend(ids, parents)
        expected.append((alone, logits, exits, states, len(prompt)))
    made = slots.read(wanted)
    several = zip(wanted, made, expected, strict=True)
    for each, logits, (alone, own, exits, states, start) in several:
        slot, end = each.slot, start + len(each.ids)
        close(logits, own, 1e-5)
        assert slot.length == alone.length == slot.ahead == end
        if states and each.parents is None:
            close(slot.final_states(start, end), alone.final_states(start, end), 1e-5)
        if exits:
            close(slot.exit_hidden(1, start, end), alone.exit_hidden(1, start, end), 1e-5)
        if each.parents is not None:  # down the newest branch, then on
            path = [len(each.ids) - 1]
            while each.parents[path[0]] >= 0:
                path.insert(0, each.parents[path[0]])
            slot.keep(path)
            alone.keep(path)
        again = torch.tensor([3, 1])
        close(slot.read_alone(PassRequest(slot, again)), alone.extend(again), 1e-5)


def test_steady_answers_do_not_depend_on_their_company(tiny: Tiny) -> None:
    folder = tiny(hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    like = LlamaBackend.load(folder, CPU, torch.bfloat16, rounding="int4")
    ids = torch.arange(12) % 16
    bits = []
    for company in (0, 3, 6):
        slots = BatchSlots(like, 8, batch_invariant=True)
        for slot in slots.all:
            slot.prefill(PROMPT)
        bits.append(slots.read([PassRequest(slot, ids) for slot in slots.all[: company + 1]])[0])
    assert torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2])


# -- costs -----------------------------------------------------------------------------------------


def test_costs_lie_between_those_measured() -> None:
    costs = SharedCosts((1, 2, 4), (1, 2, 4), ((1, 2, 4), (2, 4, 8), (6, 8, 12)), 5)
    assert [costs.of(2)(w) for w in (1, 2, 3, 4)] == [2, 4, 6, 8]
    assert costs.of(3)(1) == pytest.approx(4) and costs.of(3)(4) == pytest.approx(10)
    assert SharedCosts((1,), (1, 2), ((1, 3),), 5).of(1)(2) == 3


def test_a_draft_shrinks_as_others_come() -> None:
    alone, now = PassCosts((1.0, 1.01, 1.02, 1.03)), [1]
    shared = SharedCosts((1, 8), (1, 2, 4), ((1, 1.01, 1.03), (2, 4, 8)), 5)
    costs = UnderLoad(alone.verify_s, 1.0, shared, lambda: now[0])
    chances = [0.6, 0.4, 0.3]
    assert costs.best_cut(chances) == 3
    now[0] = 8
    assert costs.best_cut(chances) == 0


def test_costs_are_measured_once_and_those_in_company_are_not_kept(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = native(tiny())
    assume(like, PassCosts((1.0, 1.5)))
    slots = BatchSlots(like, 4)
    for busy, kept in ((0.9, 0), (0.0, 1)):
        monkeypatch.setattr(under_load, "others", lambda before, after, busy=busy: busy)
        first = under_load.learn(slots, "abc", tmp_path, lambda: 1)
        assert len(list(tmp_path.iterdir())) == kept
    assert first.rows == (1, 2, 4) and all(second > 0 for row in first.seconds for second in row)
    assert isinstance(known(slots.all[3]), UnderLoad)
    monkeypatch.setattr(under_load, "measure", lambda slots: pytest.fail("measured again"))
    assert under_load.learn(BatchSlots(like, 4), "abc", tmp_path, lambda: 1) == first


def test_a_failed_step_of_a_cell_is_that_of_all_who_waited(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = ContinuousBatch(engine, 2)
    asked = [Asked("cell", prompt, Request(8)) for prompt in PROMPTS[:2]]
    for slot, each in zip(batch.slots, asked, strict=True):
        batch.begin(slot, each.answer)
    batch.step()  # from now on they draft together

    def fails(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as broken:
        broken.setattr("decoders.backends.recurrent.head.RecurrentHead.step", fails)
        with pytest.raises(RuntimeError, match="out of luck"):
            for _ in range(50):
                batch.step()
    assert not batch.running and not any(each.result for each in asked)
    again = Asked("cell", PROMPTS[1], Request(8))
    together(batch, [again])
    assert again.written == again.alone(engine)
