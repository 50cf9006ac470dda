"""Collection's fast path beside the loop: batches, scores and replays of whole answers, greedy and
sampled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from decoder_toys import (
    CPU,
    Tiny,
    grown,
    hybrid,
    max_gram,
    native,
    random_exit,
    recurrent,
)
from torch import Tensor

from collect.replay import known
from collect.replay.batch import Batch
from collect.replay.known import teacher_forced
from collect.replay.protocols import ReplayedLoop
from collect.replay.records import Replay
from collect.replay.registry import ADAPTERS, adapter_of
from collect.replay.replay import Draft, replay
from collect.replay.stack import Stack
from collect.replay.unbatched import UnbatchedReplay, live
from collect.replay.writer import Writer
from decoders.arms import ArmRecipe, DraftingRecipe, LengthRecipe, recipe
from decoders.backends.native import LlamaBackend
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import ContextTooLong, DraftpickError, NotANumber
from decoders.costs.measured import Costs
from decoders.engine import Engine
from decoders.lengths import FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.calm.strategy import Calm
from decoders.papers.cascades.strategies import SequenceCascade, TokenCascade
from decoders.papers.rules.lossy import Lossless
from decoders.protocols import Backend, Drafter, Strategy
from decoders.records import NAN, DecodeResult, Proposal, Request, Sampling, Verdict
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import neural, run, speculative
from decoders.verify import Coupled


def figures(made: Replay | DecodeResult) -> tuple[int, int, int, list[int]]:
    return made.rounds, made.drafted, made.accepted, made.widths


# -- replay ---------------------------------------------------------------------------------------


def test_a_replay_tells_the_length_rule() -> None:
    seen: list[tuple[int, int, float, float]] = []

    class Noting(FixedLength):
        def observe(self, stats: Any) -> None:
            seen.append((stats.drafted, stats.accepted, stats.draft_s, stats.verify_s))

    answer = [5, 1, 2, 3, 4, 9]
    guesses = {1: [1, 2], 4: [7]}
    loop = ReplayedLoop(Noting(2), 6, 0.5, lambda width: 10.0 * width)
    made = replay(answer, Draft(lambda at, k: guesses.get(at, [])[:k]), loop)
    assert figures(made) == (3, 3, 2, [1, 1, 1])
    assert seen == [(2, 2, 1.0, 30.0), (1, 0, 0.5, 20.0), (0, 0, 0.0, 10.0)]


@pytest.mark.parametrize("answer", [[], [7]])
def test_a_replay_of_hardly_anything(answer: list[int]) -> None:
    made = replay(answer, Draft(lambda at, k: []), ReplayedLoop(FixedLength(3), 3))
    assert figures(made) == (0, 0, 0, [])


# -- engines over tiny models ---------------------------------------------------------------------

PROMPTS = [[3], [3, 1, 4, 1, 5, 9, 2, 6], [2] * 15, [7, 11, 7, 11, 7], [1, 2, 3]]
EOS = (6, 13)
K = LengthRecipe(k=3)
SURE = LengthRecipe(k=4, min_confidence=0.4)
RECIPES = [
    recipe(name="autoregressive", kind="autoregressive"),
    recipe(name="small", kind="neural", drafter="x", length=K),
    recipe(name="small-sure", kind="neural", drafter="x", length=SURE),
    recipe(name="few-words", kind="neural", drafter="x", length=K),
    recipe(name="exit", kind="max_gram", length=K),  # kind is checked when the exit is opened
    recipe(name="exit-few-words", kind="neural", drafter="x", length=SURE),  # likewise
    recipe(name="copy", kind="max_gram", length=K),
    recipe(name="recurrent", kind="max_gram", length=K),
    recipe(name="recurrent-few-words", kind="neural", drafter="x", length=SURE),
    recipe(name="hybrid", kind="max_gram", length=LengthRecipe(k=5)),
    recipe(name="hybrid-few-words", kind="max_gram", length=LengthRecipe(k=5)),
]
WRITERS = [
    "small", "small-sure", "few-words", "exit", "exit-few-words", "recurrent", "recurrent-few-words"
]  # fmt: skip


def make_engine(tiny: Tiny, hf: bool = False) -> Engine:
    folder = tiny()
    target: Backend = HFBackend.load(folder, CPU, torch.float32) if hf else native(folder)

    def parts(recipe: ArmRecipe) -> SpeculativeDecoding:
        small = tiny(seed=0, num_hidden_layers=2)
        few = DraftVocab([1, 2, 3, 5, 6, 8, 9, 13], 16)
        drafters: dict[str, Callable[[], Drafter]] = {
            "autoregressive": lambda: NullDrafter(CPU),
            "small": lambda: NeuralDrafter(native(small)),
            "small-sure": lambda: NeuralDrafter(native(small)),
            "few-words": lambda: NeuralDrafter(
                native(tiny(seed=6, num_hidden_layers=2, vocab_size=few.size)), few
            ),
            "exit": lambda: random_exit(target, 2, seed=1, noise=0.05),
            "exit-few-words": lambda: random_exit(target, 2, seed=2, vocab=few, noise=0.05),
            "copy": lambda: max_gram([*range(1, 16), -1], shortest=1),
            "recurrent": lambda: recurrent(target, seed=1),
            "recurrent-few-words": lambda: recurrent(target, seed=2, vocab=few),
            "hybrid": lambda: hybrid(recurrent(target, seed=1)),
            "hybrid-few-words": lambda: hybrid(recurrent(target, seed=2, vocab=few)),
        }
        length = recipe.length.build() if isinstance(recipe, DraftingRecipe) else FixedLength(0)
        return SpeculativeDecoding(recipe.name, drafters[recipe.name](), Coupled(), length)

    class Given(Engine):
        """Its arms' parts are those above, whatever the recipes say."""

        def strategy(self, name: str) -> Strategy:
            if name not in self._strategies:
                self._strategies[name] = parts(self.arm(name))
            return super().strategy(name)

    return Given(target, {r.name: r for r in RECIPES}, eos_ids=EOS)


