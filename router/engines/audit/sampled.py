"""Two sets of sampled answers: are they drawn from one law?

Permutation tests, exact whatever the law: if both servers draw from it, which answer came from
which is chance. Two statistics, so that faults show in what is written and in how likely it was:

- the maximum mean discrepancy (Gretton et al., A Kernel Two-Sample Test, 2012) whose kernel is the
  share of leading tokens that two answers have in common;
- the difference of the mean log-probability of a token, where both servers give them.

And at temperature 1 a test of the server with drafts alone, against its own log-probabilities: it
draws the likeliest token as often as these say. Over the places of answers, whether it was drawn
less its probability is a martingale, so that the sum over its standard deviation is nearly normal.
It sees small shifts that the other two need many answers for. A server whose log-probabilities are
not those that it draws by would fail it without drafts too; then it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .answers import Said
from .greedy import alike

Float64: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = Sequence[NDArray[np.bool_]]
LEVEL = 0.01  # of both tests together
PERMUTATIONS = 4999
HONEST = 0.05  # least p-value at which the server without drafts counts as drawing by its numbers
LEAST_VARIANCE = 25.0  # of the martingale, for a normal law


@dataclass(frozen=True)
class TwoSample:
    """p-values; None where the servers give no log-probabilities.

    prompts, draws: asked, and answers of each server to each.
    distinct: the share of answers that differ from all others of their server to the prompt.
    likeliest: of the test against its own log-probabilities; None where it says nothing.
    excess: by how much the server with drafts takes the likeliest token more often than it says.
    """

    prompts: int
    draws: int
    texts: float
    logprobs: float | None
    distinct: float
    likeliest: float | None = None
    excess: float = 0.0

    @property
    def parted(self) -> bool:
        """At LEVEL, by Bonferroni over the tests."""
        found = [p for p in (self.texts, self.logprobs, self.likeliest) if p is not None]
        return min(found) * len(found) < LEVEL


def two_sample(
    plain: Sequence[Sequence[Said]],
    drafted: Sequence[Sequence[Said]],
    seed: int = 0,
    temperature: float = 0.0,
) -> TwoSample:
    """Test the answers of both servers, by prompt; equally many. temperature: that they were drawn
    at, 0 where it is not known."""
    rng = np.random.default_rng(seed)
    kernels = [_kernel([*a, *b]) for a, b in zip(plain, drafted, strict=True)]
    sizes = [len(a) for a in plain]

    def discrepancy(labels: Labels) -> Float64:
        apart = [_mmd(k, each) for k, each in zip(kernels, labels, strict=True)]
        return np.asarray(np.sum(apart, 0))

    texts = _permuted(discrepancy, sizes, rng)
    logprobs = None
    means = [
        np.array([_mean_logprob(each) for each in (*a, *b)])
        for a, b in zip(plain, drafted, strict=True)
    ]
    if all(np.isfinite(each).all() for each in means):

        def difference(labels: Labels) -> Float64:
            signs = [np.where(each, 1.0, -1.0) for each in labels]
            apart = [2 * each @ m / len(m) for m, each in zip(means, signs, strict=True)]
            return np.asarray(np.abs(np.mean(apart, 0)))

        logprobs = _permuted(difference, sizes, rng)
    every = [each for answers in (*plain, *drafted) for each in _distinct(answers)]
    own = calibration(plain) if temperature == 1 else None
    its = calibration(drafted) if own is not None and own[0] > HONEST else None
    return TwoSample(
        len(plain), max(sizes), texts, logprobs, float(np.mean(every)), *(its or (None, 0.0))
    )


def calibration(answers: Sequence[Sequence[Said]]) -> tuple[float, float] | None:
    """The two-sided p-value that the likeliest token was drawn as often as log-probabilities say,
    and by how much more often it was. None where too little can be said."""
    places = [place for each in answers for said in each for place in said.places if place.top]
    least = np.array([max(place.top.values()) for place in places])  # of the likeliest, in nats
    chances = np.array(
        [
            sum(math.exp(p) for p in place.top.values() if p >= nats)  # several, where they tie
            for place, nats in zip(places, least, strict=True)
        ]
    )
    chances = np.minimum(chances, 1.0)
    variance = float((chances * (1 - chances)).sum())
    if not variance >= LEAST_VARIANCE:
        return None
    drawn = np.array([place.logprob for place in places]) >= least
    over = float((drawn - chances).sum())
    return math.erfc(abs(over) / math.sqrt(2 * variance)), over / len(places)


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
    if not said.places:
        return float("nan")
    return float(np.mean([place.logprob for place in said.places]))


def _distinct(answers: Sequence[Said]) -> list[bool]:
    texts = [each.shown for each in answers]
    return [texts.count(text) == 1 for text in texts]
