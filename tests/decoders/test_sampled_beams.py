"""Sampled beams: k drawn answers, the best by its score."""

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import product

import pytest
import torch
from decoder_toys import max_gram
from torch import Tensor

from decoders.lengths import FixedLength
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.papers.beam.sampled import SampledBeams
from decoders.records import Request, Sampling
from decoders.sampling.randomness import RandomSource
from decoders.testing.chance import (
    EXACT,
    Distribution,
    distance,
    every_outcome,
    loop_distribution,
    reference_distribution,
)
from decoders.testing.toys import ListedLengths, ToyBackend, neural, run

Logits = Callable[[list[int]], Tensor]


def beams(count: int, drafter_seed: int = 7, k: int = 1, vocab: int = 2) -> SampledBeams:
    return SampledBeams("test", neural(vocab, drafter_seed), FixedLength(k), count)


# -- the algorithm --------------------------------------------------------------------------------


def one_beam(
    target: Logits,
    draft: Logits,
    prompt: list[int],
    most: int,
    gamma: int,
    chance: RandomSource,
    eos: int = -1,
) -> tuple[tuple[int, ...], float]:
    """A beam of Algorithm 2 without a cache; its first token is the prompt's. An end token drops
    what follows it in a round."""
    p = target(prompt).softmax(-1)
    beam = [int(chance.draw(p))]
    score = math.log(p[beam[0]])
    while len(beam) < most and eos not in beam:
        guesses: list[int] = []
        distributions: list[Tensor] = []
        for _ in range(min(gamma, most - len(beam) - 1)):
            distributions.append(draft([*prompt, *beam, *guesses]).softmax(-1))
            guesses.append(int(chance.draw(distributions[-1])))
        n, left = 0, None
        for x, q in zip(guesses, distributions, strict=True):
            p = target([*prompt, *beam, *guesses[:n]]).softmax(-1)
            if not bool(chance.accept((p[x] / q[x]).view(1))[0]):
                left = (p - q).clamp(min=0)
                break
            n += 1
        p = target([*prompt, *beam, *guesses[:n]]).softmax(-1) if left is None else left
        p = p / p.sum()
        t = int(chance.draw(p))
        beam += guesses[:n]
        if eos not in beam:
            beam.append(t)
            score += math.log(p[t])
    return tuple(beam[: beam.index(eos) + 1] if eos in beam else beam), score


def copied(context: list[int]) -> Tensor:
    """What a copy is drawn from: all of it on one token."""
    copier = max_gram([1, 0], shortest=1)
    copier.reset(context)
    return torch.tensor([float(token not in copier.guess(context, 1)) for token in (0, 1)]) * -1e9


@pytest.mark.every(2)
@pytest.mark.parametrize("eos", [-1, 0])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("count", "gamma"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_the_distribution_is_that_of_the_algorithm(
    count: int, gamma: int, copies: bool, eos: int
) -> None:
    target = ToyBackend.random(2, 3, 1.0)
    draft = copied if copies else ToyBackend.random(2, 7, 1.0).next_logits
    most = 3 if count < 3 else 2
    runs: dict[tuple[tuple[int, ...], float], float] = defaultdict(float)
    for weight, (ids, score) in every_outcome(
        lambda chance: one_beam(target.next_logits, draft, [0, 1], most, gamma, chance, eos)
    ):
        runs[ids, round(score, 12)] += weight
    expected: Distribution = defaultdict(float)
    for taken in product(runs, repeat=count):
        ids, _ = max(taken, key=lambda run: run[1])  # the first of equals
        expected[ids] += math.prod(runs[one] for one in taken)
    drafter = max_gram([1, 0], shortest=1) if copies else neural(2, 7, 1.0)
    strategy = SampledBeams("test", drafter, FixedLength(gamma), count)
    distribution = loop_distribution(target, strategy, [0, 1], Request(most, Sampling(1.0)), (eos,))
    assert distance(distribution, expected) < EXACT
    alone = reference_distribution(target.next_logits, [0, 1], Request(most, Sampling(1.0)), (eos,))
    assert (distance(distribution, alone) < 1e-6) == (count == 1)  # one beam is a plain draw


def test_a_score_of_what_was_drawn_alone_is_another_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong on purpose: by p instead of p'."""
    target, strategy = ToyBackend.random(2, 3, 1.0), beams(2)
    request = Request(3, Sampling(1.0))
    distribution = loop_distribution(target, strategy, [0, 1], request)
    monkeypatch.setattr("decoders.papers.beam.sampled.residual", lambda pi, q, p, n: p[int(n)])
    assert distance(distribution, loop_distribution(target, strategy, [0, 1], request)) > 1e-3


# -- the contract ---------------------------------------------------------------------------------


def test_the_books() -> None:
    target, chunks = ToyBackend.random(6, 2, 1.0), list[list[int]]()
    strategy = SampledBeams("test", neural(6, 4), ListedLengths([3, 0, 1]), 3)
    request = Request(20, Sampling(0.9), seed=4)
    result = run(target, strategy, [1, 2], request, emit=chunks.append)
    assert chunks == [result.ids] and len(result.ids) == 20
    assert result.rounds == 19 - result.accepted
    assert result.target_calls > 1 + result.rounds  # those of the two other beams too
    assert result.draft_work == result.draft_calls * strategy.parameters > 0
    assert sum(result.accepted_per_position) == result.accepted <= result.drafted
    sure = SampledBeams("test", NeuralDrafter(ToyBackend(target.table)), FixedLength(3), 3)
    alike = run(target, sure, [1, 2], Request(21, Sampling(0.9), seed=4))
    assert (alike.acceptance_rate, alike.rounds, alike.target_calls) == (1.0, 5, 16)
    again = run(target, strategy, [1, 2], request)
    assert (again.ids, again.drafted) == (result.ids, result.drafted)
    assert run(target, strategy, [1, 2], Request(20, Sampling(0.9), seed=5)).ids != result.ids
