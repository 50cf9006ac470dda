"""Carry out a plan of `draftpick train`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from collect.store.collection import Collection
from collect.summary import cautions
from collect.table import read_rewards
from decoders.common.files import check_folder
from policies import report
from policies.fitting import OWN_GUARDS, GuardReport
from policies.selection.curves import require_enough
from policies.selection.subsample import subsample
from policies.tracking.run import HELD_OUT, Task, train_run
from policies.tracking.seeds import sweep_run

from ...mlflow_model.form import TextForm
from .further import Further, further
from .second_reward import judged_rows

if TYPE_CHECKING:
    from collect.store.manifest import Manifest
    from policies import Evaluation, RewardTable
    from policies.tracking.run import TrainedRun
    from policies.tracking.seeds import Sweep

    from .plan import TrainPlan


@dataclass(frozen=True)
class TrainOutcome:
    """What one run came to.

    more: the further evaluations of the plan.
    features: what the policy reads besides the query.
    left_out: rows that the table lacks, in words; "" for none.
    cautions: sentences about what the collection's figures leave out.
    held_out: whether the run was judged on queries that were held out.
    judged_by, judged: the other reward of --judge-by and what the policy earns of it.
    promise: of a policy that has a guard of its own, such as that of risk control; None of others.
    registered_as: the name of the registered model.
    """

    run: TrainedRun
    more: Further
    features: tuple[str, ...]
    left_out: str
    cautions: list[str]
    held_out: bool
    judged_by: str
    judged: Evaluation | None
    promise: GuardReport | None
    registered_as: str | None


@dataclass(frozen=True)
class SweepOutcome:
    """What several runs came to. left_out, cautions: as of TrainOutcome."""

    sweep: Sweep
    left_out: str
    cautions: list[str]


def run(
    plan: TrainPlan, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> TrainOutcome | SweepOutcome:
    """Read the collection, train, and log to MLflow.

    on_progress: called with (done, total) runs where there are several.

    Raises DraftpickError for what the collection lacks, PolicyError for what cannot be trained or
    logged.
    """
    if plan.out is not None:
        check_folder(plan.out, "--out")
    collection = Collection.open(plan.rewards)
    read = {
        weight: read_rewards(collection, replace(plan.table, alpha=weight))
        for weight in plan.weights
    }
    left_out = str(read[plan.weights[0]][1])
    tables = {weight: table for weight, (table, _) in read.items()}
    if plan.several:
        sweep = sweep_run(
            _groups(plan, tables, collection.manifest),
            tracking_uri=plan.tracking_uri,
            experiment=plan.experiment,
            run_name=f"{plan.policy}, {len(plan.weights) * len(plan.seeds)} runs",
            params={
                "seeds": len(plan.seeds),
                "alphas": ",".join(f"{weight:g}" for weight in plan.weights),
            },
            on_progress=on_progress,
        )
        return SweepOutcome(sweep, left_out, cautions(collection, plan.table.reward))
    return _run_one(plan, collection, tables[plan.weights[0]], left_out)


def _run_one(
    plan: TrainPlan, collection: Collection, whole: RewardTable, left_out: str
) -> TrainOutcome:
    seed = plan.seeds[0]
    task = _task(
        plan,
        whole,
        collection.manifest,
        plan.weights[0],
        seed,
        plan.out,
        plan.register,
        plan.policy,
    )
    table, held = task.table, task.validation
    judge = None
    if plan.judge_by is not None:
        judge = judged_rows(collection, plan.judge_by, plan.table, table, held)
    if plan.curve or plan.leave_task_out or plan.leave_arm_out:
        require_enough(table)
    done = train_run(task, tracking_uri=plan.tracking_uri, experiment=plan.experiment)
    made, own = done.fitted.policy, OWN_GUARDS.get(plan.policy)
    more = further(
        table,
        done,
        plan.policy,
        task.options,
        seed,
        plan.curve,
        plan.leave_task_out,
        plan.leave_arm_out,
    )
    return TrainOutcome(
        run=done,
        more=more,
        features=tuple(table.feature_names),
        left_out=left_out,
        cautions=cautions(collection, plan.table.reward),
        held_out=held is not None,
        judged_by="" if judge is None else judge.reward_name,
        judged=None if judge is None else report(made, judge, seed=seed),
        promise=own.report(made, held or table, seed) if own is not None else None,
        registered_as=plan.register,
    )


def _groups(
    plan: TrainPlan, tables: dict[float, RewardTable], manifest: Manifest
) -> dict[str, list[Task]]:
    """A group a weight, a task a seed. The first seed's policy goes to `plan.out`, in a folder for
    each weight where there are several, and is the one that is registered."""
    found: dict[str, list[Task]] = {}
    first = plan.seeds[0]
    for weight, table in tables.items():
        name = f"alpha={weight:g}" if len(tables) > 1 else ""
        out = plan.out / name if plan.out is not None else None
        found[name] = [
            _task(
                plan,
                table,
                manifest,
                weight,
                seed,
                out if seed == first else None,
                plan.register if seed == first else None,
                f"{name}, seed={seed}".removeprefix(", "),
            )
            for seed in plan.seeds
        ]
    return found


def _task(
    plan: TrainPlan,
    table: RewardTable,
    manifest: Manifest,
    weight: float,
    seed: int,
    out: Path | None,
    register: str | None,
    run_name: str,
) -> Task:
    """One run of a plan, on the whole table of its weight."""
    settings, guard = dict(plan.settings), plan.guard
    held, share = None, plan.validation_share
    if plan.risk is not None:
        kept = [arm.name for arm in manifest.arms if arm.lossless and arm.name in table.arms]
        settings |= dict(plan.risk) | {"lossless": kept}
        table = OWN_GUARDS[plan.policy].prepared(table)
        table, held = table.split(HELD_OUT if share is None else share, seed)
        share = 0.0
    elif plan.judge_by is not None or plan.train_size is not None:
        if share is None:
            share = HELD_OUT if plan.judge_by is not None or not guard else 0.0
        table, held = table.split(share, seed)
        if plan.train_size is not None:
            table = subsample(table, plan.train_size, seed)
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), None)
    return Task(
        table,
        held,
        policy=plan.policy,
        options=settings,
        guard=guard,
        plain=plain if plain in table.arms else None,
        seed=seed,
        held_out=share,
        out=out,
        run_name=run_name,
        register=register,
        params={
            "alpha": weight,
            "rewards": str(plan.rewards),
            "validation_share": share,
            "arms": ",".join(table.arms),
            "features": ",".join(table.feature_names) or "none",
            "repetitive": plan.table.repetitive,
            "train_size": plan.train_size,
            "judge_by": plan.judge_by,
        },
        form=TextForm.of(manifest),
    )
