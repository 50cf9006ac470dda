"""Every verifier in the loop: books, ends, streams and seeds; BiLD beside its paper's algorithm."""

from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from decoder_toys import CPU, Watched, balanced, max_gram, reduced, watched
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strangers import part
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.arms import DraftingRecipe
from decoders.lengths import AdaptiveLength, FixedLength
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.rules import step
from decoders.papers.rules.deferral import BiLD
from decoders.protocols import Verifier
from decoders.records import Proposal, Request, Sampling
from decoders.sampling import race
from decoders.sampling.randomness import Generator
from decoders.testing.toys import (
    ListedLengths,
    Scripted,
    ToyBackend,
    autoregressive,
    cycle,
    neural,
    run,
    speculative,
)

VERIFIERS: list[Any] = [
    "coupled",
    "lossless",
    {"rule": "lossy", "alpha": 0.4},
    {"rule": "lossy_star", "alpha": 0.4},
    {"rule": "lossy_star", "kl_budget": 0.1},
    {"rule": "chow", "alpha": 0.4},
    {"rule": "diff", "alpha": 0.2},
    {"rule": "opt", "alpha": 0.5, "log_loss": True},
    {"rule": "bild_star", "alpha": 1.5},
    {"rule": "bild", "rollback": 1.5},
]


def verifier(said: Any) -> Verifier:
    if said == "stranger":
        made: Verifier = part("top_two").TopTwo()
        return made
    return DraftingRecipe(kind="test", verifier=said).verifier.build()


# -- what holds for every verifier ----------------------------------------------------------------


@given(
    st.sampled_from([*VERIFIERS, "stranger"]),
    st.integers(0, 999),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.integers(1, 20),
    st.sets(st.integers(0, 3), max_size=2),
    st.sampled_from([0.0, 0.8]),
    st.sampled_from([1.0, 1.4]),
)
@examples(150)
def test_books_streams_and_seeds(
    said: Any,
    seed: int,
    prompt: list[int],
    pattern: list[int],
    most: int,
    eos: set[int],
    temperature: float,
    penalty: float,
) -> None:
    target, chunks = ToyBackend.random(4, seed), list[list[int]]()
    request = Request(most, Sampling(temperature, repetition_penalty=penalty), seed=seed)
    for drafter in (neural(4, seed + 1), reduced([0, 2], 4, seed), max_gram(shortest=1)):
        chunks.clear()
        strategy, ends = speculative(drafter, ListedLengths(pattern), verifier(said)), tuple(eos)
        result = run(target, strategy, prompt, request, eos_ids=ends, emit=chunks.append)
        balanced(result, most)
        assert [token for chunk in chunks for token in chunk] == result.ids
        assert all(chunks) and len(chunks) == result.rounds + 1
        assert not eos & set(result.ids[:-1])
        assert result.finish_reason == ("eos" if result.ids[-1] in eos else "length")
        assert run(target, strategy, prompt, request, eos_ids=ends).ids == result.ids


