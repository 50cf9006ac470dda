"""D17: a tree of drafts changes how fast an answer comes, never the answer or its distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Tiny, generate, greedy, grown, native, transformers_model
from effort import examples, slow_after
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.arms import load_arms, recipe
from decoders.backends.transformers.hf import HFBackend
from decoders.common.errors import DraftpickError
from decoders.lengths import AdaptiveLength, FixedLength
from decoders.methods.catch_up import LATER
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.drafter import TreeDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.protocols import Backend, Drafter, DraftLength, DraftRequest
from decoders.records import Proposal, Request, Sampling, Verdict
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.filters import seen_mask
from decoders.sampling.randomness import RandomSource
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import ListedLengths, ToyBackend, autoregressive, run, speculative
from decoders.verify import Lossless
from decoders.verify import tree as tree_module
from decoders.verify.tree import layout, path, verify_tree

EXACT = 1e-6
PROMPT = [0, 1, 0]
V = 5


def tree(model: Backend, *branch: int, every: bool = False, slots: int = 512) -> Drafter:
    return grown(model, None, TreeShape(branch, every), slots)


def toy_tree(vocab: int, seed: int, *branch: int, every: bool = False) -> Drafter:
    return tree(ToyBackend.random(vocab, seed, 1.0), *branch, every=every)


# -- T = 0 ----------------------------------------------------------------------------------------

shapes = st.builds(
    TreeShape, st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple), st.booleans()
)
models: st.SearchStrategy[Callable[[ToyBackend], ToyBackend]] = st.one_of(
    st.builds(lambda seed: lambda target: ToyBackend.random(V, seed), st.integers(0, 99)),
    st.just(lambda target: ToyBackend(target.table)),  # agrees always
    st.just(lambda target: ToyBackend(-target.table)),  # agrees hardly ever
)
lengths: st.SearchStrategy[DraftLength] = st.one_of(
    st.builds(FixedLength, st.integers(0, 5), st.sampled_from([0.0, 0.4, 0.8])),
    st.builds(AdaptiveLength, st.integers(1, 5)),
    st.builds(ListedLengths, st.lists(st.integers(0, 4), min_size=1, max_size=5)),
)


@given(
    st.integers(0, 999),
    st.lists(st.integers(0, V - 1), min_size=1, max_size=8),
    models,
    shapes,
    lengths,
    st.integers(1, 25),
    st.sets(st.integers(0, V - 1), max_size=2),
    st.sampled_from([1.0, 1.0, 1.6, 0.7]),
    st.booleans(),
)
@examples(200)
def test_the_target_s_own_ids(
    seed: int,
    prompt: list[int],
    model: Callable[[ToyBackend], ToyBackend],
    shape: TreeShape,
    length: DraftLength,
    most: int,
    eos: set[int],
    penalty: float,
    few: bool,
) -> None:
    target = ToyBackend.random(V, seed)
    vocab = DraftVocab([0, 2, 4], V) if few else None
    backend = ToyBackend.random(vocab.size, seed) if vocab else model(target)
    drafter = grown(backend, vocab, shape, target.context)
    request, chunks = Request(most, Sampling(repetition_penalty=penalty)), list[list[int]]()
    alone = run(target, autoregressive(), prompt, request, eos_ids=tuple(eos))
    strategy = speculative(drafter, length)
    result = run(target, strategy, prompt, request, eos_ids=tuple(eos), emit=chunks.append)
    assert (result.ids, result.finish_reason) == (alone.ids, alone.finish_reason)
    assert result.target_calls == 1 + result.rounds <= alone.target_calls
    # the books
    assert [token for chunk in chunks for token in chunk] == result.ids
    assert all(chunks) and len(chunks) == result.rounds + 1
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    assert result.accepted_per_position == sorted(result.accepted_per_position, reverse=True)
    cut = 1 + result.accepted + result.rounds - len(result.ids)
    assert cut in ((0, 1) if result.finish_reason == "eos" else (0,))
    assert result.draft_calls == drafter.calls


PROMPTS = [[3], [3, 1, 4, 1, 5, 9], [2] * 9, [7, 11, 7, 11, 7]]
SHAPES = {"lead": TreeShape((3, 2)), "every": TreeShape((3, 2), every=True)}


def tiny_tree(tiny: Tiny, kind: str, shape: str) -> Drafter:
    folder = tiny(seed=5, num_hidden_layers=2)
    if kind == "reduced":
        vocab = DraftVocab([1, 2, 3, 5, 8, 9, 13], 16)
        folder = tiny(seed=6, num_hidden_layers=2, vocab_size=vocab.size)
        return grown(native(folder), vocab, SHAPES[shape], 96)
    model = HFBackend.load(folder, CPU, torch.float32) if kind == "hf" else native(folder)
    return grown(model, None, SHAPES[shape], 96)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["native", "hf", "reduced"])
def test_ids_equal_transformers_generate(kind: str, shape: str, tiny: Tiny) -> None:
    model = transformers_model(tiny())
    target: Any = HFBackend.load(tiny(), CPU, torch.float32) if kind == "hf" else native(tiny())
    strategy, accepted = speculative(tiny_tree(tiny, kind, shape), 4), 0
    for prompt in PROMPTS:
        for penalty in (1.0, 1.3):
            theirs = generate(model, prompt, 16, repetition_penalty=penalty)
            result = run(
                target, strategy, prompt, Request(16, Sampling(repetition_penalty=penalty))
            )
            assert result.ids == theirs
            accepted += result.accepted
    assert accepted > 0


def test_a_target_with_an_exit_open(tiny: Tiny) -> None:
    """Another arm's exit, which keeps states of every position, is fed by the tree too."""
    target, model = native(tiny()), transformers_model(tiny())
    target.open_exit(1)
    strategy = speculative(tiny_tree(tiny, "native", "every"), 3)
    for prompt in PROMPTS:
        assert run(target, strategy, prompt, Request(16)).ids == generate(model, prompt, 16)


