"""Two sets of sampled answers: are they drawn from one law?

Permutation tests, exact whatever the law: if both servers draw from it, which answer came from
which is chance. Three statistics, so that faults show in what is written, in how likely it was, and
in how it was drawn:

- the maximum mean discrepancy (Gretton et al., A Kernel Two-Sample Test, 2012) whose kernel is the
  share of leading tokens that two answers have in common;
- the difference of the mean log-probability of a token, where both servers give them;
- the difference of how much more often an answer takes the likeliest token than the log-probability
  of that one says, which sees small shifts that the other two need many answers for.

Ends that a server does not spell, filters and temperatures bias the third statistic of both servers
alike, so that its level is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

from decoders.common.seeds import derived_seed

from .answers import Place, Said
from .greedy import alike, rounding
from .requests import AuditRequest

PROJECT = "draftpick-"  # begins the `system_fingerprint` of this project's servers


@dataclass(frozen=True)
class Seeded:
    """answers: of each server. differ: of these, where the server without drafts repeats its own.
    rounded_at_most: how many would by rounding, on average.
    """

    answers: int
    differ: int
    rounded_at_most: float

    @property
    def parted(self) -> bool:
        """Whether more differ than rounding explains, at LEVEL."""
        chance = float(poisson.sf(self.differ - 1, self.rounded_at_most))
        return bool(self.differ) and chance < LEVEL


def of_one_kind(pairs: Sequence[tuple[Said, Said]]) -> bool:
    """Whether both are this project's, with the same weights, precision and kernels."""
    found = {said.fingerprint for pair in pairs for said in pair}
    return len(found) == 1 and min(found).startswith(PROJECT)


def same_seeds(
    plain: Callable[[AuditRequest, int], Said],
    drafted: Callable[[AuditRequest, int], Said],
    draws: Sequence[tuple[AuditRequest, int]],
    temperature: float,
    seed: int,
    in_turn: Callable[..., Any],
) -> Seeded:
    """plain, drafted: ask a server for a seed. draws: requests, and the number of each answer.
    seed: of the whole. in_turn: `map`, or a pool's."""
    asked = [(request, derived_seed(seed, request.name, number)) for request, number in draws]
    pairs = list(in_turn(lambda one: (plain(*one), drafted(*one)), asked))
    parted = [one for one, (a, b) in zip(asked, pairs, strict=True) if a.shown != b.shown]
    again = list(in_turn(lambda one: (plain(*one), plain(*one)), parted))
    differ = sum(a.shown == b.shown for a, b in again)
    moved = float(rounding(pairs).sum()) * (1 if temperature == 1 else 2 / temperature)
    return Seeded(len(pairs), differ, moved)


Float64: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = Sequence[NDArray[np.bool_]]
LEVEL = 0.01  # of all tests together
PERMUTATIONS = 4999


@dataclass(frozen=True)
class TwoSample:
    """p-values; those but of the texts are None where a server gives no log-probabilities.

    requests, draws: asked, and answers of each server to each.
    distinct: the share of answers that differ from all others of their server to the request.
    p_likeliest: of how often the likeliest token was drawn.
    likeliest_excess: by how much more often than by its log-probability, of a token of the server
        with drafts less one of the other.
    """

    requests: int
    draws: int
    p_texts: float
    distinct: float
    p_logprobs: float | None = None
    p_likeliest: float | None = None
    likeliest_excess: float = 0.0

    @property
    def parted(self) -> bool:
        """At LEVEL, by Bonferroni over the tests."""
        found = [p for p in (self.p_texts, self.p_logprobs, self.p_likeliest) if p is not None]
        return min(found) * len(found) < LEVEL


