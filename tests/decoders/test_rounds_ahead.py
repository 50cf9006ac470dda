"""Rounds recorded on the device: what they write is what the ordinary loop writes.

On a CPU they are traced instead of recorded as CUDA graphs (`replayed.traced`).
"""

import gc
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, native, random_cell, random_exit, recorded
from effort import slow_after
from hypothesis import given
from hypothesis import strategies as st
from replayed import placed, traced

from decoders.arms import recipe
from decoders.backends.batched.row_passes import kernels_for
from decoders.backends.cuda import fused, rounds, runs_triton, use_kernels
from decoders.backends.cuda.device_loop import DeviceLoop
from decoders.backends.cuda.recorded import cuda_graphs
from decoders.backends.cuda.rounds import RoundSampling
from decoders.backends.native import LlamaBackend
from decoders.backends.recurrent.head import RecurrentHead
from decoders.common.errors import NotANumber
from decoders.costs.pass_costs import PassCosts
from decoders.device_rounds import WIDEST
from decoders.lengths import AdaptiveLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.device import Chain, DrafterLag
from decoders.methods.hybrid.device import HybridRoundDraft
from decoders.methods.hybrid.drafter import HybridDrafter
from decoders.methods.max_gram.device import SHORT_COPY, Copies
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.protocols import Drafter, DraftLength
from decoders.records import DecodeResult, Request, Sampling, StepStats
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.filters import chosen
from decoders.sampling.race import ON_CUDA, pick
from decoders.sampling.randomness import Generator
from decoders.testing.chance import Walk
from decoders.testing.toys import ListedLengths, autoregressive, job, run, speculative

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3
EVEN = PassCosts((1e-3,) * 17)  # as on a GPU
TABLE = NextTokenTable({i: ((5 * i + 1) % 16, 0.5) for i in range(12)})
PART = [0, 2, 3, 5, 8, 9, 12, 15]