def test_branches_save_rounds() -> None:
    """A second child catches what the likeliest one misses: more children, fewer target passes."""
    rounds = {branch: 0 for branch in ((1, 1, 1), (2, 2, 2), (6, 6, 6))}
    for seed in range(5):
        target = ToyBackend.random(6, seed)
        near = ToyBackend(target.table + 1.5 * ToyBackend.random(6, seed + 50).table)
        for branch in rounds:
            rounds[branch] += run(
                target, speculative(tree(near, *branch), 3), [2], Request(60)
            ).rounds
        strategy = speculative(tree(near, 6, 6, 6, every=True), 3)
        assert (
            run(target, strategy, [2], Request(61)).rounds == 15
        )  # all tokens are in it: 4 a round
    chain, two, six = rounds.values()
    assert chain > two > six


def test_a_tree_without_branches_is_the_chain() -> None:
    target = ToyBackend.random(6, seed=1)
    for seed in range(5):
        chain = run(
            target, speculative(NeuralDrafter(ToyBackend.random(6, seed)), 3), [2], Request(20)
        )
        for every in (False, True):
            strategy = speculative(tree(ToyBackend.random(6, seed), 1, every=every), 3)
            result = run(target, strategy, [2], Request(20))
            assert (result.ids, result.rounds) == (chain.ids, chain.rounds)
            assert (result.drafted, result.accepted) == (chain.drafted, chain.accepted)


def test_a_full_context(tiny: Tiny) -> None:
    """Where the nodes do not fit any more, a chain does."""
    target = native(tiny())
    prompt = [1 + i % 7 for i in range(target.context - 12)]
    for shape in SHAPES:
        drafter = tiny_tree(tiny, "native", shape)
        alone = run(target, autoregressive(), prompt, Request(12))
        result = run(target, speculative(drafter, 5), prompt, Request(12))
        assert result.ids == alone.ids and len(alone.ids) == 12
        assert result.drafted > result.rounds  # and it did draft


# -- T > 0 ----------------------------------------------------------------------------------------

SAMPLINGS = {
    "plain": Sampling(1.0),
    "top_k": Sampling(1.2, top_k=2),  # fewer tokens than children
    "top_p": Sampling(1.0, top_p=0.7),
    "penalty": Sampling(1.0, repetition_penalty=1.7),
    "all": Sampling(1.3, top_k=3, top_p=0.9, repetition_penalty=0.8),
}


def toy_logits(target: ToyBackend) -> Callable[[list[int]], Tensor]:
    return lambda context: target.table[context[-2:][0], context[-1]]


