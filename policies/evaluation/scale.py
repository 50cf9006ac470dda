"""The proportion of a gain, by the scale of its reward: percent means nothing where a reward's
zero is arbitrary, as that of a share of time saved is."""

from __future__ import annotations

import math

SAVED = ("time-saved", "saved-passes")  # shares of plain decoding's seconds or passes, 0 for itself
LOGARITHMS = ("speed-price", "log_tokens_per_s")


def relative(gain: float, base: float, reward: str) -> float | None:
    """The gain over a mean reward `base`, as a fraction: of the base, where a reward is
    proportional to speed or quality; of a saved share what the speed gains, (1 - base) / (1 - base
    - gain) - 1; of a logarithm exp(gain) - 1. None where there is no such proportion.

    reward: its name, with or without version and options.
    """
    name = name_of(reward)
    if name in SAVED:
        left = 1 - base - gain
        return (1 - base) / left - 1 if left > 0 else None
    if name in LOGARITHMS:
        return math.expm1(gain)
    return gain / abs(base) if base else None


def percent(gain: float, base: float, reward: str) -> float | None:
    """`relative` in percent."""
    share = relative(gain, base, reward)
    return None if share is None else 100 * share


def in_words(gain: float, base: float, reward: str, digits: str = ".2f") -> str:
    """A gain in proportion: "5.30%", "4.30 points (5.30% faster)"; in units of the reward where
    there is no proportion. digits: of percentages and points."""
    found, name = percent(gain, base, reward), name_of(reward)
    if name not in SAVED:
        return f"{gain:.3g}" if found is None else f"{found:{digits}}%"
    points = f"{100 * gain:{digits}} points"
    if found is None or name != "time-saved":
        return points
    return f"{points} ({abs(found):{digits}}% {'faster' if found >= 0 else 'slower'})"


def name_of(reward: str) -> str:
    return reward.partition(" ")[0].partition("@")[0]
