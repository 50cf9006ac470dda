"""The guard's verdict in words."""

from __future__ import annotations

from collections.abc import Mapping

from ..evaluation.bounds import MIN_BOUNDED_GROUPS, Gain
from ..evaluation.scale import in_words, percent
from ..evaluation.units import Units
from .crossfit import MIN_GROUPS, too_few


def verdict(
    saved: str,
    best_fixed: str,
    gains: Mapping[str, tuple[Gain, str]],
    units: Units,
    arms: int,
) -> str:
    """Say what was saved and why; of the best fixed arm also how many queries would settle it.

    gains: each candidate's gain over the best fixed arm, and how much that is in words.
    """
    if saved in gains:
        gain, words = gains[saved]
        return (
            f"Saved: {saved}. It gains {words} over the best fixed arm "
            f"({best_fixed}), and at least {gain.low:.3g} ({_tests(len(gains))})."
        )
    kept = f"Saved: the best fixed arm ({best_fixed})."
    if arms < 2:
        return f"{kept} The table has no other arm to choose."
    if units.groups < MIN_GROUPS:
        return f"{kept} {too_few(units, 'to estimate what a policy gains')}."
    if not gains:
        return f"{kept} No policy could be trained."
    name, (gain, words) = max(gains.items(), key=lambda item: item[1][0].mean)
    if units.groups < MIN_BOUNDED_GROUPS:
        sure = too_few(units, "to say with confidence what a policy gains", MIN_BOUNDED_GROUPS)
        return f"{kept} {sure} (so far the best, {name}: {words})."
    if gain.needed is None and gain.mean > 0:
        return (
            f"{kept} No policy is better with confidence: the best, {name}, gains "
            f"{words}, but the costs behind the reward are known so loosely "
            f"that they alone may move this by {gain.costs_error or 0:.3g} "
            f"({_tests(len(gains))}). Collect again on an idle machine."
        )
    if gain.needed is None:
        return (
            f"{kept} No policy gained anything over it on queries that it was not trained on (the "
            f"best, {name}: {words}); one arm is enough here."
        )
    return (
        f"{kept} No policy is better with confidence: the best, {name}, gains "
        f"{words}, but its lower bound is {gain.low:.3g} "
        f"({_tests(len(gains))}). About {gain.needed:,} queries would settle it; there are "
        f"{units.queries:,}."
    )


def amount(gain: float, base: float, reward: str) -> str:
    """A gain over a mean reward `base`, in units of the reward and in proportion."""
    if percent(gain, base, reward) is None:
        return f"{gain:.3g}"
    return f"{gain:.3g} ({in_words(gain, base, reward, '.2g')})"


def _tests(tests: int) -> str:
    return "95% confidence" if tests == 1 else f"95% confidence for all {tests} candidates together"