def distribution_error(
    strategy: Any, prompt: list[int], request: Request, eos: tuple[int, ...] = ()
) -> float:
    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    distribution = loop_distribution(target, strategy, prompt, request, eos)
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(distribution, reference_distribution(target.next_logits, prompt, request, eos))


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("branch", "every"), [((2,), False), ((3,), False), ((2,), True)])
def test_children_drawn_without_replacement_keep_the_distribution(
    branch: tuple[int, ...], every: bool, sampling: str
) -> None:
    request = Request(3 if every else 4, SAMPLINGS[sampling])
    assert (
        distribution_error(speculative(toy_tree(3, 7, *branch, every=every), 2), PROMPT, request)
        < EXACT
    )


@pytest.mark.parametrize(
    ("sampling", "shape"),
    slow_after(
        2,
        [
            ("top_k", TreeShape((2, 2))),
            ("top_k", TreeShape((2, 2), every=True)),
            ("all", TreeShape((2, 2))),
            ("plain", TreeShape((2, 2))),
            ("plain", TreeShape((2, 1), every=True)),  # a chain along each branch
            ("all", TreeShape((2, 1), every=True)),
        ],
    ),
)
def test_two_depths_keep_the_distribution(sampling: str, shape: TreeShape) -> None:
    drafter = grown(ToyBackend.random(3, 7, 1.0), None, shape, 512)
    assert (
        distribution_error(speculative(drafter, 2), PROMPT, Request(4, SAMPLINGS[sampling])) < EXACT
    )


def test_a_chain_after_the_children_keeps_the_distribution() -> None:
    assert (
        distribution_error(
            speculative(toy_tree(3, 7, 2), 2), [2], Request(4, Sampling(1.0, top_k=2))
        )
        < EXACT
    )


@pytest.mark.parametrize("every", [False, True])
def test_answers_that_end_early_keep_the_distribution(every: bool) -> None:
    strategy = speculative(toy_tree(3, 8, 2, 1, every=every), ListedLengths([1, 0, 2]))
    assert distribution_error(strategy, PROMPT, Request(3, Sampling(1.0)), eos=(1,)) < EXACT


def test_a_draft_cut_short_keeps_the_distribution() -> None:
    strategy = speculative(toy_tree(3, 8, 2, 2, every=True), FixedLength(2, min_confidence=0.45))
    assert distribution_error(strategy, PROMPT, Request(4, Sampling(1.2, top_k=2))) < EXACT


@pytest.mark.parametrize("every", [False, True])
def test_a_reduced_vocabulary_keeps_the_distribution(every: bool) -> None:
    vocab = DraftVocab([0, 2], 3)
    model = ToyBackend.random(vocab.size, 8, 1.0)
    drafter = grown(model, vocab, TreeShape((2,), every), 512)
    assert distribution_error(speculative(drafter, 2), PROMPT, Request(3, SAMPLINGS["all"])) < EXACT


class Fixed:
    """Drafts the same tree every round: no chance in it, so that its distributions are one-hot."""

    parameters = calls = 0
    context = 512

    def __init__(self, ids: list[int], parents: list[int]) -> None:
        self._ids, self._parents = ids, parents

    def reset(self, prompt_ids: list[int]) -> None:
        pass

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        nodes = len(self._ids) if asked.k > 1 else sum(parent < 0 for parent in self._parents)
        return Proposal(torch.tensor(self._ids[:nodes]), parents=tuple(self._parents[:nodes]))

    def commit(self, context: list[int]) -> None:
        pass


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_tree_that_is_not_drawn_keeps_the_distribution(sampling: str) -> None:
    strategy = speculative(Fixed([0, 2, 1, 0, 2], [-1, -1, 0, 0, 1]), 2)
    assert distribution_error(strategy, PROMPT, Request(4, SAMPLINGS[sampling])) < EXACT


# -- the check itself can fail --------------------------------------------------------------------


class NoResidual(Lossless):
    """Wrong on purpose: a second child is tried against the target's own distribution again."""

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        if proposal.parents is None:
            return super().verify(proposal, target_logits, sampling, chance)
        real = tree_module.try_children

        def careless(probs: Tensor, draft: Proposal, shape: Any) -> tuple[Tensor, Tensor]:
            left = real(probs, draft, shape)[1]
            assert draft.probs is not None
            at = draft.ids.unsqueeze(1)
            own = probs[shape.row].gather(1, at) / draft.probs.gather(1, at)
            return own.squeeze(1), left

        tree_module.try_children = careless
        try:
            return verify_tree(proposal, target_logits, sampling, chance)
        finally:
            tree_module.try_children = real


