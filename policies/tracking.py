"""Training as an MLflow run: everything needed to compare, reproduce and serve a policy."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.provenance import tags

from .errors import PolicyError
from .evaluate import Evaluation, report
from .figures import all_figures
from .fitting import fit
from .guard import AUTO, CONSTANT, Guarded, check_policy, guarded
from .mlflow_store import one_line, shown, sqlite_path, using
from .records import EpochStats, Fitted, Policy, RewardTable
from .regret import Regret, regret

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENTRY = Path(__file__).with_name("pyfunc_entry.py")
SERVED_WITH = ("mlflow", "numpy", "pandas", "safetensors")  # what the logged model needs


HELD_OUT = 0.2  # of every task's queries, where nothing else is asked for


@dataclass(frozen=True)
class TrainedRun:
    """What train_run leaves behind.

    folder: the policy on this disk.
    policy_uri: ``runs:/<id>/policy``.
    registered: ``models:/NAME@champion`` or None.
    regret: on the same queries.
    evaluated_on: "validation"; without any, "folds" where the guard judged, all queries by policies
        that were trained without them; else "train".
    guarded: what the guard compared; None where it was off, or where nothing is learnt.
    """

    run_id: str
    experiment: str
    tracking_uri: str
    folder: Path
    policy_uri: str
    registered: str | None
    fitted: Fitted
    evaluation: Evaluation
    regret: Regret
    evaluated_on: str
    guarded: Guarded | None


def train_run(
    table: RewardTable,
    validation: RewardTable | None = None,
    *,
    policy: str = AUTO,
    options: Mapping[str, Any] | None = None,
    guard: bool = True,
    plain: str | None = None,
    seed: int = 0,
    held_out: float | None = None,
    out: str | Path | None = None,
    tracking_uri: str | None = None,
    experiment: str = "draftpick",
    run_name: str | None = None,
    register: str | None = None,
    alias: str = "champion",
    params: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Train, evaluate and log one policy.

    The store is reached before any training time is spent.

    policy: a name in `POLICIES`, or "auto", which tries several and needs the guard.
    guard: save the policy only where it surely beats the best fixed arm, and that arm otherwise
        (see `guarded`). Policies that learn nothing are saved as they are.
    plain: the arm that does not draft, to count the queries that the policy makes slower.
    validation: None holds out that share of every task. Where held_out is None as well, a guarded
        run holds nothing out, as it evaluates by folds, and any other holds out a fifth; at 0 it
        evaluates on the training table.
    out: folder for the policy; None makes mlruns/policies/<run id>.
    register: model name in the registry; its new version gets the alias.
    params: more to record, such as the reward's alpha.

    Raises PolicyError for the user's mistakes, an unreachable store among them; a run that fails is
    marked FAILED, and a policy that was trained before the store broke is still in ``out``.
    """
    check_policy(policy, options)  # wrong names should show before the store is reached
    if policy == AUTO and not guard:
        raise PolicyError("the policy 'auto' needs the guard; name a policy to train it unguarded")
    guard = guard and policy not in CONSTANT
    if validation is None:
        share = HELD_OUT if held_out is None and not guard else held_out or 0.0
        table, validation = table.split(share, seed)
    with using(tracking_uri) as uri:
        import mlflow
        from mlflow.exceptions import MlflowException

        client = mlflow.MlflowClient()
        try:
            experiment_id = experiment_of(client, uri, experiment)
            name = run_name or policy
            with mlflow.start_run(experiment_id=experiment_id, run_name=name) as run:
                run_id = str(run.info.run_id)
                mlflow.set_tags({f"draftpick.{k}": v for k, v in tags().items()})
                judged = None
                if guard:
                    judged = guarded(table, validation, seed, policy=policy, options=options)
                    fitted = judged.fitted
                else:
                    fitted = fit(policy, table, validation, seed, **dict(options or {}))
                target = Path(out) if out else Path("mlruns") / "policies" / run_id
                folder = fitted.policy.save(target)
                by_folds = judged is not None and validation is None
                probs = judged.probs if judged is not None and by_folds else None
                on = validation or table
                evaluation = report(fitted.policy, on, table, probs=probs, seed=seed)
                left = regret(fitted.policy, on, table, plain, probs)
                asked = {"asked": policy, **(params or {})}
                try:
                    _log(client, run_id, fitted, evaluation, table, validation, asked)
                    _log_guard(judged, left)
                    registered = _log_model(client, fitted.policy, folder, table, register, alias)
                except MlflowException as error:
                    raise PolicyError(
                        f"the tracking store {shown(uri)} stopped working while the run was "
                        f"logged: {one_line(error)}; the trained policy is in {folder}"
                    ) from error
        except MlflowException as error:
            raise PolicyError(
                f"the tracking store {shown(uri)} refused the run: {one_line(error)}; mend the "
                "store or give another one with --tracking-uri"
            ) from error
    return TrainedRun(
        run_id=run_id,
        experiment=experiment,
        tracking_uri=uri,
        folder=folder,
        policy_uri=f"runs:/{run_id}/policy",
        registered=registered,
        fitted=fitted,
        evaluation=evaluation,
        regret=left,
        guarded=judged,
        evaluated_on="validation" if validation else "folds" if by_folds else "train",
    )


