"""A sweep as an MLflow run, next to the training runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from collect.queries import OVERALL
from decoders.common.provenance import tags
from policies.mlflow_store import using
from policies.tracking.own_run import outer_run, own_run
from policies.tracking.run import opened
from policies.tracking.run_log import metric_name

from .markdown import methods_of


def reach(tracking_uri: str | None) -> None:
    """Raises policies.PolicyError where the store cannot be used, before the run begins."""
    with using(tracking_uri):
        from mlflow import MlflowClient

        outer_run(MlflowClient())


def log(summary: dict[str, Any], folder: Path, tracking_uri: str | None, experiment: str) -> str:
    """Settings as params; every point's latency and qualities, and every reading that the curves
    reach, as metrics; the folder's files as artifacts. Returns the run's id."""
    with opened(tracking_uri, experiment) as store:
        import mlflow

        with own_run(store.client, store.experiment_id, folder.name) as run:
            mlflow.set_tags({f"draftpick.{k}": v for k, v in tags().items()})
            methods = ", ".join(summary["settings"]["methods"])
            mlflow.log_params(
                {**summary["settings"], "methods": methods, "questions": summary["questions"]}
            )
            mlflow.log_metrics(metrics_of(summary))
            for name in ("summary.json", "summary.md", "plots/tradeoff.png", "arms.yaml"):
                mlflow.log_artifact(str(folder / name))
            return str(run.info.run_id)


def metrics_of(summary: dict[str, Any]) -> dict[str, float]:
    """MLflow's flat names and numbers: `overall/NAME/latency`, `qa/NAME/rouge_l`, ..."""
    metrics: dict[str, float] = {}
    cells = methods_of(summary)
    for point in summary["sweep"]["points"]:
        at = f"{_flat(point['task'])}/{_flat(point['arm'])}"
        metrics[f"{at}/latency"] = point["latency"]
        metrics |= {f"{at}/{_flat(measure)}": value for measure, value in point["quality"].items()}
        if point["task"] == OVERALL:
            cell = cells[point["arm"]][OVERALL]
            metrics[f"{at}/acceptance_rate"] = cell["acceptance_rate"]
            metrics[f"{at}/mean_accepted"] = cell["mean_accepted"]
    for panel in summary["sweep"]["panels"]:
        for reading in panel["readings"]:
            at = f"{_flat(panel['task'])}/{_flat(reading['curve'])}/{_flat(panel['measure'])}"
            metrics |= {
                f"{at}/{name}": value
                for name, value in reading.items()
                if name != "curve" and value is not None
            }
    return metrics


def _flat(name: str) -> str:
    return metric_name(re.sub("/", "_", name))