def batch_of(engine: Engine) -> Batch:
    # measured costs would want a longer context; lengths here are fixed, so any will do
    return Batch(engine, Costs((0.01,) * 4, {r.name: 0.001 for r in RECIPES}))


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> Engine:
    return make_engine(tiny)


def one_by_one(engine: Engine, most: int) -> list[list[int]]:
    return [engine.decode("autoregressive", p, Request(most)).ids for p in PROMPTS]


@pytest.mark.parametrize("most", [1, 2, 14])
def test_a_batch_equals_one_by_one(engine: Engine, most: int) -> None:
    out = batch_of(engine).target(PROMPTS, most)
    assert out.ids == one_by_one(engine, most)
    alone = np.stack([engine.prefill(p).embedding.numpy() for p in PROMPTS])
    assert out.embeddings.dtype == np.float32 and out.embeddings.shape == (5, 32)
    np.testing.assert_allclose(out.embeddings, alone, atol=1e-5)
    assert out.prefill_s > 0 and out.decode_s > 0


def test_a_transformers_target_is_decoded_one_by_one(tiny: Tiny, engine: Engine) -> None:
    hf = make_engine(tiny, hf=True)
    out = batch_of(hf).target(PROMPTS, 12)
    same = batch_of(engine).target(PROMPTS, 12)
    assert out.ids == same.ids
    np.testing.assert_allclose(out.embeddings, same.embeddings, atol=1e-4)


def test_prompts_are_checked_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(DraftpickError, match="empty"):
        batch_of(engine).target([[1], []], 4)
    with pytest.raises(ContextTooLong, match="90 tokens and asks for 10"):
        batch_of(engine).target([[1] * 90], 10)
    with pytest.raises(ValueError, match="0 seeds for 5 sampled answers"):
        batch_of(engine).target(PROMPTS, 10, 1.0)


def test_max_gram_alone_copies(engine: Engine) -> None:
    out = batch_of(engine).arm("copy", [[9, 4, 8, 9, 4], [3], [15]], 4)
    assert out.ids == [[8, 9, 4, 8], [4, 5, 6], []]  # 6 ends it; nothing follows 15
    assert out.embeddings is None


