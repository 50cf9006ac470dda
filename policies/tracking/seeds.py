"""Several training runs below one parent run: other seeds, and other weights of the reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoders.common.provenance import tags
from decoders.common.secrets import masked
from decoders.common.wording import in_words

from ..errors import PolicyError
from ..evaluation import scale
from .figures import sweep_dots
from .own_run import own_run
from .run import Task, TrainedRun, check_registered, opened, run_task
from .run_log import log_input, metric_name


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over runs; the latter None for a single run."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        several = len(values) > 1
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if several else None)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    name: what they share, such as "alpha=0.5"; "" where there is one group.
    spreads: of every metric that all of them have.
    saved: how many runs saved which policy.
    percents: each run's gain in percent, as of `percent`.
    """

    name: str
    runs: list[TrainedRun]
    spreads: dict[str, Spread]
    saved: dict[str, int]
    percents: list[float]

    @classmethod
    def of(cls, name: str, runs: list[TrainedRun]) -> Group:
        shared = set.intersection(*(set(run.metrics) for run in runs))
        spreads = {key: Spread.of([run.metrics[key] for run in runs]) for key in sorted(shared)}
        saved = Counter(saved_by(run) for run in runs)
        return cls(name, runs, spreads, dict(saved.most_common()), [percent(run) for run in runs])


@dataclass(frozen=True)
class Sweep:
    """What `sweep_run` leaves behind; run_id: of the parent run."""

    run_id: str
    experiment: str
    tracking_uri: str
    groups: list[Group]

    @property
    def first(self) -> TrainedRun:
        return self.groups[0].runs[0]


def saved_by(run: TrainedRun) -> str:
    """The name of the policy that a run saved."""
    return run.guarded.saved if run.guarded is not None else run.fitted.policy.name


def percent(run: TrainedRun) -> float:
    """A run's gain in percent, as of `scale.relative`; nan where there is no proportion."""
    found, reward = run.evaluation, run.fitted.policy.origin.reward_name
    share = scale.percent(found.gain.mean, found["best-fixed"].mean, reward)
    return math.nan if share is None else share


def sweep_run(
    groups: Mapping[str, Sequence[Task]],
    *,
    tracking_uri: str | None = None,
    experiment: str = "draftpick",
    run_name: str = "sweep",
    params: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """Train every task in a child run; the parent run has the means and deviations of each group.

    groups: name -> tasks that differ in their seed alone.
    params: of the parent run, besides those that all tasks share.
    on_progress: called with (done, total) runs.

    Raises PolicyError as `train_run`; the runs that were finished by then stay.
    """
    tasks = [task for each in groups.values() for task in each]
    if not tasks:
        raise PolicyError("a sweep needs at least one task")
    with opened(tracking_uri, experiment) as store:
        import mlflow
        from mlflow.exceptions import MlflowException

        for task in tasks:
            check_registered(store, task)
        with own_run(store.client, store.experiment_id, run_name) as parent:
            mlflow.set_tags({f"draftpick.{k}": v for k, v in tags().items()})
            mlflow.log_params({"asked": tasks[0].policy, **_shared(tasks), **dict(params or {})})
            done: list[Group] = []
            on_progress(0, len(tasks))
            for name, members in groups.items():
                log_input(members[0].table, metric_name(f"training {name}".strip()))
                runs = []
                for task in members:
                    runs.append(run_task(store, task))
                    on_progress(sum(len(one.runs) for one in done) + len(runs), len(tasks))
                done.append(Group.of(name, runs))
            try:
                _log(done)
            except MlflowException as error:
                raise PolicyError(
                    f"the tracking store {masked(store.uri)} stopped working when all runs were "
                    f"done: {in_words(error)}; the first one's policy is in "
                    f"{done[0].runs[0].folder}"
                ) from error
        return Sweep(str(parent.info.run_id), store.experiment, store.uri, done)


def _shared(tasks: Sequence[Task]) -> dict[str, Any]:
    """The parameters that all tasks have in common."""
    first = tasks[0].params
    return {k: v for k, v in first.items() if all(task.params.get(k) == v for task in tasks)}


def _log(groups: Sequence[Group]) -> None:
    import mlflow

    metrics: dict[str, float] = {}
    for group in groups:
        prefix = f"{metric_name(group.name)}/" if group.name else ""
        for key, spread in group.spreads.items():
            metrics[f"{prefix}{key}_mean"] = spread.mean
            if spread.deviation is not None:
                metrics[f"{prefix}{key}_std"] = spread.deviation
    mlflow.log_metrics(metrics)
    rows = [row for group in groups for row in rows_of(group)]
    mlflow.log_table({key: [row[key] for row in rows] for key in rows[0]}, "runs.json")
    mlflow.log_figure(
        sweep_dots({one.name or "all runs": one.percents for one in groups}), "figures/runs.png"
    )


def rows_of(group: Group) -> list[dict[str, Any]]:
    """A row a run, for a table."""
    return [
        {
            "group": group.name,
            "seed": run.fitted.policy.origin.seed,
            "run_id": run.run_id,
            "saved": saved_by(run),
            "reward": run.evaluation["greedy"].mean,
            "best_fixed": run.evaluation.best_fixed,
            "best_fixed_reward": run.evaluation["best-fixed"].mean,
            "gain": run.evaluation.gain.mean,
            "gain_low": run.evaluation.gain.low,
            "gain_high": run.evaluation.gain.high,
            "gain_percent": share,
            "gap_closed": run.regret.gap_closed,
        }
        for run, share in zip(group.runs, group.percents, strict=True)
    ]
