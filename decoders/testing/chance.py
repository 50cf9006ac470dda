"""Chance that walks every outcome: the exact distribution of what a strategy answers.

`loop_distribution` is that distribution, `reference_distribution` the target's own by its logits
and transformers' filters alone; a lossless part keeps their `distance` at rounding errors.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..protocols import Backend, Strategy
from ..records import Request, Sampling
from ..sampling.randomness import RandomSource
from .toys import ToyBackend, run

ROUNDING = 1e-12  # a chance below it is none
EXACT = 1e-6  # no lossless strategy is farther from its target's distribution

if TYPE_CHECKING:
    from transformers import LogitsProcessorList


@dataclass
class _Choice:
    weights: list[float]
    taken: int = 0


class Walk:
    """Chance that follows a script and remembers the roads not taken.

    Every question becomes a choice among weighted outcomes; impossible outcomes are left out. A
    place has one number between 0 and 1, of which as much is known as what was picked there tells:
    all who pick at a place read it off their own sums of probabilities. So picks are coupled as by
    clocks, if otherwise, and each alone has its own distribution. Questions in turn are
    independent.
    """

    def __init__(self, script: list[_Choice]) -> None:
        self._script, self._at = script, 0
        self._known: dict[int, tuple[float, float]] = {}  # by place
        self.weight = 1.0

    def _choose(self, weights: list[float]) -> int:
        if self._at == len(self._script):
            self._script.append(_Choice(weights, next(i for i, w in enumerate(weights) if w > 0)))
        choice = self._script[self._at]
        self._at += 1
        self.weight *= choice.weights[choice.taken]
        return choice.taken

    def pick(
        self,
        logits: Tensor,
        temperature: float,
        places: int | Tensor,
        names: Tensor | None = None,
        count: int = 1,
        after: Tensor | None = None,
    ) -> Tensor:
        """The first by the place's number, the others by their probability."""
        if isinstance(places, int):
            places = torch.arange(places, places + len(logits))
        picked = list[list[int]]()
        followed = [] if after is None else after.tolist()
        for probs, place in zip((logits.double() / temperature).softmax(-1), places, strict=True):
            if 0 < len(picked) <= len(followed) and picked[-1][0] != followed[len(picked) - 1]:
                picked += [[0] * count] * (len(logits) - len(picked))
                break
            first = self._read_off(probs.tolist(), int(place))
            others = probs.index_fill(0, torch.tensor(first), -1.0).topk(count - 1).indices
            picked.append([first, *others.tolist()])
        return torch.tensor(picked)

    def _read_off(self, probs: list[float], place: int) -> int:
        least, most = self._known.get(place, (0.0, 1.0))
        ends = [*itertools.accumulate(probs, initial=0.0)]
        ends = [end / ends[-1] for end in ends]
        parts = [(max(a, least), min(b, most)) for a, b in itertools.pairwise(ends)]
        chances = [max(b - a, 0.0) / (most - least) for a, b in parts]
        chances = [chance if chance > ROUNDING else 0.0 for chance in chances]
        taken = self._choose(chances)
        self._known[place] = parts[taken]
        return taken

    def draw(self, probs: Tensor) -> Tensor:
        return torch.tensor(self._choose((probs / probs.sum()).tolist()))

    def accept(self, probability: Tensor) -> Tensor:
        """One choice a token, the later ones too: nothing may look past a rejected one."""
        accepted = [self._choose([1 - p, p]) == 1 for p in probability.clamp(max=1).tolist()]
        return torch.tensor(accepted, dtype=torch.bool)


def every_outcome(once: Callable[[RandomSource], Any]) -> Iterator[tuple[float, Any]]:
    """(weight, result) of `once` under every way that its chance may fall; depth first."""
    script: list[_Choice] = []
    while True:
        walk = Walk(script)
        result = once(walk)
        yield walk.weight, result
        while script:  # the deepest choice that has another possible outcome takes it
            last = script[-1]
            after = [i for i in range(last.taken + 1, len(last.weights)) if last.weights[i] > 0]
            if after:
                last.taken = after[0]
                break
            script.pop()
        if not script:
            return


Distribution = dict[tuple[int, ...], float]


def loop_distribution(
    target: Backend,
    strategy: Strategy,
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
) -> Distribution:
    """The exact distribution of a shipped strategy's answers, the loop's or another's."""
    distribution: Distribution = defaultdict(float)
    outcomes = every_outcome(
        lambda chance: run(target, strategy, prompt, request, eos_ids=eos, chance=chance).ids
    )
    for weight, ids in outcomes:
        distribution[tuple(ids)] += weight
    return distribution


def transformers_filters(sampling: Sampling) -> LogitsProcessorList:
    """Builds the filters that `generate` would, in its order."""
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    made = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        made.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    made.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        made.append(TopPLogitsWarper(sampling.top_p))
    return made


def reference_distribution(
    next_logits: Callable[[list[int]], Tensor],
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
) -> Distribution:
    """The target's own distribution, from its next-token logits and transformers' filters alone."""
    filters = transformers_filters(request.sampling)
    distribution: Distribution = {}

    def go_on(made: tuple[int, ...], weight: float) -> None:
        if len(made) == request.max_new_tokens or (made and made[-1] in eos):
            distribution[made] = weight
            return
        context = [*prompt, *made]
        scores = filters(torch.tensor([context]), next_logits(context).unsqueeze(0))
        for token, p in enumerate(scores.softmax(-1)[0].tolist()):
            if p > 0:
                go_on((*made, token), weight * p)

    go_on((), 1.0)
    return distribution


def distance(one: Distribution, other: Distribution) -> float:
    """The greatest difference in any answer's probability."""
    return max(abs(one.get(ids, 0.0) - other.get(ids, 0.0)) for ids in {*one, *other})


def distribution_error(
    target: Backend,
    strategy: Strategy,
    prompt: list[int],
    request: Request,
    eos: tuple[int, ...] = (),
    next_logits: Callable[[list[int]], Tensor] | None = None,
) -> float:
    """Measures how far a strategy's answers are from the target's own distribution: the greatest
    difference in any answer's probability, below EXACT for what is lossless.

    next_logits: the target's logits after a context; without it, those of a toy.
    """
    if next_logits is None:
        assert isinstance(target, ToyBackend)
        next_logits = target.next_logits
    made = loop_distribution(target, strategy, prompt, request, eos)
    assert abs(sum(made.values()) - 1) < 1e-9, "these are not all outcomes"
    return distance(made, reference_distribution(next_logits, prompt, request, eos))