@pytest.fixture(autouse=True)
def rounds_take_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they draft, so that what is drafted does not depend on the machine."""
    monkeypatch.setattr("decoders.backends.cuda.rounds._seconds", lambda *_: 1e-3)


@dataclass
class Parts:
    """What strategies are made of. record: models' passes, as the target's are."""

    target: LlamaBackend
    tiny: Tiny
    record: bool

    def another(self, seed: int, **shape: Any) -> LlamaBackend:
        folder = self.tiny(seed=seed, **shape)
        return recorded(folder)[0] if self.record else native(folder, torch.float64)

    def cell(self) -> RecurrentDrafter:
        head = RecurrentHead(self.target, random_cell(32, 3), DraftVocab(PART, 16))
        return RecurrentDrafter(self.target, head)

    def copying(self, **options: Any) -> MaxGramDrafter:
        return MaxGramDrafter(CPU, passes=EVEN, **options)

    def few(self) -> NeuralDrafter:
        return NeuralDrafter(self.another(2, vocab_size=9), DraftVocab(PART, 16))


def hybrid(parts: Parts, model: Drafter) -> SpeculativeDecoding:
    return speculative(HybridDrafter(parts.copying(), model, EVEN), 16)


def listed(drafter: Drafter) -> SpeculativeDecoding:
    return speculative(drafter, ListedLengths([3, 0, 1]))


KINDS: dict[str, Callable[[Parts], SpeculativeDecoding]] = {
    "copies or a cell": lambda p: hybrid(p, p.cell()),
    "another": lambda p: speculative(NeuralDrafter(p.another(1)), AdaptiveLength(4)),
    "exit": lambda p: listed(random_exit(p.target, 1, seed=0)),
    "copies and a table": lambda p: speculative(p.copying(table=TABLE), 16),
    "plain": lambda p: autoregressive(),
    "copies": lambda p: speculative(p.copying(), 16),
    "copies of a fixed length": lambda p: speculative(MaxGramDrafter(CPU), 5),
    "itself": lambda p: listed(NeuralDrafter(p.another(0))),
    "a part of the vocabulary": lambda p: listed(p.few()),
    "cell": lambda p: listed(p.cell()),
    "copies or another": lambda p: hybrid(p, NeuralDrafter(p.another(0))),
}


def strategy(kind: str, target: LlamaBackend, tiny: Tiny, record: bool) -> SpeculativeDecoding:
    return KINDS[kind](Parts(target, tiny, record))


def ahead(target: LlamaBackend, made: SpeculativeDecoding, request: Request) -> bool:
    return made.writer(job(target, PROMPT, request)) is not None


@pytest.mark.parametrize("kind", slow_after(4, KINDS))
def test_answers_are_the_ordinary_ones(kind: str, tiny: Tiny) -> None:
    """Of two prompts, one after the other and the first again."""
    folder, results = tiny(), list[list[DecodeResult]]()
    for record in (True, False):
        target = recorded(folder)[0] if record else native(folder, torch.float64)
        made = strategy(kind, target, tiny, record)
        assert ahead(target, made, Request(20)) == record
        answers = [run(target, made, p, Request(20)) for p in (PROMPT, PROMPT[2:9], PROMPT)]
        results.append(answers)
    ours, ordinary = results
    for one, other in zip(ours, ordinary, strict=True):
        assert one.ids == other.ids and one.finish_reason == other.finish_reason
        assert one.rounds < 29 or kind in ("plain", "another", "exit", "cell", "copies and a table")
        assert one.accepted + one.rounds + 1 == len(one.ids)
        assert sum(width * n for width, n in enumerate(one.widths)) == one.drafted


@pytest.mark.parametrize("sampling", [Sampling(1), Sampling(0.7, top_k=5, top_p=0.9)], ids=str)
@pytest.mark.parametrize("kind", slow_after(3, KINDS))
def test_sampled_answers_are_plain_decoding_s(kind: str, sampling: Sampling, tiny: Tiny) -> None:
    """To the same seed, whatever is drafted; and so are the ordinary loop's. A greedy answer in
    between changes nothing."""
    target, plain = (native(tiny(), torch.float64) for _ in range(2))
    ordinary = strategy(kind, plain, tiny, False)
    target.record_passes(traced)
    made = strategy(kind, target, tiny, True)
    assert ahead(target, made, Request(20, sampling))
    drafted = 0
    for seed, how in ((1, sampling), (1, Sampling()), (2, sampling), (3, Sampling(0.5))):
        request = Request(20, how, seed=seed)
        answer = run(target, made, PROMPT, request)
        assert answer.ids == run(plain, autoregressive(), PROMPT, request).ids
        assert answer.accepted + answer.rounds + 1 == len(answer.ids)
        drafted += answer.drafted
    assert answer.ids == run(plain, ordinary, PROMPT, request).ids
    assert drafted or kind == "plain"


@given(
    st.integers(0, 2**31),
    st.floats(0.2, 3),
    st.integers(0, 12),
    st.one_of(st.floats(0.05, 1), st.just(1e-9)),
    st.booleans(),
)
def test_rounds_choose_as_the_ordinary_loop_does(
    seed: int, temperature: float, top_k: int, top_p: float, named: bool
) -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed)).mul(3).round()
    sampling, chance = Sampling(temperature, top_k, top_p), Generator(CPU, seed)
    names = torch.arange(0, 27, 3) if named else None
    drawing = RoundSampling(27 if named else 9, CPU)
    drawing.begin(sampling, chance.key)
    choose, places = drawing.chooser(drawing.kind), torch.arange(7, 11)
    expected = chosen(logits, sampling, chance, 7, names)[:, 0]
    assert choose(logits, places, names).tolist() == expected.tolist()


@pytest.mark.usefixtures("kernel")
def test_rounds_choose_several_tokens_by_kernels_too() -> None:
    """Whose rows share a temperature and a key."""
    drawing, logits = RoundSampling(9, CPU), torch.randn(4, 9)
    drawing.begin(Sampling(0.9), 5)
    picked = drawing.chooser(drawing.kind)(logits, torch.arange(7, 11), None)
    assert picked.tolist() == pick(logits, 0.9, 5, 7)[:, 0].tolist()


@pytest.mark.parametrize(
    "sampling", [Sampling(1), Sampling(), Sampling(0.7), Sampling(1, top_k=6, top_p=0.8)], ids=str
)
@pytest.mark.parametrize(
    "kind", slow_after(2, ("itself", "a part of the vocabulary", "exit", "cell"))
)
def test_rounds_and_drafts_are_the_ordinary_ones(kind: str, sampling: Sampling, tiny: Tiny) -> None:
    """As many tokens are drafted, and as many accepted, sampled ones too."""
    counts = []
    for record in (True, False):
        target = recorded(tiny())[0] if record else native(tiny(), torch.float64)
        request = Request(16, sampling, seed=6)
        made = run(target, strategy(kind, target, tiny, record), PROMPT, request)
        counts.append(
            (made.ids, made.rounds, made.drafted, made.accepted_per_position, made.target_calls)
        )
    assert counts[0] == counts[1]
    assert kind != "itself" or made.accepted == made.drafted > 0


@pytest.mark.parametrize("most", slow_after(2, [2, 7, 1]))
def test_it_ends_where_the_answer_ends(most: int, tiny: Tiny) -> None:
    """At a limit, at an end-of-sequence token inside a draft, and where the context ends."""
    target, _ = recorded(tiny())
    made = strategy("copies", target, tiny, True)
    whole = run(target, made, PROMPT, Request(20)).ids
    assert run(target, made, PROMPT, Request(most)).ids == whole[:most]
    end = whole[most]
    cut = run(target, made, PROMPT, Request(20), eos_ids=(end,))
    assert cut.ids == whole[: whole.index(end) + 1] and cut.finish_reason == "eos"
    assert target.length == len(PROMPT) + len(cut.ids) - 1
    room = target.context - len(PROMPT)
    plain = native(tiny(), torch.float64)
    longest = run(plain, autoregressive(), PROMPT, Request(room))
    assert run(target, made, PROMPT, Request(room)).ids == longest.ids


def test_a_draft_model_reads_what_it_sat_out() -> None:
    """As far as the host knows it, and the most that there may be of rounds on their way."""
    behind = DrafterLag(WIDEST)
    assert behind.unread(2, 2) == 1  # it has read the prompt
    for _ in range(3):
        behind.launched(0, 0)
        behind.read(0, own=True)
    assert behind.unread(2, 2) == 4
    behind.launched(7, 9)  # a copy of seven, before which it reads
    assert behind.unread(2, 2) == 8
    behind.read(3, own=False)
    assert behind.unread(2, 2) == 4
    assert behind.unread(7, 0) == 0 and behind.unread(15, 0) == 4  # else too much to read at once


def test_a_draft_model_reads_what_it_sat_out_of_a_short_prompt() -> None:
    """No more than there is, and all of it once there is enough; in few shapes."""
    model = Chain(lambda line, k, unread: line.ids[:k], parameters=1, read=lambda ids: None)
    model.reset([5, 3])
    assert model.next(4, {}) == (4, 2)
    assert model.next(4, {}) == (4, 4)  # of the four tokens that there are at least
    for _ in range(2):
        model.learn((4, 4), 0, 0)
    for _ in range(6):
        model.next(0, {})
        model.learn((0, 0), 0, 0)
    assert model.next(4, {}) == (4, 7)  # of eleven
    model.learn((4, 7), 0, 4)
    assert model.next(4, {}) == (4, 2)
    assert model.next(4, {}) == (4, WIDEST)


def test_a_model_beside_copies_is_asked_after_an_answer_at_the_end(tiny: Tiny) -> None:
    """Where no draft fits, so that none could be timed."""
    target, _ = recorded(tiny())
    made = strategy("copies or a cell", target, tiny, True)
    run(target, made, (PROMPT * 4)[: target.context - 4], Request(2))
    run(target, made, PROMPT, Request(2))
    writer = made.writer(job(target, PROMPT, Request(2)))
    assert isinstance(writer, DeviceLoop) and writer.rounds is not None
    assert {drafted for _, drafted, _ in writer.rounds.seconds} == {*range(SHORT_COPY + 1)}


def test_a_draft_s_time_is_beyond_a_plain_round_s_that_reads_as_much(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer sequence has recordings of its own, of which a plain one need not be launched."""
    times = map(float, itertools.count())
    monkeypatch.setattr(rounds, "_seconds", lambda *_: next(times))
    target, _ = recorded(tiny(max_position_embeddings=400))
    made = speculative(MaxGramDrafter(CPU), 5)
    run(target, made, PROMPT, Request(3))
    writer = made.writer(job(target, PROMPT, Request(3)))
    assert isinstance(writer, DeviceLoop) and writer.rounds is not None
    assert writer.rounds.seconds == {(0,): 0.0, (5,): 1.0}
    run(target, made, PROMPT * 11, Request(3))
    assert writer.rounds.seconds == {(0,): 2.0, (5,): 3.0}


