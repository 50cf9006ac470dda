from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from router.commands.history import epochs_of


def test_epochs_come_back_from_mlflow(tmp_path: Path) -> None:
    from policies.mlflow_store import using

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with using(uri):
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        run_id = client.create_run(client.create_experiment("test")).info.run_id
        for epoch in (1, 2):
            client.log_metric(run_id, "train/loss", 1 / epoch, step=epoch)
            client.log_metric(run_id, "arm_share/small", 0.1 * epoch, step=epoch)
        client.log_metric(run_id, "value/greedy", 0.9)
    assert epochs_of(run_id, uri) == [
        {"epoch": 1, "arm_shares": {"small": 0.1}, "train/loss": 1.0},
        {"epoch": 2, "arm_shares": {"small": 0.2}, "train/loss": 0.5},
    ]
    with pytest.raises(PolicyError, match="no run nothing"):
        epochs_of("nothing", uri)
