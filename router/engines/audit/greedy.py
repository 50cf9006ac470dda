"""Two greedy answers to one request: the same, parted at a tie, or parted for no reason.

Two passes over different numbers of tokens round differently, so that greedy answers may part where
two tokens are equally likely but for rounding. There the server without drafts gives both nearly
the same log-probability. How far rounding moves the gap between two tokens shows where that server
answers twice, and where both wrote the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .answers import Said

SAME, TIE, FAULT, UNKNOWN = "same", "tie", "fault", "unknown"
LEAST_TIE = 0.02  # nats between two tokens that may be a tie
MOST_TIE = 0.5
TYPICAL = 0.95  # of the tokens that both servers wrote: a fault is taken to touch fewer than others
ROUNDED = 0.1  # nats by which rounding may move a log-probability usually


@dataclass(frozen=True)
class Parting:
    """verdict: SAME, TIE, FAULT, or UNKNOWN where log-probabilities are missing.
    at: the first token that differs; tokens compared, where none does.
    gap: by how many nats the server without drafts holds its own token more likely than the other;
        inf where the other is not among its likeliest, None where it does not say.
    """

    verdict: str
    at: int
    gap: float | None = None


def parting(plain: Said, drafted: Said, tie: float) -> Parting:
    """tie: nats up to which a gap may be one."""
    at = alike(plain.tokens, drafted.tokens)
    if plain.shown == drafted.shown:
        return Parting(SAME, at)
    if plain.silent or drafted.silent:
        return Parting(UNKNOWN, at)
    if plain.tokens == drafted.tokens:  # as where a call was parsed otherwise
        return Parting(FAULT, at)
    gap = _gap(plain, drafted, at)
    if gap is None:
        return Parting(UNKNOWN, at)
    own = _own_gap(drafted, at)
    return Parting(TIE if gap <= tie and own <= tie else FAULT, at, gap)


def alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many items they begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def rounding(pairs: Sequence[tuple[Said, Said]]) -> np.ndarray:
    """[n] by how much the log-probability of a token differs, wherever two answers agree in it and
    in all before it."""
    return np.array(
        [
            abs(one.places[at].logprob - other.places[at].logprob)
            for one, other in pairs
            if one.places and other.places
            for at in range(alike(one.tokens, other.tokens))
        ]
    )


def gaps_moved(pairs: Sequence[tuple[Said, Said]]) -> np.ndarray:
    """[n] by how much the gap between the two likeliest tokens differs, wherever two answers agree
    in it and in all before it. Unlike a likely token's log-probability, which hardly moves, it says
    how far apart two tokens may have been that changed places."""
    found = []
    for one, other in pairs:
        if not (one.places and other.places):
            continue
        for at in range(alike(one.tokens, other.tokens)):
            first, again = one.places[at], other.places[at]
            rest = {token: p for token, p in first.top.items() if token != first.token}
            second = max(rest, key=lambda token: rest[token], default=None)
            if second is not None and second in again.top:
                gap = first.logprob - rest[second]
                found.append(abs(gap - (again.logprob - again.top[second])))
    return np.array(found)


def tie_of(twice: np.ndarray, apart: np.ndarray) -> float:
    """Nats between two tokens that may be a tie. Both are of `gaps_moved`. twice: between two runs
    of the server without drafts, where no fault of drafts is; the worst of a thousand counts.
    apart: between the two servers. Passes over drafts may round more than others do, but the worst
    of these may be faults: twice what is TYPICAL stands for them, by a normal distribution one
    in ten thousand."""
    moved = max(_quantile(twice, 0.999), 2 * _quantile(apart, TYPICAL))
    return min(MOST_TIE, max(LEAST_TIE, moved))


def _quantile(moved: np.ndarray, level: float) -> float:
    return float(np.quantile(moved, level)) if len(moved) else 0.0


def _gap(plain: Said, drafted: Said, at: int) -> float | None:
    if at < len(plain.places):
        place = plain.places[at]
        if len(place.top) < 2:
            return None
        if at < len(drafted.places):
            other = place.top.get(drafted.places[at].token)
            return float("inf") if other is None else abs(place.logprob - other)
        # the other answer ended here: by a token that its server does not spell
        rest = [logprob for token, logprob in place.top.items() if token != place.token]
        return abs(place.logprob - max(rest))
    if plain.places and at < len(drafted.places):  # this one ended, which is not spelled either
        rest = [v for t, v in drafted.places[at].top.items() if t != drafted.places[at].token]
        return abs(drafted.places[at].logprob - max(rest)) if rest else None
    return None


def _own_gap(drafted: Said, at: int) -> float:
    """How much likelier the drafted server itself holds another token than the one it gave; 0 where
    it does not say."""
    if at >= len(drafted.places):
        return 0.0
    place = drafted.places[at]
    return max(place.top.values()) - place.logprob