def test_no_round_goes_past_the_context(tiny: Tiny) -> None:
    """A round that is launched before the last one is read may begin where that one ends at most.
    Every draft is accepted; a position beyond the context would be an IndexError here."""
    target = native(tiny(), torch.float64)
    target.keep_states()
    target.record_passes(traced)
    for least in (target.context, 60):  # the draft model's
        model = LlamaBackend.load(tiny(), CPU, torch.float64, context=least)
        model.record_passes(traced)
        made = speculative(NeuralDrafter(model), 3)
        for left in range(1, 10):
            prompt = (PROMPT * 4)[: least - left]
            assert len(run(target, made, prompt, Request(left)).ids) == left


def test_the_target_holds_the_answer(tiny: Tiny) -> None:
    """What an ordinary pass reads next is there: keys, values, states."""
    target, plain = (native(tiny(), torch.float64) for _ in range(2))
    target.record_passes(traced)
    for model in (target, plain):
        model.keep_states()
        model.open_exit(1)
    made = strategy("copies", target, tiny, True)
    ids = run(target, made, PROMPT, Request(14)).ids
    plain.prefill([*PROMPT, *ids[:-1]])
    target.truncate(plain.length)
    close = torch.testing.assert_close
    end = plain.length
    close(target.final_states(0, end), plain.final_states(0, end))
    close(target.exit_hidden(1, 0, end), plain.exit_hidden(1, 0, end))
    last = torch.tensor(ids[-1:])
    close(target.extend(last), plain.extend(last))


