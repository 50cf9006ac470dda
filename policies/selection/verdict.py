"""The guard's verdict in words."""

from __future__ import annotations

from collections.abc import Mapping

from ..evaluation.bounds import LEAST as BOUNDED
from ..evaluation.bounds import Gain
from ..evaluation.units import Units
from .crossfit import LEAST, too_few


def verdict(
    saved: str,
    best_fixed: str,
    gains: Mapping[str, tuple[Gain, float | None]],
    units: Units,
    arms: int,
) -> str:
    """What was saved and why, and where the best fixed arm was, how many queries would settle it.

    gains: each candidate's gain over the best fixed arm, in units and in percent.
    """
    if saved in gains:
        gain, percent = gains[saved]
        return (
            f"Saved: {saved}. It gains {_amount(gain.mean, percent)} over the best fixed arm "
            f"({best_fixed}), and at least {gain.low:.3g} ({_tests(len(gains))})."
        )
    kept = f"Saved: the best fixed arm ({best_fixed})."
    if arms < 2:
        return f"{kept} The table has no other arm to choose."
    if units.groups < LEAST:
        return f"{kept} {too_few(units, 'to estimate what a policy gains')}."
    if not gains:
        return f"{kept} No policy could be trained."
    name, (gain, percent) = max(gains.items(), key=lambda item: item[1][0].mean)
    if units.groups < BOUNDED:
        sure = too_few(units, "to say with confidence what a policy gains", BOUNDED)
        return f"{kept} {sure} (so far the best, {name}: {_amount(gain.mean, percent)})."
    if gain.needed is None and gain.mean > 0:
        return (
            f"{kept} No policy is better with confidence: the best, {name}, gains "
            f"{_amount(gain.mean, percent)}, but the costs behind the reward are known so loosely "
            f"that they alone may move this by {gain.costs_error or 0:.3g} "
            f"({_tests(len(gains))}). Collect again on an idle machine."
        )
    if gain.needed is None:
        return (
            f"{kept} No policy gained anything over it on queries that it was not trained on (the "
            f"best, {name}: {_amount(gain.mean, percent)}); one arm is enough here."
        )
    return (
        f"{kept} No policy is better with confidence: the best, {name}, gains "
        f"{_amount(gain.mean, percent)}, but its lower bound is {gain.low:.3g} "
        f"({_tests(len(gains))}). About {gain.needed:,} queries would settle it; there are "
        f"{units.queries:,}."
    )


def _amount(mean: float, percent: float | None) -> str:
    return f"{mean:.3g}" if percent is None else f"{mean:.3g} ({percent:.2g}%)"


def _tests(tests: int) -> str:
    return "95% confidence" if tests == 1 else f"95% confidence for all {tests} candidates together"
