"""D17 over D15: a cascade's leading drafts with siblings. The target's own ids and distribution, a
tree that costs the drafter nothing more, and a drafter that does not remember what a sibling
overtook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cascade_toys import V, cascades, part_of_vocabulary, toy, vertical
from decoder_toys import CPU, generate, greedy, max_gram, native, random_exit, transformers_model
from effort import examples, slow_after
from exactness import PROMPT, SAMPLINGS, check, small_llama
from hypothesis import given
from hypothesis import strategies as st

from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.horizontal import HorizontalDrafter, Part, cs_drafter
from decoders.protocols import Drafter, DraftRequest, work
from decoders.records import Proposal, Request, Sampling
from decoders.sampling.randomness import Generator
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import (
    ListedLengths,
    ToyBackend,
    autoregressive,
    neural,
    run,
    speculative,
)

branches = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def widened(inner: Drafter, *branch: int, slots: int = 512) -> WidenedDrafter:
    return WidenedDrafter(inner, branch, slots)


# -- temperature 0 --------------------------------------------------------------------------------


@given(
    st.integers(0, 999),
    st.lists(st.integers(0, V - 1), min_size=1, max_size=10),
    cascades,
    branches,
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 30),
    st.sets(st.integers(0, V - 1), max_size=2),
    st.sampled_from([1.0, 1.0, 1.6]),
)
@examples(200)
def test_every_nest_writes_the_target_s_own_ids(
    seed: int,
    prompt: list[int],
    make: Callable[[], Drafter],
    branch: tuple[int, ...],
    pattern: list[int],
    most: int,
    eos: set[int],
    penalty: float,
) -> None:
    target = ToyBackend.random(V, seed)
    request, chunks = Request(most, Sampling(repetition_penalty=penalty)), list[list[int]]()
    alone = run(target, autoregressive(), prompt, request, eos_ids=tuple(eos))
    strategy = speculative(widened(make(), *branch), ListedLengths(pattern))
    result = run(target, strategy, prompt, request, eos_ids=tuple(eos), emit=chunks.append)
    assert (result.ids, result.finish_reason) == (alone.ids, alone.finish_reason)
    assert result.target_calls == 1 + result.rounds <= alone.target_calls
    assert [token for chunk in chunks for token in chunk] == result.ids
    assert result.draft_calls == strategy.drafter.calls
    assert result.draft_work == work(strategy.drafter.inner)
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    cut = 1 + result.accepted + result.rounds - len(result.ids)
    assert cut in ((0, 1) if result.finish_reason == "eos" else (0,))


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


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_ids_equal_transformers_generate(penalty: float, tiny: Any) -> None:
    model, target, accepted = transformers_model(tiny()), native(tiny()), 0
    nest = cs_drafter(
        [native(tiny(seed=5, num_hidden_layers=2))], max_gram(shortest=1), [[2, 3], [0, 3]], 2.0, 64
    )
    for prompt in ([3], [3, 1, 4, 1, 5, 9], [7, 11, 7, 11, 7]):
        request = Request(16, Sampling(repetition_penalty=penalty))
        result = run(target, speculative(widened(nest, 4, 2), 64), prompt, request)
        assert result.ids == generate(model, prompt, 16, repetition_penalty=penalty)
        accepted += result.accepted
    assert accepted > 0


@given(st.integers(0, 99), branches, st.lists(st.integers(0, 5), min_size=1, max_size=4))
@examples(60)
def test_what_fell_is_forgotten(seed: int, branch: tuple[int, ...], pattern: list[int]) -> None:
    """Each draft is what a drafter would say that has just read what is accepted."""

    def nest() -> Drafter:
        verifier_models = [toy(1, V), toy(2, V)]
        return cs_drafter(
            verifier_models, max_gram(shortest=1), [[1, 1, 2], [0, 1, 1], [0, 0, 2]], 2.0, 9
        )

    asked: list[tuple[list[int], int, list[int]]] = []

    class Told(WidenedDrafter):
        def propose(self, context: list[int], wanted: DraftRequest) -> Proposal:
            made = super().propose(context, wanted)
            asked.append((list(context), wanted.k, made.ids.tolist()))
            return made

    run(
        toy(seed, V),
        speculative(Told(nest(), branch, 512), ListedLengths(pattern)),
        [1, 2],
        Request(25),
    )
    for context, k, ids in asked:
        fresh = widened(nest(), *branch)
        fresh.reset(context[:-1])
        assert fresh.propose(context, greedy(k)).ids.tolist() == ids


# -- sampled: every outcome walked ----------------------------------------------------------------

NESTS: dict[str, Callable[[], Drafter]] = {
    "neural": lambda: neural(3, 7),
    "vertical": lambda: vertical(toy(11), neural(3, 7), 2, 2.0),
    "part-of-vocabulary": lambda: vertical(part_of_vocabulary([0, 2], 3, 5), neural(3, 7), 2, 2.0),
    "horizontal": lambda: HorizontalDrafter(
        [Part(neural(3, 7), 1), Part(max_gram([1, 2, -1], shortest=1), 1)]
    ),
    "cs-drafting": lambda: cs_drafter(
        [toy(11), toy(12)], max_gram(shortest=1), [[1, 1, 1], [0, 1, 1], [0, 0, 2]], 2.0, 8
    ),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("branch", [(2,), pytest.param((3, 2), marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", slow_after(1, ["all", "plain"]))
@pytest.mark.parametrize("name", NESTS)
def test_the_distribution_is_the_target_s(
    name: str, sampling: str, branch: tuple[int, ...]
) -> None:
    target, request = toy(3), Request(4, SAMPLINGS[sampling])
    distribution = loop_distribution(
        target, speculative(widened(NESTS[name](), *branch), 2), PROMPT, request
    )
    check(distribution, reference_distribution(target.next_logits, PROMPT, request))


@pytest.mark.parametrize("sampling", ["plain", "all"])
@pytest.mark.parametrize(("pattern", "most"), [([2], 3), ([0, 0, 2], 4)])
def test_an_exit_with_siblings_keeps_the_distribution(
    tiny: Callable[..., Path], sampling: str, pattern: list[int], most: int
) -> None:
    """Its adapter reads what was accepted, whichever sibling it was."""
    target, fresh = small_llama(tiny), small_llama(tiny)
    request = Request(most, SAMPLINGS[sampling])
    exit_ = widened(random_exit(target, 1, seed=2), 2, 2)
    distribution = loop_distribution(
        target, speculative(exit_, ListedLengths(pattern)), PROMPT, request
    )
    check(
        distribution,
        reference_distribution(lambda context: fresh.prefill(context).logits, PROMPT, request),
    )


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


@pytest.mark.parametrize("name", ["neural", "vertical"])
def test_a_draft_after_a_sibling_keeps_the_distribution(name: str) -> None:
    """Five tokens: a round in which a sibling is accepted, and another draft."""
    nests = {
        "neural": lambda: neural(2, 7),
        "vertical": lambda: vertical(toy(11, 2), neural(2, 7), 1, 2.0),
    }
    target, request = toy(3, 2), Request(5, Sampling(1.0))
    distribution = loop_distribution(
        target, speculative(widened(nests[name](), 2), 1), [0, 1, 0], request
    )
    check(distribution, reference_distribution(target.next_logits, [0, 1, 0], request))


class Careless(WidenedDrafter):
    """Wrong on purpose: says that a sibling was drawn from the whole distribution."""

    def propose(self, *args: Any, **kwargs: Any) -> Proposal:
        made = super().propose(*args, **kwargs)
        assert made.probs is not None
        if made.parents is None:
            return made
        whole = made.probs[[parent + 1 for parent in made.parents]]
        return Proposal(made.ids, whole, parents=made.parents)


def test_a_wrong_distribution_is_caught() -> None:
    target, request = toy(3), Request(3, Sampling(1.0))
    distribution = loop_distribution(
        target, speculative(Careless(neural(3, 7), (2,), 512), 2), PROMPT, request
    )
    assert (
        distance(distribution, reference_distribution(target.next_logits, PROMPT, request)) > 1e-3
    )


def test_seeds_reproduce() -> None:
    target = ToyBackend.random(6, seed=0, sharpness=0.5)
    nest = cs_drafter([toy(1, 6)], max_gram(), [[2, 4], [0, 4]], 2.0, 64)
    one, same, other = (
        run(
            target,
            speculative(widened(nest, 3, 2), 9),
            [1, 2, 1],
            Request(14, Sampling(1.0), seed=seed),
        )
        for seed in (5, 5, 6)
    )
    assert one.ids == same.ids != other.ids
