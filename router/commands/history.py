"""A training run's epochs, read back from MLflow."""

from __future__ import annotations

from typing import Any

ARM_SHARE = "arm_share/"


def epochs_of(run_id: str, tracking_uri: str | None = None) -> list[dict[str, Any]]:
    """One object an epoch, oldest first: each logged metric, and `arm_shares` by arm.

    Empty for a policy that trains without epochs. Raises PolicyError where the store does not
    answer or does not know the run.
    """
    from policies import PolicyError
    from policies.mlflow_store import using

    with using(tracking_uri, create=False) as uri:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        client = MlflowClient(uri)
        try:
            names = [n for n in client.get_run(run_id).data.metrics if not n.startswith("value/")]
            points = {name: client.get_metric_history(run_id, name) for name in names}
        except MlflowException:
            raise PolicyError(f"the MLflow store holds no run {run_id}; check its id") from None
    epochs: dict[int, dict[str, Any]] = {}
    for name, found in points.items():
        for point in found:
            epoch = epochs.setdefault(point.step, {"epoch": point.step, "arm_shares": {}})
            if name.startswith(ARM_SHARE):
                epoch["arm_shares"][name.removeprefix(ARM_SHARE)] = point.value
            else:
                epoch[name] = point.value
    return [epochs[step] for step in sorted(epochs) if step > 0]