def test_an_arm_that_is_let_go_takes_its_rounds_along(tiny: Tiny) -> None:
    """And its draft model, whatever the recordings know of it."""
    target, _ = recorded(tiny())
    made = strategy("itself", target, tiny, True)
    run(target, made, PROMPT, Request(6))
    gone = [weakref.ref(made.drafter), weakref.ref(made.drafter.backend)]  # type: ignore[attr-defined]
    del made
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_each_way_learns_what_its_own_drafts_cost(tiny: Tiny) -> None:
    """One arm's: a length that learns what drafts cost is another one on the device."""
    target, _ = recorded(tiny())
    length = {"kind": "adaptive", "k": 3}
    arm = recipe(kind="neural", name="small", drafter=str(tiny(seed=1)), length=length)
    made = arm.build(target, None)
    writer = made.writer(job(target, PROMPT, Request(9)))
    assert isinstance(writer, DeviceLoop) and writer.length is not made.length
    seen = dict[str, int]()

    def counting(name: str, length: DraftLength) -> None:
        observe, seen[name] = length.observe, 0

        def observed(stats: StepStats) -> None:
            seen[name] += 1
            observe(stats)

        length.observe = observed

    counting("ordinary", made.length)
    counting("ahead", writer.length)
    run(target, made, PROMPT, Request(9))
    assert seen["ordinary"] == 0 < seen["ahead"]
    before = seen["ahead"]
    run(target, made, PROMPT, Request(9, Sampling(repetition_penalty=1.1)))
    assert seen["ahead"] == before and seen["ordinary"] > 0


def test_the_host_is_a_round_behind(tiny: Tiny) -> None:
    target, _ = recorded(tiny())
    made = autoregressive()
    writer = made.writer(job(target, PROMPT, Request(9)))
    assert isinstance(writer, DeviceLoop) and writer.rounds is not None
    rounds = writer.rounds
    flying = []
    launch = rounds.launch

    def counted(k: int) -> None:
        launch(k)
        flying.append(len(rounds._flying))

    rounds.launch = counted  # type: ignore[method-assign]
    run(target, made, PROMPT, Request(9))
    assert flying == [1, *[2] * 7]  # nine tokens: the prompt's own, eight rounds


@pytest.mark.parametrize(
    "request_",
    [Request(9, Sampling(repetition_penalty=1.2)), Request(9, logprobs=2)],
    ids=["penalised", "logprobs"],
)
def test_other_answers_go_the_ordinary_way(request_: Request, tiny: Tiny) -> None:
    target, _ = recorded(tiny())
    assert not ahead(target, autoregressive(), request_)
    assert ahead(target, autoregressive(), Request(9))
    unsure = strategy("itself", target, tiny, True)
    unsure.length.min_confidence = 0.3
    assert not ahead(target, unsure, Request(9))
    walked = job(target, PROMPT, Request(9, Sampling(0.7)))
    made = autoregressive()
    assert made.writer(walked) is not None
    assert made.writer(replace(walked, chance=Walk([]))) is None


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(top_p=0.9, temperature=1)]
)
def test_scores_that_are_no_numbers_are_refused(sampling: Sampling, tiny: Tiny) -> None:
    target, _ = recorded(tiny())
    bad = job(target, PROMPT, Request(9, sampling))
    target.weights.norm.fill_(float("nan"))
    made = strategy("copies", target, tiny, True)
    with pytest.raises(NotANumber):
        made.decode(bad)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 4),
    st.booleans(),
)
def test_copies_are_max_grams(line: list[int], shortest: int, more: int, earliest: bool) -> None:
    longest = shortest + more
    ordinary = MaxGramDrafter(CPU, None, shortest, longest, earliest)
    ordinary.reset(line)
    on_device = Copies(shortest, longest, earliest)
    place = placed(line)
    ids, found = on_device.copied(place, 9)
    expected = ordinary.copy(line, 9)
    assert bool(found) == bool(expected.ids)
    matched = on_device.match(place)[1]
    assert int(matched) == (expected.matched[0] if expected.matched else 0)
    if expected.ids:
        assert ids.tolist() == expected.ids


