"""A tree of drafts changes how fast an answer comes, never the answer or its distribution. Siblings
of a draft cost the drafter nothing more, and it does not remember what one of them overtook."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cascade_toys import V
from decoder_toys import (
    CPU,
    Tiny,
    Watched,
    greedy,
    grown,
    max_gram,
    native,
    random_exit,
    watched,
)

from decoders.common.errors import DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part, cs_drafter
from decoders.protocols import Backend, Drafter, DraftRequest
from decoders.records import Proposal, Request, Sampling, Verdict
from decoders.sampling.filters import seen_mask
from decoders.sampling.randomness import Generator
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import (
    ListedLengths,
    ToyBackend,
    autoregressive,
    neural,
    run,
    speculative,
)
from decoders.verify.coupled import Coupled, layout, path


def tree(model: Backend, *branch: int, every: bool = False, slots: int = 512) -> Drafter:
    return grown(model, None, TreeShape(branch, every), slots)


# -- T = 0 ----------------------------------------------------------------------------------------


SHAPES = None, TreeShape((3, 2)), TreeShape((3, 2), every=True)  # None: a chain


def test_branches_save_rounds() -> None:
    """A second child catches what the likeliest one misses: more children, fewer target passes."""
    rounds = {branch: 0 for branch in ((1, 1, 1), (2, 2, 2), (6, 6, 6))}
    for seed in range(5):
        target = ToyBackend.random(6, seed)
        near = ToyBackend(target.table + 1.5 * ToyBackend.random(6, seed + 50).table)
        for branch in rounds:
            chain = speculative(tree(near, *branch), 3)
            rounds[branch] += run(target, chain, [2], Request(60)).rounds
        every = run(target, speculative(tree(near, 6, 6, 6, every=True), 3), [2], Request(61))
        assert every.rounds == 15  # all tokens are in it: 4 a round
    chain, two, six = rounds.values()
    assert chain > two > six


def test_a_tree_without_branches_is_the_chain() -> None:
    target = ToyBackend.random(6, seed=1)
    for seed in range(5):
        chain = run(target, speculative(neural(6, seed, 2.0), 3), [2], Request(20))
        for every in (False, True):
            strategy = speculative(tree(ToyBackend.random(6, seed), 1, every=every), 3)
            result = run(target, strategy, [2], Request(20))
            assert (result.ids, result.rounds) == (chain.ids, chain.rounds)
            assert (result.drafted, result.accepted) == (chain.drafted, chain.accepted)


def test_a_full_context(tiny: Tiny) -> None:
    """The answer may reach its last position, drafts and all. Where a tree's nodes do not fit any
    more, a chain does."""
    target = native(tiny())
    prompt = [1 + i % 7 for i in range(target.context - 12)]
    for shape in SHAPES:
        model = native(tiny(seed=5, num_hidden_layers=2))
        drafter = NeuralDrafter(model) if shape is None else grown(model, None, shape, 96)
        alone = run(target, autoregressive(), prompt, Request(12))
        result = run(target, speculative(drafter, 5), prompt, Request(12))
        assert result.ids == alone.ids and len(alone.ids) == 12
        assert result.drafted > result.rounds  # and it did draft


# -- a round's parts ------------------------------------------------------------------------------


def walked(ids: list[int], parents: list[int], target_ids: list[int]) -> Verdict:
    """The verdict where the target's argmax is target_ids: after the newest token, then each id."""
    logits = torch.nn.functional.one_hot(torch.tensor(target_ids), 10).double()
    proposal = Proposal(torch.tensor(ids), parents=tuple(parents))
    nobody: Any = None  # chance is not asked
    return Coupled().verify(proposal, logits, Sampling(), nobody, 0)


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
    assert shape.depths.tolist() == [0, 1, 1, 2, 2, 2]
    every = torch.ones(5, dtype=torch.bool)
    assert path(every, shape).tolist() == [True, False, True, False, False]
    assert path(torch.tensor([False, True, True, True, True]), shape).tolist() == [
        *(False, True, False, False, True)
    ]


def test_what_a_branch_has_seen() -> None:
    mask = seen_mask([4], torch.tensor([1, 2, 3]), 4, 5, (-1, -1, 0))
    assert [row.nonzero().flatten().tolist() for row in mask] == [[4], [1, 4], [2, 4], [1, 3, 4]]