def experiment_of(client: MlflowClient, uri: str, name: str) -> str:
    """Its id, made where it does not exist; its artifacts go beside an SQLite store."""
    found = client.get_experiment_by_name(name)
    if found is None:
        path = sqlite_path(uri)
        place = None
        if path is not None:
            safe = re.sub(r"[^\w.-]+", "-", name)
            place = (path.resolve().parent / "artifacts" / safe).as_uri()
        return str(client.create_experiment(name, artifact_location=place))
    if found.lifecycle_stage != "active":
        raise PolicyError(
            f"the experiment {name!r} was deleted in {shown(uri)}; restore it or choose another "
            "name with --experiment"
        )
    return str(found.experiment_id)


def _log(
    client: MlflowClient,
    run_id: str,
    fitted: Fitted,
    evaluation: Evaluation,
    table: RewardTable,
    validation: RewardTable | None,
    params: Mapping[str, Any],
) -> None:
    import mlflow

    origin = fitted.policy.origin
    about = {
        "policy": origin.name,
        "seed": origin.seed,
        "arms": ", ".join(origin.arms),
        "reward": table.reward_name,
        "embedder": table.embedder,
        "dimension": table.dimension,
        "queries": len(table),
        "validation_queries": len(validation) if validation is not None else 0,
        "table_digest": table.digest,
        "arms_fingerprint": table.arms_fingerprint,
    }
    mlflow.log_params({**params, **origin.options, **about})
    _log_input(table, "training")
    if validation is not None:
        _log_input(validation, "validation")
    _log_history(client, run_id, fitted.history)
    metrics: dict[str, float] = {}
    for row in [*evaluation.rows, dataclasses.replace(evaluation.gain, name="gain")]:
        key = f"value/{metric_name(row.name)}"
        metrics |= {key: row.mean, f"{key}_low": row.low, f"{key}_high": row.high}
    mlflow.log_metrics(metrics)
    records = [dataclasses.asdict(row) for row in [*evaluation.rows, evaluation.gain]]
    mlflow.log_table({k: [r[k] for r in records] for k in records[0]}, "values.json")
    cells = [(t, n, m) for t, row in evaluation.by_task.items() for n, m in row.items()]
    columns = dict(zip(("task", "row", "mean"), map(list, zip(*cells, strict=True)), strict=True))
    mlflow.log_table(columns, "values_by_task.json")
    figures = all_figures(fitted.history, evaluation, table.arms, table.reward_name)
    for name, figure in figures.items():
        mlflow.log_figure(figure, f"figures/{name}")


def _log_guard(judged: Guarded | None, left: Regret) -> None:
    """The verdict as a tag, the candidates' gains, and the regret."""
    import mlflow

    found = {f"regret/{k}": v for k, v in dataclasses.asdict(left).items() if v is not None}
    if judged is not None:
        mlflow.set_tag("draftpick.verdict", judged.verdict)
        for one in judged.tried:
            key = f"guard/{metric_name(one.name)}"
            found |= {key: one.gain.mean, f"{key}_low": one.gain.low, f"{key}_high": one.gain.high}
    mlflow.log_metrics(found)


def _log_input(table: RewardTable, context: str) -> None:
    import mlflow
    from mlflow.data.numpy_dataset import from_numpy

    data = from_numpy(
        features=table.inputs,
        targets=table.rewards,
        name=f"rewards-{metric_name(table.reward_name)}",
        digest=table.digest[:32],  # MLflow keeps 36 characters; the whole is among the params
    )
    mlflow.log_input(data, context=context)


def _log_history(client: MlflowClient, run_id: str, history: list[EpochStats]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics: list[Metric] = []
    for row in history:
        values = {
            "train/loss": row.loss,
            "train/entropy": row.entropy,
            "train/reward": row.train_reward,
            "train/reward_greedy": row.train_greedy,
            "train/seconds": row.seconds,
            "validation/reward": row.validation_reward,
            "validation/reward_greedy": row.validation_greedy,
            "choosing/reward_greedy": row.choosing_greedy,
        } | {f"arm_share/{metric_name(arm)}": share for arm, share in row.arm_shares.items()}
        metrics += [Metric(k, v, now, row.epoch) for k, v in values.items() if v is not None]
    for start in range(0, len(metrics), 1000):  # the most that one request may carry
        client.log_batch(run_id, metrics=metrics[start : start + 1000])


def _log_model(
    client: MlflowClient,
    policy: Policy,
    folder: Path,
    table: RewardTable,
    register: str | None,
    alias: str,
) -> str | None:
    """The folder as ``policy/``, and the pyfunc model; returns the registered URI."""
    import mlflow

    from .pyfunc import predictions

    mlflow.log_artifacts(str(folder), "policy")
    example = table.read_by(policy.origin)[:2].copy()
    info = mlflow.pyfunc.log_model(
        name="model",
        python_model=str(ENTRY),
        artifacts={"policy": str(folder)},
        code_paths=[str(ENTRY.parent)],
        signature=mlflow.models.infer_signature(example, predictions(policy, example)),
        input_example=example,
        pip_requirements=[f"{name}=={metadata.version(name)}" for name in SERVED_WITH],
        registered_model_name=register,
    )
    if register is None:
        return None
    client.set_registered_model_alias(register, alias, str(info.registered_model_version))
    return f"models:/{register}@{alias}"


def metric_name(name: str) -> str:
    """A name that MLflow takes for a metric or a data set."""
    return re.sub(r"[^\w./ -]+", "_", name)