class Forgetful(TreeDrafter):
    """Wrong on purpose: says that every child was drawn from the whole distribution."""

    def propose(self, *args: Any, **kwargs: Any) -> Proposal:
        made = super().propose(*args, **kwargs)
        assert made.probs is not None
        return Proposal(made.ids, made.probs[:1].expand_as(made.probs), made.parents)


def test_a_wrong_rule_is_caught() -> None:
    wrong = speculative(toy_tree(3, 7, 2), 2, NoResidual())
    assert distribution_error(wrong, PROMPT, Request(3, Sampling(1.0))) > 1e-3


def test_a_draft_that_lies_about_its_distribution_is_caught() -> None:
    liar = Forgetful(ToyBackend.random(3, 7, 1.0), None, (2,), 512)
    assert distribution_error(speculative(liar, 1), PROMPT, Request(3, Sampling(1.0))) > 1e-3


def test_seeds_reproduce() -> None:
    target = ToyBackend.random(6, seed=0, sharpness=0.5)
    for every in (False, True):
        strategy = speculative(toy_tree(6, 1, 3, 2, every=every), 3)
        one, again, other = (
            run(target, strategy, [1], Request(14, Sampling(1.0), seed=seed)).ids
            for seed in (5, 5, 6)
        )
        assert one == again != other


# -- a round's parts ------------------------------------------------------------------------------


class Unasked:
    """Chance that no one may ask."""


def walked(ids: list[int], parents: list[int], target_ids: list[int]) -> Verdict:
    """The verdict where the target's argmax is target_ids: after the newest token, then each id."""
    logits = torch.nn.functional.one_hot(torch.tensor(target_ids), 10).double()
    proposal = Proposal(torch.tensor(ids), parents=tuple(parents))
    return verify_tree(proposal, logits, Sampling(), Unasked())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target_ids", "nodes", "following"),
    [
        ([4, 9, 9, 9, 9, 9], [], 4),  # none of the first children
        ([2, 9, 9, 9, 9, 9], [1], 9),
        ([1, 3, 9, 7, 9, 9], [0, 2], 7),
        ([1, 5, 9, 9, 6, 9], [0, 3], 6),
        ([2, 3, 8, 9, 9, 0], [1, 4], 0),  # the other branch's 3 does not count
        ([1, 8, 9, 9, 9, 9], [0], 8),  # nor the other branch's 8
    ],
)
def test_the_target_walks_the_tree(target_ids: list[int], nodes: list[int], following: int) -> None:
    #          1     2     3 after 1, 5 after 1, 8 after 2
    verdict = walked([1, 2, 3, 5, 8], [-1, -1, 0, 0, 1], target_ids)
    assert (verdict.path, verdict.next_token) == (nodes, following)
    assert verdict.accepted == len(nodes) and verdict.draft_ids == [1, 2, 3, 5, 8]
    assert verdict.ids == [*([1, 2, 3, 5, 8][node] for node in nodes), following]


def test_an_elder_sibling_goes_first() -> None:
    shape = layout((-1, -1, 0, 0, 1), CPU)
    assert [nodes.tolist() for nodes in shape.ranks] == [[0, 2, 4], [1, 3]]
    every = torch.ones(5, dtype=torch.bool)
    assert path(every, shape).tolist() == [True, False, True, False, False]
    assert path(torch.tensor([False, True, True, True, True]), shape).tolist() == [
        *(False, True, False, False, True)
    ]


def test_what_a_branch_has_seen() -> None:
    mask = seen_mask([4], torch.tensor([1, 2, 3]), 4, 5, (-1, -1, 0))
    assert [row.nonzero().flatten().tolist() for row in mask] == [[4], [1, 4], [2, 4], [1, 3, 4]]


