"""Two servers of this project asked for the same seeds: the same answers, token for token.

They draw by numbers of the seed and the place alone, so that drafts change nothing. Only rounding
can: two laws whose log-probabilities differ by d, on average over what is drawn, give different
tokens to one seed in a share d of the places at most (the coupling's 2 TV / (1 + TV), and TV is
half of that average).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import poisson

from decoders.common.seeds import derived_seed

from .answers import Said
from .greedy import rounding
from .requests import AuditRequest
from .sampled import LEVEL

PROJECT = "draftpick-"  # begins the `system_fingerprint` of this project's servers


@dataclass(frozen=True)
class Seeded:
    """answers: of each server. differ: of these, where the server without drafts repeats its own.
    rounded: how many would by rounding, at most, on average.
    """

    answers: int
    differ: int
    rounded: float

    @property
    def parted(self) -> bool:
        """Whether more differ than rounding explains, at LEVEL."""
        return bool(self.differ) and float(poisson.sf(self.differ - 1, self.rounded)) < LEVEL


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
