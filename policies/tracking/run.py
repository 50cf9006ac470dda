"""Training as an MLflow run: everything needed to compare, reproduce and serve a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.common.files import write_atomically
from decoders.common.provenance import tags
from decoders.common.secrets import masked

from ..errors import PolicyError
from ..evaluation.decisions import decisions, regret
from ..evaluation.evaluate import aligned, report
from ..fitting import fit
from ..mlflow_store import outer_run, own_run, place_of, refusals, sqlite_path, using
from ..records import Fitted, RewardTable
from ..selection.guard import AUTO, CONSTANT, Guarded, Objection, check_policy, guarded
from .card import FILE as CARD
from .card import Judged, card
from .registry import CHAMPION, TRAINING_IDS, check_name, holder, write_training_ids
from .run_log import ModelLogger, final_metrics, log_policy, log_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

HELD_OUT = 0.2  # of every task's queries, where nothing else is asked for


@dataclass(frozen=True, eq=False)
class TrainedRun(Judged):
    """The outcome of train_run, and what it is worth.

    folder: the policy on this disk.
    policy_uri: ``runs:/<id>/policy``.
    registered: ``models:/NAME/VERSION`` or None.
    champion: whether that version has the alias ``champion``.
    guarded: what the guard compared; None where it was off, or where nothing is learnt.
    metrics: those at the end of the run, as logged.
    """

    run_id: str
    experiment: str
    tracking_uri: str
    folder: Path
    policy_uri: str
    registered: str | None
    champion: bool
    fitted: Fitted
    guarded: Guarded | None
    metrics: dict[str, float]


@dataclass(frozen=True)
class Task:
    """A training that is asked for.

    policy: a name in `POLICIES`, or "auto", which tries several and needs the guard.
    fixed, objection: as of `guarded`.
    guard: save the policy only if it beats the best fixed arm with confidence, and that arm
        otherwise (see `guarded`). Policies that learn nothing are saved as they are.
    plain: the arm that does not draft, to count the queries that the policy makes slower.
    validation: None holds out that share of every task. Where held_out is None as well, a guarded
        run holds nothing out, as it evaluates by folds, and any other holds out a fifth; at 0 it
        evaluates on the training table.
    out: folder for the policy; None makes mlruns/policies/<run id>.
    register: model name in the registry; its new version becomes the challenger, and the champion
        where there is none.
    params: more to record, such as the reward's alpha.
    log_model: logs the MLflow model to register; None logs the policy's folder alone.
    """

    table: RewardTable
    validation: RewardTable | None = None
    policy: str = AUTO
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    guard: bool = True
    fixed: str | None = None
    objection: Objection = lambda table, probs: ""
    plain: str | None = None
    seed: int = 0
    held_out: float | None = None
    out: str | Path | None = None
    run_name: str | None = None
    register: str | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    log_model: ModelLogger | None = None

    def __post_init__(self) -> None:
        check_policy(self.policy, self.options)
        if self.policy == AUTO and not self.guard:
            raise PolicyError(
                "the policy 'auto' needs the guard; name a policy to train it unguarded"
            )
        if self.register is not None:
            check_name(self.register)
            if self.log_model is None:
                raise PolicyError("a registered policy is a model; log one by log_model=")

    @property
    def guards(self) -> bool:
        return self.guard and self.policy not in CONSTANT

    def split(self) -> tuple[RewardTable, RewardTable | None]:
        """Split into what is trained on, and what is held out."""
        if self.validation is not None:
            return self.table, self.validation
        share = HELD_OUT if self.held_out is None and not self.guards else self.held_out or 0.0
        return self.table.split(share, self.seed)


def train_run(
    task: Task, *, tracking_uri: str | None = None, experiment: str = "draftpick"
) -> TrainedRun:
    """Train, evaluate and log one policy. The store is reached before any training time is spent.

    Raises PolicyError for the user's mistakes, an unreachable store among them. A run that fails is
    marked FAILED, and a policy trained before the store broke is still in the task's `out`.
    """
    with using(tracking_uri) as uri:
        from mlflow import MlflowClient

        client = MlflowClient()
        then = "; repair the store or give another one with --tracking-uri"
        try:
            with refusals(uri, "refused the run", then):
                outer_run(client)
                return _run(task, client, uri, experiment)
        except OSError as error:
            raise PolicyError(
                f"cannot write the run to {masked(uri)} or its policy next to it: "
                f"{error.strerror or error}; free the disk or choose other folders"
            ) from error


def _run(task: Task, client: MlflowClient, uri: str, experiment: str) -> TrainedRun:
    """Train, evaluate and log in a run of its own (`own_run`)."""
    import mlflow

    table, validation = task.split()
    place = experiment_of(client, uri, experiment)
    with own_run(client, place, task.run_name or task.policy) as run:
        run_id = str(run.info.run_id)
        mlflow.set_tags({f"draftpick.{k}": v for k, v in tags().items()})
        judged = None
        if task.guards:
            asked: dict[str, Any] = {"policy": task.policy, "options": task.options}
            asked |= {"fixed": task.fixed, "objection": task.objection}
            judged = guarded(table, validation, task.seed, **asked)
            fitted = judged.fitted
        else:
            fitted = fit(task.policy, table, validation, task.seed, **dict(task.options))
        folder = Path(task.out) if task.out else Path("mlruns") / "policies" / run_id
        for old in (CARD, TRAINING_IDS):  # of another policy
            (folder / old).unlink(missing_ok=True)
        fitted.policy.save(folder)
        found = _judged(fitted, table, validation, judged, task)
        write_training_ids(folder, table)
        origin = fitted.policy.origin
        write_atomically(folder / CARD, card(origin, table, found, judged))
        metrics = final_metrics(found, judged)
        stopped = "stopped working while the run was logged"
        with refusals(uri, stopped, f"; the trained policy is in {folder}"):
            about = {"asked": task.policy, **task.params}
            log_run(client, run_id, fitted, found, table, validation, about, metrics)
            if judged is not None:
                mlflow.set_tag("draftpick.verdict", judged.verdict)
            registered = log_policy(client, fitted, folder, found, task.log_model, task.register)
    champion = False
    if registered is not None and task.register is not None:
        champion = registered.endswith(f"/{holder(client, task.register, CHAMPION)}")
    return TrainedRun(
        **vars(found),
        run_id=run_id,
        experiment=experiment,
        tracking_uri=uri,
        folder=folder,
        policy_uri=f"runs:/{run_id}/policy",
        registered=registered,
        champion=champion,
        fitted=fitted,
        guarded=judged,
        metrics=metrics,
    )


def _judged(
    fitted: Fitted,
    table: RewardTable,
    validation: RewardTable | None,
    judged: Guarded | None,
    task: Task,
) -> Judged:
    policy, on = fitted.policy, validation or table
    by_folds = judged is not None and validation is None
    probs = judged.probs if judged is not None and by_folds else aligned(policy, on)
    made = decisions(policy, on, table, probs)
    return Judged(
        on="validation" if validation else "folds" if by_folds else "train",
        evaluation=report(policy, on, table, probs=probs, seed=task.seed),
        regret=regret(made, task.plain),
        decisions=made,
    )


def experiment_of(client: MlflowClient, uri: str, name: str) -> str:
    """Its id, made where it does not exist; its artifacts go next to an SQLite store."""
    found = client.get_experiment_by_name(name)
    if found is None:
        path = sqlite_path(uri)
        place = None if path is None else place_of(path, name).as_uri()
        return str(client.create_experiment(name, artifact_location=place))
    if found.lifecycle_stage != "active":
        raise PolicyError(
            f"the experiment {name!r} was deleted in {masked(uri)}; restore it or choose another "
            "name with --experiment"
        )
    return str(found.experiment_id)