class Counted(ToyBackend):
    """Notes how many tokens each pass reads."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table)
        self.widths: list[int] = []

    def extend(self, ids: Tensor, *args: Any) -> Tensor:
        self.widths.append(len(ids))
        return super().extend(ids, *args)


@pytest.mark.parametrize(
    ("every", "drafts", "nodes"), [(False, [1, 1, 1], 6), (True, [1, 3, 6], 15)]
)
def test_a_pass_a_depth(every: bool, drafts: list[int], nodes: int) -> None:
    """The lead alone costs the drafter what a chain costs; every branch, one wider pass a depth."""
    model = Counted(ToyBackend.random(6, 1).table)
    drafter = tree(model, 3, 2, every=every)
    drafter.reset([1, 2])
    model.widths.clear()
    made = drafter.propose([1, 2, 3], greedy(3))
    assert model.widths == drafts
    assert (len(made.ids), made.depth) == (nodes, 3)


@pytest.mark.parametrize("every", [False, True])
def test_what_stands_is_not_read_again(every: bool) -> None:
    """A round leaves the drafter two tokens to read, also where a side branch was accepted."""
    target = ToyBackend.random(6, seed=3)
    model = Counted(target.table + 1.5 * ToyBackend.random(6, seed=53).table)
    strategy, first = speculative(tree(model, 3, 3, 3, every=every), 4), []
    propose = strategy.drafter.propose

    def watched(*args: Any, **kwargs: Any) -> Proposal:
        model.widths.clear()
        made = propose(*args, **kwargs)
        first.append(model.widths[0])
        return made

    strategy.drafter.propose = watched  # type: ignore[method-assign]
    result = run(target, strategy, [2], Request(60))
    assert result.ids == run(target, autoregressive(), [2], Request(60)).ids
    assert result.rounds < 40 and set(first) == {1, 2}


def test_a_drafter_that_sat_out_catches_up_in_commit() -> None:
    target = ToyBackend.random(5, seed=2)
    for every in (False, True):
        model = ToyBackend.random(5, 3, 1.0)
        strategy = speculative(tree(model, 2, 2, every=every), ListedLengths([3, 0, 0, 0, 2, 0]))
        fresh, seen = toy_tree(5, 3, 2, 2, every=every), []
        propose = strategy.drafter.propose

        def watched(context: list[int], asked: DraftRequest, propose: Any = propose) -> Proposal:
            assert len(context) - model.length <= LATER  # noqa: B023
            made = propose(context, asked)
            seen.append((list(context), asked.k, made))  # noqa: B023
            return made

        strategy.drafter.propose = watched  # type: ignore[method-assign]
        result = run(target, strategy, [1, 4, 2], Request(30))
        assert result.ids == run(target, autoregressive(), [1, 4, 2], Request(30)).ids
        assert len(seen) > 5
        for context, k, made in seen:
            fresh.reset(context[:-1])
            again = fresh.propose(context, greedy(k))
            assert again.ids.tolist() == made.ids.tolist() and again.parents == made.parents


# -- the recipe -----------------------------------------------------------------------------------


def test_a_recipe_becomes_an_arm(tiny: Tiny, tmp_path: Path) -> None:
    drafter = tiny(seed=5, num_hidden_layers=2)
    file = tmp_path / "arms.yaml"
    file.write_text(
        f"arms: {{oak: {{kind: tree, drafter: {drafter}, branch: [3, 2], length: {{k: 3}}}}}}"
    )
    arm = load_arms(file)["oak"]
    target, model = native(tiny()), transformers_model(tiny())
    strategy: Any = arm.build(target, None)
    assert arm.lossless and isinstance(strategy.drafter, WidenedDrafter)
    assert run(target, strategy, PROMPTS[1], Request(14)).ids == generate(model, PROMPTS[1], 14)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "branch"),
        ({"branch": []}, "branch"),
        ({"branch": [0]}, "branch"),
        ({"branch": [65]}, "branch"),
        ({"branch": [2, 2, 2], "length": {"k": 2}}, "3 depths"),
        ({"branch": [8, 8, 8], "every": True}, "1096 nodes"),
        ({"branch": [2], "verifier": "lossy"}, "verifier"),
    ],
)
def test_one_mistake(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        recipe(kind="tree", drafter="x", **fields)


def test_more_children_than_tokens() -> None:
    with pytest.raises(DraftpickError, match=r"5 children a node .* not 4; lower `branch`"):
        toy_tree(4, 0, 5, every=True)


def test_a_target_without_trees(tiny: Tiny) -> None:
    target = HFBackend.load(tiny(), CPU, torch.float32)
    target.model.config._attn_implementation = "flash_attention_2"
    arm = recipe(kind="tree", name="oak", drafter=str(tiny(seed=5)), branch=[2])
    with pytest.raises(DraftpickError, match=r"'oak' needs a target that can read a tree"):
        arm.build(target, None)
