"""Rewards of one logged answer: higher is better, nan where it has none."""

from __future__ import annotations

import math
from collections.abc import Callable

from .record import Result


def tokens_per_s(outcome: Result) -> float:
    """New tokens over all seconds of the answer: prompt, choice and decoding."""
    return math.nan if outcome.tokens_per_s is None else outcome.tokens_per_s


def log_tokens_per_s(outcome: Result) -> float:
    """Its natural logarithm: a difference of 0.01 is one percent, for slow and fast answers."""
    speed = tokens_per_s(outcome)
    return math.log(speed) if speed > 0 else math.nan


def decode_tokens_per_s(outcome: Result) -> float:
    """New tokens after the first over the seconds of decoding: no prompt, no choice."""
    if outcome.new_tokens is None or not outcome.decode_s or outcome.new_tokens < 2:
        return math.nan
    return (outcome.new_tokens - 1) / outcome.decode_s


def saved_passes(outcome: Result) -> float:
    """1 - rounds / (new_tokens - 1), as in `collect.rewards`: it has no timing noise."""
    if outcome.rounds is None or outcome.new_tokens is None:
        return math.nan
    decoded = outcome.new_tokens - 1
    return 1 - outcome.rounds / decoded if decoded > 0 else 0.0


def acceptance(outcome: Result) -> float:
    """Accepted over drafted tokens, as in `collect.rewards`; 0 where nothing was drafted."""
    if outcome.drafted is None or outcome.accepted is None:
        return math.nan
    return outcome.accepted / outcome.drafted if outcome.drafted else 0.0


TIMED = ("tokens_per_s", "log_tokens_per_s", "decode_tokens_per_s")
LOG_REWARDS: dict[str, Callable[[Result], float]] = {
    "tokens_per_s": tokens_per_s,
    "log_tokens_per_s": log_tokens_per_s,
    "decode_tokens_per_s": decode_tokens_per_s,
    "saved-passes": saved_passes,
    "acceptance": acceptance,
}
