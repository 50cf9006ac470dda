"""What `draftpick train` evaluates besides the run: a learning curve, tasks and arms left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies import RewardTable
    from policies.evaluation.bounds import Gain
    from policies.selection.curves import CurvePoint
    from policies.selection.leave_one_arm_out import WithoutArm
    from policies.tracking.run import TrainedRun


@dataclass(frozen=True)
class Further:
    """What was asked for besides the run.

    policy: whose curve it is; the one saved, or else the candidate with the highest mean gain.
    """

    policy: str = ""
    curve: list[CurvePoint] = field(default_factory=list)
    left_out: dict[str, Gain] = field(default_factory=dict)
    without_arm: dict[str, WithoutArm] = field(default_factory=dict)


def further(
    table: RewardTable,
    run: TrainedRun,
    policy: str,
    options: Mapping[str, Any],
    seed: int,
    curve: bool,
    leave_task_out: bool,
    leave_arm_out: bool = False,
) -> Further:
    """Learning curve, tasks and arms left out, of the whole table by cross-fitting."""
    from policies.selection.curves import learning_curve, leave_one_task_out
    from policies.selection.leave_one_arm_out import leave_one_arm_out

    if not (curve or leave_task_out or leave_arm_out):
        return Further()
    name = policy
    if run.guarded is not None and run.guarded.tried:
        tried = run.guarded.tried
        saved = [one for one in tried if one.name == run.guarded.saved]
        one = saved[0] if saved else max(tried, key=lambda one: one.gain.mean)
        policy, options, name = one.policy, one.options, one.name
    elif policy == "auto":  # nothing could be tried
        policy = name = "best-fixed"
    return Further(
        name,
        learning_curve(table, policy, options, seed) if curve else [],
        leave_one_task_out(table, policy, options, seed) if leave_task_out else {},
        leave_one_arm_out(table, policy, options, seed) if leave_arm_out else {},
    )