@pytest.mark.parametrize("context", [5, 12, 24])
def test_a_drafter_of_a_shorter_context_writes_no_further(tiny: Tiny, context: int) -> None:
    """Of five prompts, of 1 to 15 tokens, with 14 new ones it can follow none or some."""
    engine, most = make_engine(tiny), 14
    folder = tiny(seed=0, num_hidden_layers=2)
    small = LlamaBackend.load(folder, CPU, torch.float32, context=context)
    whole = batch_of(engine).arm("small", PROMPTS, most).ids
    engine._strategies["small"] = replace(engine.strategy("small"), drafter=NeuralDrafter(small))
    written = batch_of(engine).arm("small", PROMPTS, most)
    for prompt, ids, long in zip(PROMPTS, written.ids, whole, strict=True):
        assert ids == long[: max(0, context - len(prompt))]


@pytest.mark.parametrize("written", [False, True])
def test_answers_are_read_once_for_all_arms_and_loads(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    read: list[int] = []
    states_before = known.states_before

    def counted(stack: Stack, prompts: Any, answers: Any) -> Any:
        read.append(len(answers))
        return states_before(stack, prompts, answers)

    monkeypatch.setattr(known, "states_before", counted)
    batch, seeds, names = batch_of(engine), list(range(len(PROMPTS))), ("recurrent", "hybrid")
    greedy = batch.target(PROMPTS, 12).ids
    drawn = batch.target(PROMPTS, 12, 1.0, seeds).ids
    if not written:
        batch = batch_of(engine)
    found: list[Any] = []
    for _ in range(3):  # as at three loads
        for name in names:
            made: list[Any] = [batch.replay(name, PROMPTS, greedy, 12)]
            made.append(batch.replay(name, PROMPTS, drawn, 12, 1.0, seeds))
            found.append(made)
    assert found == found[:2] * 3
    assert read == ([] if written else [len(PROMPTS)] * 2)


def test_answers_asked_for_ahead_are_those_asked_for_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt is read once."""
    alone, seeds = batch_of(engine), [[*range(len(PROMPTS))], [*range(7, 7 + len(PROMPTS))]]
    also = [(1.0, seeds[0]), (1.0, seeds[1]), (0.5, seeds[1])]
    prompts: list[int] = []
    read = Writer._read

    def counting(writer: Writer, group: Any, rows: Any) -> None:
        prompts.append(len(group))
        read(writer, group, rows)

    expected = [alone.target(PROMPTS, 12), *(alone.target(PROMPTS, 12, *each) for each in also)]
    monkeypatch.setattr(Writer, "_read", counting)
    batch = batch_of(engine)
    made = [batch.target(PROMPTS, 12, also=also)]
    assert sum(prompts) == len(PROMPTS)
    made += [batch.target(PROMPTS, 12, *each) for each in reversed(also)][::-1]
    assert sum(prompts) == len(PROMPTS)
    for one, other in zip(made, expected, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.embeddings, other.embeddings, atol=1e-5)
    batch.target(PROMPTS, 12, *also[0])  # not kept for another time
    assert sum(prompts) == 2 * len(PROMPTS)


def test_a_sampled_answer_without_numbers_leaves_the_greedy_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Writer._choose

    def failing(writer: Writer, logits: Tensor, temperature: Tensor, *rest: Tensor) -> Tensor:
        return torch.where(temperature > 0, NAN, choose(writer, logits, temperature, *rest))

    monkeypatch.setattr(Writer, "_choose", failing)
    batch, drawn = batch_of(engine), (1.0, [*range(len(PROMPTS))])
    assert batch.target(PROMPTS, 12, also=[drawn]).ids == batch_of(engine).target(PROMPTS, 12).ids
    with pytest.raises(NotANumber):
        batch.target(PROMPTS, 12, *drawn)


def test_what_is_not_known_beforehand_is_not_taken_apart(engine: Engine) -> None:
    target = engine.target
    answers = teacher_forced(target, Stack.of_backend(target), [[1, 2]], [[3, 4]])
    loop = ReplayedLoop(FixedLength(2), 2)
    assert adapter_of(hybrid(neural(3, seed=7))).replay(answers, loop) is None
    assert adapter_of(hybrid(recurrent(target, seed=1))).replay(answers, loop) is not None

    class Other(MaxGramDrafter):
        """A subclass may draft otherwise."""

    assert adapter_of(Other(CPU)).replay(answers, loop) is None
    assert adapter_of(MaxGramDrafter(CPU)).replay(answers, loop) is not None


@pytest.mark.parametrize("adapters", ["usual", "no_adapters"])
@pytest.mark.parametrize("name", [*WRITERS, "copy"])
def test_agreement_is_the_drafter_s_guess_on_the_true_prefix(
    name: str, adapters: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    """A draft of one token every round: accepted exactly where the drafter agrees."""
    if adapters == "no_adapters":
        request.getfixturevalue(adapters)
    strategy = engine.strategy(name)
    single = SpeculativeDecoding(name, strategy.drafter, strategy.verifier, FixedLength(1))
    for prompt, answer in zip(PROMPTS, one_by_one(engine, 15), strict=True):
        agree = batch_of(engine).replay(name, [prompt], [answer], 15)[0].agree
        result = run(engine.target, single, prompt, Request(len(answer), eos_ids=()))
        assert result.ids == answer
        at, accepted = 1, 0
        for _ in range(result.rounds):
            if at < len(answer) - 1:
                accepted += agree[at]
                at += 1 + agree[at]
        assert accepted == result.accepted


def test_arms_that_cannot_be_batched_say_so(engine: Engine) -> None:
    for call in (
        lambda: batch_of(engine).arm("autoregressive", PROMPTS, 4),
        lambda: batch_of(engine).replay("autoregressive", PROMPTS, [[1]] * 5, 1),
    ):
        with pytest.raises(DraftpickError, match="autoregressive"):
            call()


# -- one query at a time --------------------------------------------------------------------------


@pytest.fixture
def no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every drafter takes the path of those that cannot be batched."""
    for name in list(ADAPTERS):
        monkeypatch.delitem(ADAPTERS, name)


@pytest.mark.every(3)
@pytest.mark.parametrize("most", [1, 2, 12])
@pytest.mark.parametrize("name", [*WRITERS, "copy"])
def test_a_drafter_writes_alone_what_it_writes_in_a_batch(
    name: str, most: int, engine: Engine, request: pytest.FixtureRequest
) -> None:
    batched = batch_of(engine).arm(name, PROMPTS, most).ids
    request.getfixturevalue("no_adapters")
    out = batch_of(engine).arm(name, PROMPTS, most)
    assert out.ids == batched
    assert out.replays is None and out.embeddings is None and out.decode_s > 0


def test_a_transformers_drafter_is_collected(tiny: Tiny, engine: Engine) -> None:
    """The same model behind another backend gives the same figures."""
    other = make_engine(tiny)
    drafter = NeuralDrafter(HFBackend.load(tiny(seed=0, num_hidden_layers=2), CPU, torch.float32))
    other._strategies["small"] = SpeculativeDecoding("small", drafter, Coupled(), FixedLength(3))
    written = [batch_of(each).arm("small", PROMPTS, 8).ids for each in (other, engine)]
    assert written[0] == written[1]
    answers = one_by_one(engine, 15)
    forced = batch_of(other).replay("small", PROMPTS, answers, 15)
    assert forced == batch_of(engine).replay("small", PROMPTS, answers, 15)


@pytest.mark.parametrize("every", [False, True])
def test_a_tree_is_collected_as_its_lead_and_as_it_runs(
    every: bool, tiny: Tiny, engine: Engine
) -> None:
    """Alone and at each token it is the chain that the same model drafts; its rounds are those of
    the loop, where side branches are accepted too."""
    trees, answers = make_engine(tiny), one_by_one(engine, 14)
    model = native(tiny(seed=0, num_hidden_layers=2))
    drafter = grown(model, None, TreeShape((3, 2), every), trees.target.context)
    trees._strategies["small"] = SpeculativeDecoding("small", drafter, Coupled(), FixedLength(3))
    written = [batch_of(each).arm("small", PROMPTS, 8).ids for each in (trees, engine)]
    assert written[0] == written[1]
    made = batch_of(trees).replay("small", PROMPTS, answers, 14)
    chains = batch_of(engine).replay("small", PROMPTS, answers, 14)
    assert [tree.agree for tree in made] == [chain.agree for chain in chains]
    assert sum(tree.rounds for tree in made) < sum(chain.rounds for chain in chains)


class Gullible(Coupled):
    """Takes every draft as it is."""

    lossless = False

    def verify(self, proposal: Proposal, target_logits: Any, *given: Any) -> Verdict:
        ids = proposal.ids.tolist()
        return Verdict(len(ids), int(target_logits[-1].argmax()), ids)


def test_arms_with_answers_of_their_own_are_run(tiny: Tiny) -> None:
    engine = make_engine(tiny)
    drafter = NeuralDrafter(native(tiny(seed=5, num_hidden_layers=2)))
    own: dict[str, Any] = {
        "small": TokenCascade("small", drafter, 0.5),
        "few-words": SequenceCascade("few-words", drafter, 1.0),
        "exit": Calm("exit", 0.9),
        "copy": SpeculativeDecoding("copy", drafter, Gullible(), FixedLength(3)),
    }
    engine._strategies.update(own)
    for name in own:
        out = batch_of(engine).arm(name, PROMPTS, 12)
        results = [engine.decode(name, prompt, Request(12)) for prompt in PROMPTS]
        assert out.ids == [result.ids for result in results]
        for made, result in zip(out.replays, results, strict=True):
            assert made.agree == []
            assert made.rounds == result.target_calls - 1 == sum(result.widths)
            assert figures(made)[1:] == figures(result)[1:]
        with pytest.raises(DraftpickError, match=f"'{name}' gives answers of its own"):
            batch_of(engine).replay(name, PROMPTS, [[1]] * 5, 1)
    assert all(made.rounds == 0 for made in batch_of(engine).arm("few-words", PROMPTS, 12).replays)


def test_lists_of_different_length_are_refused(engine: Engine) -> None:
    for name in ("small", "copy"):
        with pytest.raises(ValueError):
            batch_of(engine).replay(name, PROMPTS, [[1]], 1)


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_copied_is_not_charged_as_the_models(tiny: Tiny, apart: bool) -> None:
    """Also of a model that is run one query at a time, as no pass over many answers fits it."""

    class Apart(LlamaBackend):
        pass

    target, folder = native(tiny()), tiny(seed=1)
    model = (Apart if apart else LlamaBackend).load(folder, CPU, torch.float32)
    strategy = speculative(hybrid(NeuralDrafter(model), draft_cost=0.3), 8)
    adapter = adapter_of(strategy.drafter)
    assert adapter.counts_calls
    for prompt in PROMPTS:
        result = run(target, strategy, prompt, Request(28))
        known = teacher_forced(target, Stack.of_backend(target), [prompt], [result.ids])
        loop = ReplayedLoop(strategy.length, 28, agreement=False)
        batched = adapter.replay(known, loop)
        assert (batched is None) == apart
        (made,) = batched or UnbatchedReplay(strategy, target).replay(known, loop)
        assert figures(made) == figures(result)
        assert made.calls == result.draft_calls - 1  # the prompt's own
        assert made.calls < made.drafted
        assert live(result, counted=True).calls == result.draft_calls
        assert live(result, counted=False).calls is None


# -- sampled answers ------------------------------------------------------------------------------

SEEDS = [11, 12, 13, 14, 15]


def test_a_rule_that_writes_other_answers_is_run(tiny: Tiny) -> None:
    """Speculative sampling follows the target's law, not its answer to a seed."""
    engine = make_engine(tiny)
    engine._strategies["small"] = replace(engine.strategy("small"), verifier=Lossless())
    batch = batch_of(engine)
    assert batch.is_replayable("small") and not batch.is_replayable("small", 1.0)
    made = batch.live("small", PROMPTS, 9, 1.0, SEEDS)
    for prompt, seed, ids, replayed in zip(PROMPTS, SEEDS, made.ids, made.replays, strict=True):
        result = engine.decode("small", prompt, Request(9, Sampling(1.0), seed=seed))
        assert (ids, figures(replayed)) == (result.ids, figures(result))