def test_copies_that_do_not_pay_are_tried_now_and_then() -> None:
    """A round of eight tokens takes 1.3 of one: at first a draft is expected to give more, then
    none does, then one does."""
    seconds = {(0,): 1.0, (7,): 1.3, (15,): 1.6}
    copies, drafted = Copies(2, 12), list[int]()
    for _ in range(80):
        shape = copies.next(16, seconds)
        drafted.append(shape[0])
        copies.learn(shape, 0, 0)
    first = drafted.index(0)
    assert drafted[:first] == [7] * first and first < 16  # the gain has sunk below 0.3
    tries = [at for at, k in enumerate(drafted) if k and at > first]
    assert 2 <= len(tries) <= 6
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert gaps == sorted(gaps) and gaps[0] < gaps[-1]
    while not copies.next(16, seconds)[0]:
        pass
    copies.learn((7,), 0, 7)
    assert copies.next(16, seconds) == (15,)  # accepted whole
    copies.learn((15,), 0, 9)
    assert copies.next(16, seconds) == (7,)  # and pays now


@pytest.mark.parametrize("reason", [None, "no C compiler"])
def test_kernels_are_launched_where_they_run_alone(
    reason: str | None, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rounds, in passes that answers share, and where tokens are picked."""
    pytest.importorskip("triton")
    cuda, (target, _) = torch.device("cuda"), recorded(tiny())
    monkeypatch.setattr(fused, "broken", lambda device: reason)
    monkeypatch.setattr(ON_CUDA, "pick", None)
    use_kernels(cuda)
    assert (ON_CUDA.pick is None) == (reason is not None)
    shape = replace(target.shape, head_dim=16)
    assert kernels_for(shape, target.weights.layers, cuda) == (reason is None)
    assert not kernels_for(shape, target.weights.layers, CPU)
    monkeypatch.setattr(rounds, "runs_triton", lambda device: runs_triton(cuda))
    made = rounds.RecordedRounds(target, Copies(1, 3), target.context)
    assert (made._accept is rounds.accept) == (made._copy is None) == (reason is not None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(0.9, top_k=9, top_p=0.8)])
@pytest.mark.parametrize("kind", ["plain", "copies and a table", "itself"])
def test_graphs_on_cuda_write_what_the_ordinary_loop_writes(
    kind: str, sampling: Sampling, tiny: Tiny
) -> None:
    cuda, answers = torch.device("cuda"), []
    for record in (True, False):
        models = [LlamaBackend.load(tiny(), cuda, torch.float32) for _ in range(2)]
        for model in models:
            if record:
                model.record_passes(cuda_graphs())
        match kind:
            case "plain":
                made = autoregressive()
            case "itself":
                made = speculative(NeuralDrafter(models[1]), 3)
            case _:
                made = speculative(MaxGramDrafter(cuda, TABLE, passes=EVEN), 16)
        answers.append(run(models[0], made, PROMPT, Request(28, sampling, seed=4)).ids)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("accepted", [SHORT_COPY, 1])
def test_a_cheap_model_fills_the_pass_beside_copies_where_it_is_right(accepted: int) -> None:
    """As many tokens as a pass takes anyway if all are accepted, few if few are."""
    either = HybridRoundDraft(
        Copies(1, 3), Chain(lambda line, k, unread: line.ids[:k], parameters=1)
    )
    either.reset([1, 2, 3])
    seconds = {shape: 1.0 + 0.14 * (shape[0] > 0) + 0.03 * shape[1] for shape in either.first()}
    for _ in range(40):
        shape = either.next(WIDEST - 1, seconds)
        either.learn(shape, 0, min(shape[1], accepted))
    assert shape[1] == SHORT_COPY if accepted == SHORT_COPY else 0 < shape[1] < SHORT_COPY