def two_sample(
    plain: Sequence[Sequence[Said]], drafted: Sequence[Sequence[Said]], seed: int = 0
) -> TwoSample:
    """Test the answers of both servers, by prompt; equally many."""
    rng = np.random.default_rng(seed)
    both = [[*a, *b] for a, b in zip(plain, drafted, strict=True)]
    kernels = [_kernel(each) for each in both]
    sizes = [len(a) for a in plain]

    def discrepancy(labels: Labels) -> Float64:
        apart = [_mmd(k, each) for k, each in zip(kernels, labels, strict=True)]
        return np.asarray(np.sum(apart, 0))

    def apart_in(of: Callable[[Said], float]) -> float:
        """p-value of the difference in a number of each answer."""
        found = [np.array([of(said) for said in each]) for each in both]

        def difference(labels: Labels) -> Float64:
            signs = [np.where(each, 1.0, -1.0) for each in labels]
            apart = [2 * each @ m / len(m) for m, each in zip(found, signs, strict=True)]
            return np.asarray(np.abs(np.mean(apart, 0)))

        return _permuted(difference, sizes, rng)

    every = [each for answers in (*plain, *drafted) for each in _distinct(answers)]
    made = TwoSample(
        len(plain), max(sizes), _permuted(discrepancy, sizes, rng), float(np.mean(every))
    )
    if any(said.silent for each in both for said in each):
        return made
    logprobs, likeliest = apart_in(_mean_logprob), apart_in(over)
    excess = _excess(drafted) - _excess(plain)
    return replace(made, p_logprobs=logprobs, p_likeliest=likeliest, likeliest_excess=excess)


def over(said: Said) -> float:
    """How many more of its tokens are the likeliest one than log-probabilities say."""
    return sum(_over(place) for place in said.places if place.top)


def _over(place: Place) -> float:
    most = max(place.top.values())
    chance = sum(math.exp(p) for p in place.top.values() if p >= most)  # several, where they tie
    return float(place.logprob >= most) - min(chance, 1.0)


def _excess(answers: Sequence[Sequence[Said]]) -> float:
    """Average `over` over the tokens of all answers."""
    every = [said for each in answers for said in each]
    return sum(map(over, every)) / max(1, sum(len(said.places) for said in every))


def _permuted(
    statistic: Callable[[Labels], Float64], sizes: Sequence[int], rng: np.random.Generator
) -> float:
    """The share of relabellings, the true one among them, that give as much. statistic: of labels
    [B, n] by prompt, which answers are of the first server; [B]. sizes: of either server's answers
    to each prompt."""
    true = [np.arange(2 * n)[None] < n for n in sizes]
    others = [rng.permuted(each.repeat(PERMUTATIONS, 0), axis=1) for each in true]
    as_much = 1 + np.count_nonzero(statistic(others) >= statistic(true) - 1e-12)
    return float(as_much / (PERMUTATIONS + 1))


def _kernel(answers: Sequence[Said]) -> Float64:
    """[n, n]"""
    tokens = [each.tokens for each in answers]
    longest = max(1, *(len(each) for each in tokens))
    made = np.zeros((len(tokens), len(tokens)))
    for i, one in enumerate(tokens):
        for j, other in enumerate(tokens[: i + 1]):
            made[i, j] = made[j, i] = 1.0 if one == other else alike(one, other) / longest
    return made


def _mmd(kernel: Float64, first: NDArray[np.bool_]) -> Float64:
    """Unbiased, squared. first: [B, n] which answers are of the first server, half of them; [B]."""
    n, one, other = first.shape[1] // 2, first.astype(float), (~first).astype(float)
    pairs = kernel - np.diag(kernel.diagonal())  # of different answers
    within = sum(((each @ pairs) * each).sum(1) for each in (one, other)) / (n * (n - 1))
    return np.asarray(within - 2 * ((one @ kernel) * other).sum(1) / n**2)


def _mean_logprob(said: Said) -> float:
    """0 of an answer without tokens."""
    return sum(place.logprob for place in said.places) / max(1, len(said.places))


def _distinct(answers: Sequence[Said]) -> list[bool]:
    texts = [each.shown for each in answers]
    return [texts.count(text) == 1 for text in texts]