@pytest.mark.parametrize(
    ("every", "drafts", "nodes"), [(False, [1, 1, 1], 6), (True, [1, 3, 6], 15)]
)
def test_a_pass_a_depth(every: bool, drafts: list[int], nodes: int) -> None:
    """The lead alone costs the drafter what a chain costs; every branch, one wider pass a depth."""
    model = Watched(ToyBackend.random(6, 1).table)
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
    model = Watched(target.table + 1.5 * ToyBackend.random(6, seed=53).table)
    strategy, first = speculative(tree(model, 3, 3, 3, every=every), 4), []
    before, after = lambda _: model.widths.clear(), lambda: first.append(model.widths[0])
    watched(strategy.drafter, before, after)
    result = run(target, strategy, [2], Request(60))
    assert result.ids == run(target, autoregressive(), [2], Request(60)).ids
    assert result.rounds < 40 and set(first) == {1, 2}


# -- siblings of a draft --------------------------------------------------------------------------


def widened(inner: Drafter, *branch: int, slots: int = 512) -> WidenedDrafter:
    return WidenedDrafter(inner, branch, slots)


def test_siblings_are_the_likeliest_beside_the_draft() -> None:
    model, context = ToyBackend.random(6, 3), [1, 4, 2]
    drafter = widened(NeuralDrafter(ToyBackend(model.table)), 3, 1, 2)
    drafter.reset(context[:-1])
    made = drafter.propose(context, greedy(4))
    assert made.parents == (-1, 0, 1, 2, -1, -1, 1)
    ids = made.ids.tolist()
    for depth, found in ((0, [0, 4, 5]), (1, [1]), (2, [2, 6]), (3, [3])):
        logits = model.prefill([*context, *ids[:depth]]).logits
        assert [ids[node] for node in found] == logits.topk(len(found)).indices.tolist()


def test_siblings_save_rounds_and_cost_no_draft() -> None:
    rounds, calls = {1: 0, 2: 0, 4: 0}, {1: 0, 2: 0, 4: 0}
    for seed in range(8):
        target = ToyBackend.random(V, seed)
        near = ToyBackend(target.table + 1.5 * ToyBackend.random(V, seed + 50).table)
        for width in rounds:
            nest = cs_drafter([near], max_gram(shortest=1), [[1, 3], [0, 1]], 1.0, 64)
            result = run(target, speculative(widened(nest, width), 8), [2], Request(60))
            rounds[width] += result.rounds
            calls[width] += result.draft_calls
    assert rounds[1] > rounds[2] > rounds[4]
    assert calls[4] < calls[1]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_copies_have_no_siblings(sampling: Sampling) -> None:
    """They are certain: the chain stays one, beside a model's draft that is not."""
    context, chance = [1, 2, 3, 1, 2, 3, 1], Generator(CPU, 0)
    copies = widened(max_gram(shortest=1), 3, 3)
    parts = [Part(neural(V, 7), 1), Part(max_gram([1, 2, 3, 4, 0], shortest=1), 2)]
    mixed = widened(HorizontalDrafter(parts), 3, 3, 3)
    for drafter in (copies, mixed):
        drafter.reset(context[:-1])
    made = copies.propose(context, DraftRequest(4, sampling, chance))
    assert (made.ids.tolist(), made.parents) == ([2, 3, 1, 2], None)
    made = mixed.propose(context, DraftRequest(3, sampling, chance))
    assert made.parents == (-1, 0, 1, -1, -1)
    assert len({int(made.ids[node]) for node in (0, 3, 4)}) == 3


def test_where_the_tree_does_not_fit_there_is_a_chain() -> None:
    drafter = widened(neural(V, 7), 4, 4, slots=10)
    drafter.reset([1, 2])
    assert drafter.propose([1, 2, 0], greedy(1)).parents is not None
    drafter.commit([1, 2, 0, 1])
    assert drafter.propose([1, 2, 0, 1], greedy(2)).parents is None


@pytest.mark.parametrize("seed", range(6))
def test_an_exit_with_siblings_drafts_as_one_that_has_read_all(tiny: Tiny, seed: int) -> None:
    """After every round, whatever was accepted, its next draft is that of a fresh one."""
    target, fresh = (native(tiny(), torch.float64) for _ in range(2))
    exits = [widened(random_exit(model, 1, seed, noise=0.1), 3, 3) for model in (target, fresh)]
    drafted = watched(exits[0].inner)
    strategy = speculative(exits[0], ListedLengths([3, 0, 2]))
    result = run(target, strategy, [3, 1, 4], Request(16))
    assert result.accepted > 0 and len(drafted) > 4
    for context, _, made in drafted:
        fresh.prefill(context[:-1])
        exits[1].inner.reset(context[:-1])
        asked = DraftRequest(len(made.ids), Sampling(), Generator(CPU, 0), needs_raw=True)
        assert exits[1].inner.propose(context, asked).ids.equal(made.ids)


def test_more_children_than_tokens() -> None:
    with pytest.raises(DraftpickError, match=r"5 children a node .* not 4; lower `branch`"):
        tree(ToyBackend.random(4, 0), 5, every=True)
