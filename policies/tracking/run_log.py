"""Records of a training run in MLflow, in the run that is active."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from decoders.common.plugins import watched

from ..evaluation.units import units_of
from ..records import EpochStats, Fitted, Policy, RewardTable
from ..selection.guard import Guarded
from .card import FILE as CARD
from .card import Judged
from .registry import TRAINING_IDS, enrol

if TYPE_CHECKING:
    from mlflow import MlflowClient

ModelLogger = Callable[[Policy, Path], Any]
"""Logs a policy, saved in a folder, as an MLflow model in the active run, as `mlflow.pyfunc` does;
`router.mlflow_model` has one."""
MODEL_LOGGERS: dict[str, Callable[[str, int, Policy, Path], Any]] = watched("model logger", {})
"""By name; `draftpick train` takes `text`. Each is given the target's own space of embeddings and
the tokens of an answer in the collection, then what a ModelLogger is."""


def final_metrics(found: Judged, judged: Guarded | None) -> dict[str, float]:
    """Values with intervals, regret, the candidates' gains."""
    metrics: dict[str, float] = {}
    gain = dataclasses.replace(found.evaluation.gain, name="gain")
    for row in [*found.evaluation.rows, gain]:
        key = f"value/{metric_name(row.name)}"
        metrics |= {key: row.mean, f"{key}_low": row.low, f"{key}_high": row.high}
    left = dataclasses.asdict(found.regret)
    metrics |= {f"regret/{k}": float(v) for k, v in left.items() if v is not None}
    for one in judged.tried if judged is not None else ():
        key = f"guard/{metric_name(one.name)}"
        metrics |= {key: one.gain.mean, f"{key}_low": one.gain.low, f"{key}_high": one.gain.high}
    return {key: figure for key, figure in metrics.items() if math.isfinite(figure)}


def log_run(
    client: MlflowClient,
    run_id: str,
    fitted: Fitted,
    found: Judged,
    table: RewardTable,
    validation: RewardTable | None,
    about: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> None:
    import mlflow

    origin, evaluation = fitted.policy.origin, found.evaluation
    known = {
        "policy": origin.name,
        "seed": origin.seed,
        "arms": ", ".join(origin.arms),
        "reward": table.reward_name,
        "embedder": table.embedder,
        "dimension": table.dimension,
        "queries": units_of(table).queries,
        "validation_queries": 0 if validation is None else units_of(validation).queries,
        "table_digest": table.digest,
        "arms_fingerprint": table.arms_fingerprint,
    }
    mlflow.log_params({**about, **origin.options, **known})
    log_input(table, "training")
    if validation is not None:
        log_input(validation, "validation")
    _log_history(client, run_id, fitted.history)
    mlflow.log_metrics(dict(metrics))
    cells = [(t, n, m) for t, row in evaluation.by_task.items() for n, m in row.items()]
    columns = dict(zip(("task", "row", "mean"), map(list, zip(*cells, strict=True)), strict=True))
    mlflow.log_table(columns, "values_by_task.json")
    mlflow.log_table(found.decisions.columns(), "decisions.json")


def log_input(table: RewardTable, context: str) -> None:
    """The table as an input of the active run, known by its digest."""
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


def log_policy(
    client: MlflowClient,
    fitted: Fitted,
    folder: Path,
    found: Judged,
    log_model: ModelLogger | None,
    register: str | None,
) -> str | None:
    """The folder as ``policy/``, its card, and the model where it is logged; registered last, when
    all else is there. Returns the registered version's URI."""
    import mlflow

    mlflow.log_artifact(str(folder / CARD))
    mlflow.set_tag("mlflow.note.content", (folder / CARD).read_text(encoding="utf-8"))
    with TemporaryDirectory(prefix="draftpick-model-") as scratch:
        files = fitted.policy.save(Path(scratch) / "policy")  # of a folder that holds other things
        for name in (CARD, TRAINING_IDS):
            (files / name).write_bytes((folder / name).read_bytes())
        mlflow.log_artifacts(str(files), "policy")
        info = None if log_model is None else log_model(fitted.policy, files)
    if register is None:
        return None
    gain = found.evaluation.gain
    words = (
        f"{fitted.policy.name}: gains {gain.mean:.4f} over the best fixed arm "
        f"({found.evaluation.best_fixed}), 95% interval {gain.interval()}, on "
        f"{gain.queries} queries ({found.on}). The run's card.md says more."
    )
    return enrol(client, register, info, words)


def metric_name(name: str) -> str:
    """A name that MLflow takes for a metric or a data set."""
    return re.sub(r"[^\w./ -]+", "_", name)