@pytest.mark.parametrize("said", VERIFIERS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_the_target_would_write_stands_whole(said: Any, temperature: float) -> None:
    target = ToyBackend.random(6, seed=1, sharpness=90.0)  # never in doubt
    strategy = speculative(NeuralDrafter(ToyBackend(target.table)), 3, verifier(said))
    result = run(target, strategy, [2], Request(21, Sampling(temperature), seed=0))
    assert (result.rounds, result.accepted_per_position) == (5, [5, 5, 5])


@pytest.mark.parametrize("said", [v for v in VERIFIERS if "chow" not in str(v)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_the_target_would_never_write_falls_whole(
    said: Any, temperature: float
) -> None:
    table = torch.full((4, 4, 4), -30.0, dtype=torch.float64)
    for last in range(4):
        table[:, last, (last + 1) % 4] = 30.0
    unsure = torch.zeros_like(table)
    for last in range(4):
        unsure[:, last, (last + 2) % 4] = 1.0
    strategy = speculative(NeuralDrafter(ToyBackend(unsure)), 1, verifier(said))
    request = Request(30, Sampling(temperature, top_k=1), seed=0)
    result = run(ToyBackend(table), strategy, [0], request)
    assert result.ids == [(1 + i) % 4 for i in range(30)]
    assert (result.accepted, result.drafted) == (0, 28)


@pytest.mark.parametrize("said", VERIFIERS, ids=str)
def test_no_draft_is_one_narrow_pass(said: Any) -> None:
    for sampling in (Sampling(), Sampling(1.0)):
        target = Watched(ToyBackend.random(5, seed=2).table)
        strategy = speculative(NullDrafter(CPU), 3, verifier(said))
        result = run(target, strategy, [1, 4], Request(9, sampling, seed=3))
        alone = run(target, autoregressive(), [1, 4], Request(9, sampling, seed=3))
        assert result.target_calls == 9
        if sampling.greedy or said == "coupled":  # other rules draw in turn
            assert result.ids == alone.ids
        assert target.widths[:9] == [2] + [1] * 8


class Reads(TorchDispatchMode):
    """Counts what would make the host wait for a device; `tolist` of the verdict is not dispatched
    on a CPU, and so not counted."""

    waits = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.waits += op.overloadpacket.__name__ in ("_local_scalar_dense", "item", "nonzero")
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("said", VERIFIERS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_nothing_is_read_from_the_device_but_the_verdict(
    said: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "read_freely", lambda tensor: False)  # as on a GPU
    monkeypatch.setattr(race, "_among_few", race._among_all)
    probs = torch.full((3, 5), 0.2)
    proposal = Proposal(torch.tensor([1, 4, 2]), probs if temperature else None, probs)
    logits, chance = torch.eye(5)[:4], Generator(CPU, 0)
    with Reads() as reads:
        verifier(said).verify(proposal, logits, Sampling(temperature, top_p=0.9), chance, 1)
        assert reads.waits == 0
        logits[torch.tensor(1)]  # an index of no dimensions is read by the host
        assert reads.waits == 1


@given(seed=st.integers(0, 999), k=st.integers(0, 3))
@examples(100)
def test_what_is_left_is_the_same_where_it_is_read(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pi, draft, target = (torch.rand(n, 5, generator=generator) for n in (k, k, k + 1))
    if seed % 2:
        pi = draft * (0.5 + seed % 3 / 4)  # nowhere above it, or everywhere
    for accepted in map(torch.tensor, range(k + 1)):
        left = step.residual(pi, draft, target, accepted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, "read_freely", lambda tensor: False)
            assert torch.equal(step.residual(pi, draft, target, accepted), left)


# -- the drafter's own distributions --------------------------------------------------------------


@pytest.mark.parametrize("said", VERIFIERS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_raw_is_made_only_for_rules_that_read_it(said: Any, temperature: float) -> None:
    """What they hold is in test_verify_distribution.py."""
    drafter, target = neural(5, seed=3), ToyBackend.random(5, seed=2)
    seen, request = watched(drafter), Request(12, Sampling(temperature), seed=0)
    run(target, speculative(drafter, 3, verifier(said)), [1, 4], request)
    drafts = [made for _, _, made in seen]
    reads = isinstance(said, dict) and said["rule"] in ("chow", "diff", "opt", "bild_star")
    assert {made.raw is not None for made in drafts} == {reads}
    in_turn = said != "coupled" and not (isinstance(said, dict) and said["rule"] == "bild")
    assert {made.probs is not None for made in drafts} == {temperature > 0 and in_turn}


def test_a_drafter_that_keeps_its_confidence_to_itself_is_told() -> None:
    drafter, propose = neural(5, seed=3), neural(5, seed=3).propose
    drafter.propose = lambda context, asked: propose(  # type: ignore[method-assign]
        context, replace(asked, needs_raw=False)
    )
    strategy = speculative(drafter, 2, verifier(VERIFIERS[6]))
    with pytest.raises(ValueError, match="must give `raw`"):
        run(ToyBackend.random(5, seed=2), strategy, [1], Request(9, Sampling(1.0)))


# -- BiLD -----------------------------------------------------------------------------------------


def big_little(
    large: Callable[[list[int]], Tensor],
    small: Callable[[list[int]], Tensor],
    prompt: list[int],
    most: int,
    k: int,
    fallback: float,
    rollback: float,
    keep_argmax: bool = False,
) -> list[int]:
    """Algorithm 1 as printed, greedy and without a cache: next-token logits after a whole context.

    y[:read] the large model has confirmed. It writes the first token, falls back after k of the
    small one's at the latest, and writes the last. keep_argmax: the one departure from the print.
    """
    y = [int(large(prompt).argmax())]
    read = 1
    while len(y) < most:
        confidence = small([*prompt, *y]).softmax(-1)
        whole = len(y) - read == min(k, most - read - 1)
        if not whole and float(confidence.max()) >= fallback:
            y.append(int(confidence.argmax()))
            continue
        p_large = [large([*prompt, *y[:m]]).softmax(-1) for m in range(read, len(y) + 1)]
        for m in range(read, len(y)):
            p = p_large[m - read]
            if keep_argmax and int(p.argmax()) == y[m]:
                continue
            if -log(float(p[y[m]])) >= rollback:
                y = [*y[:m], int(p.argmax())]
                break
        else:
            y.append(int(p_large[-1].argmax()))
        read = len(y)
    return y


@given(
    st.integers(0, 999),
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.3, 0.5, 0.7]),
    st.sampled_from([0.0, 0.7, 1.5, 3.0, 50.0]),
    st.integers(1, 25),
    st.booleans(),
)
@examples(200)
def test_bild_is_algorithm_1_as_printed_or_but_for_the_argmax(
    seed: int,
    prompt: list[int],
    k: int,
    fallback: float,
    rollback: float,
    most: int,
    keep_argmax: bool,
) -> None:
    target, drafter = ToyBackend.random(5, seed, 1.0), neural(5, seed + 1)
    strategy = speculative(drafter, FixedLength(k, fallback), BiLD(rollback, keep_argmax))
    result = run(target, strategy, prompt, Request(most))
    small: Any = drafter.backend
    limits = (most, k, fallback, rollback, keep_argmax)
    slow = big_little(target.next_logits, small.next_logits, prompt, *limits)
    assert result.ids == slow
    assert result.target_calls == 1 + result.rounds
    balanced(result, most)


@pytest.mark.parametrize("bar", [0.5, 0.999])
def test_a_round_that_falls_back_at_once_costs_one_pass_of_each(bar: float) -> None:
    unsure = ToyBackend(torch.zeros(5, 5, 5, dtype=torch.float64))
    target = Watched(ToyBackend.random(5, seed=2).table)
    for length in (FixedLength(10, bar), AdaptiveLength(10, bar)):
        target.widths.clear()
        for sampling in (Sampling(), Sampling(1.0)):
            strategy = speculative(NeuralDrafter(unsure), length, BiLD(2))
            result = run(target, strategy, [1], Request(8, sampling))
            assert (result.drafted, result.rounds, result.target_calls) == (0, 7, 8)
            # the last round has no room to draft, and does not ask
            assert result.draft_calls == 1 + 6
        assert target.widths == [1] * 16


def test_bild_drafts_ten_at_most_and_reads_nothing_twice() -> None:
    target = Watched(ToyBackend.random(5, seed=2, sharpness=6.0).table)
    drafter = NeuralDrafter(ToyBackend.random(5, seed=3, sharpness=6.0))
    strategy = speculative(drafter, FixedLength(10, 0.5), BiLD(4.0))
    result = run(target, strategy, [1, 4], Request(120))
    assert max(target.widths) == 11
    assert sum(target.widths) == 2 + result.drafted + result.rounds
    assert 0 < result.accepted < result.drafted
    assert len(target.widths) == result.target_calls


def test_what_the_target_would_write_itself_is_never_replaced() -> None:
    """After 7 the target is at a loss: -log p = 2.1 for each, the 0 that it would take too."""
    target = cycle(0, 1, 2, 3)
    result = run(target, speculative(Scripted(0, 1), 2, BiLD(1.0)), [2, 7], Request(5))
    assert (result.ids, result.accepted) == ([0, 1, 2, 3, 0], 0)
    target.table[:, 0, :] = 0.0  # at a loss after 0 as well
    result = run(target, speculative(Scripted(0, 0), 2, BiLD(1.0)), [2, 7], Request(4))
    assert (result.ids, result.accepted, result.rounds) == ([0, 0, 0, 0], 2, 1)


def test_a_drafted_end_is_verified_like_any_token() -> None:
    target = cycle(0, 1, 2, 3)
    kept = run(target, speculative(Scripted(7), 1, BiLD(10)), [0], Request(9), eos_ids=(7,))
    assert (kept.ids, kept.finish_reason) == ([1, 7], "eos")
    replaced = run(target, speculative(Scripted(7), 1, BiLD(8)), [0], Request(9), eos_ids=(7,))
    assert (replaced.ids, replaced.finish_reason) == ([1, 2, 3, 0, 1, 2, 3, 0, 1], "length")
