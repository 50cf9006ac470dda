"""A cascade's leading drafts with siblings. The target's own ids and distribution, a tree that
costs the drafter nothing more, and a drafter that does not remember what a sibling overtook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cascade_toys import V
from decoder_toys import CPU, greedy, max_gram, native, random_exit
from hypothesis import strategies as st

from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.horizontal import HorizontalDrafter, Part, cs_drafter
from decoders.protocols import Drafter, DraftRequest
from decoders.records import Proposal, Request, Sampling
from decoders.sampling.randomness import Generator
from decoders.testing.toys import ListedLengths, ToyBackend, neural, run, speculative

branches = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def widened(inner: Drafter, *branch: int, slots: int = 512) -> WidenedDrafter:
    return WidenedDrafter(inner, branch, slots)


# -- temperature 0 --------------------------------------------------------------------------------


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


# -- sampled: every outcome walked ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_an_exit_with_siblings_drafts_as_one_that_has_read_all(
    tiny: Callable[..., Path], seed: int
) -> None:
    """After every round, whatever was accepted, its next draft is that of a fresh one."""
    target, fresh = (native(tiny(), torch.float64) for _ in range(2))
    exits = [widened(random_exit(model, 1, seed, noise=0.1), 3, 3) for model in (target, fresh)]
    drafted, propose = list[tuple[list[int], list[int]]](), exits[0].inner.propose

    def watched(context: list[int], *arguments: Any) -> Proposal:
        made = propose(context, *arguments)
        drafted.append((list(context), made.ids.tolist()))
        return made

    exits[0].inner.propose = watched  # type: ignore[method-assign]
    strategy = speculative(exits[0], ListedLengths([3, 0, 2]))
    result = run(target, strategy, [3, 1, 4], Request(16))
    assert result.accepted > 0 and len(drafted) > 4
    for context, ids in drafted:
        fresh.prefill(context[:-1])
        exits[1].inner.reset(context[:-1])
        again = exits[1].inner.propose(
            context, DraftRequest(len(ids), Sampling(), Generator(CPU, 0), 0.0, True)
        )
        assert again.ids.tolist() == ids
