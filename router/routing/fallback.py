"""When an arm is down: the next best one by the policy's scores answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from decoders.common.errors import ArmDown

from ..logs.recorder import Choice

if TYPE_CHECKING:
    from policies import Policy


def redirected(
    choice: Choice, policy: Policy, scores: Sequence[float], down: Mapping[str, ArmDown]
) -> Choice:
    """The choice, or where its arm is down the best one by `scores` [A] that is not, each with the
    chance that it has while these are down.

    A draw goes to the best of the others whenever it falls on an arm that is down, so the chance of
    that one is its own and theirs. Raises ArmDown where all of the policy's arms are down.
    """
    left = {arm: score for arm, score in zip(policy.arms, scores, strict=True) if arm not in down}
    if not left:
        raise all_down(down)
    best = max(left, key=left.__getitem__)
    arm = best if choice.arm in down else choice.arm
    if not choice.dynamic:
        return replace(choice, arm=arm)
    own = policy.distribution(choice.x)[0] if choice.chances is None else choice.chances.values()
    chances = dict(zip(policy.arms, map(float, own), strict=True))
    for name in policy.arms:
        if name in down:
            chances[best] += chances[name]
            chances[name] = 0.0
    return replace(choice, arm=arm, propensity=chances[arm], chances=chances)


def passed_over(
    wanted: str,
    taken: str,
    policy: Policy,
    scores: Sequence[float],
    down: Mapping[str, ArmDown],
) -> dict[str, str] | None:
    """Why each arm that is down and came before the one taken did not answer; None for none.

    wanted: the policy's first choice.
    """
    of = dict(zip(policy.arms, scores, strict=True))
    before = [arm for arm in down if taken != wanted and (arm == wanted or of[arm] > of[taken])]
    return {arm: down[arm].reason for arm in before} or None


def all_down(down: Mapping[str, ArmDown]) -> ArmDown:
    """One error for all arms that could have answered."""
    why = "; ".join(f"{arm}: {error.reason}" for arm, error in down.items())
    return ArmDown(", ".join(down), why, min(error.pause_s for error in down.values()))
