"""A tree of drafts changes how fast an answer comes, never the answer or its distribution. Siblings
of a draft cost the drafter nothing more, and it does not remember what one of them overtook."""

from __future__ import annotations

import pytest
from cascade_toys import V
from decoder_toys import (
    CPU,
    Tiny,
    Watched,
    greedy,
    grown,
    max_gram,
    native,
    watched,
)

from decoders.common.errors import DraftpickError
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part
from decoders.protocols import Backend, Drafter, DraftRequest
from decoders.records import Request, Sampling
from decoders.sampling.randomness import Generator
from decoders.sampling.tree_shape import TreeShape
from decoders.testing.toys import (
    ToyBackend,
    autoregressive,
    neural,
    run,
    speculative,
)


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


def test_more_children_than_tokens() -> None:
    with pytest.raises(DraftpickError, match=r"5 children a node .* not 4; lower `branch`"):
        tree(ToyBackend.random(4, 0), 5, every=True)
