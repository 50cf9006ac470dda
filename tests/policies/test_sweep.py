"""Several runs below one parent: means and deviations are those of the children."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from policy_tables import separable, tiny

from policies import PolicyError, load
from policies.mlflow_store import using
from policies.tracking.run import Task
from policies.tracking.seeds import Sweep, sweep_run
from router.mlflow_model.form import TextForm

FORM = TextForm("toy", "toy/8", 16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('sweep')}/mlflow.db"


@pytest.fixture(scope="module")
def sweep(store: str, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    out = tmp_path_factory.mktemp("policies")
    groups = {
        name: [
            Task(
                separable(60, seed=at), policy="regression", guard=False, seed=seed,
                out=out / f"{name}-{seed}", params={"alpha": at, "repetitive": "all"},
                **({"register": "swept", "form": FORM} if (name, seed) == ("alpha=0", 0) else {}),
            )
            for seed in range(3)
        ]
        for at, name in enumerate(("alpha=0", "alpha=1"))
    }  # fmt: skip
    seen: list[tuple[int, int]] = []
    found = sweep_run(groups, tracking_uri=store, on_progress=lambda *now: seen.append(now))
    assert seen == [(done, 6) for done in range(7)]
    return found


def test_the_parent_holds_means_and_deviations(store: str, sweep: Sweep) -> None:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=store)
    parent = client.get_run(sweep.run_id)
    children = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{sweep.run_id}'"
    )
    assert len(children) == 6 and {one.info.status for one in children} == {"FINISHED"}
    for name, at in (("alpha=0", "0"), ("alpha=1", "1")):
        mine = [one for one in children if one.data.params["alpha"] == at]
        assert sorted(one.data.params["seed"] for one in mine) == ["0", "1", "2"]
        for key in ("value/greedy", "value/gain", "regret/mean"):
            values = [one.data.metrics[key] for one in mine]
            group = name.replace("=", "_")
            logged = parent.data.metrics
            assert logged[f"{group}/{key}_mean"] == pytest.approx(np.mean(values))
            assert logged[f"{group}/{key}_std"] == pytest.approx(np.std(values, ddof=1))
    assert parent.data.params == {"asked": "regression", "repetitive": "all"}
    digests = {one.dataset.digest for one in parent.inputs.dataset_inputs}
    assert digests == {separable(60, seed=at).digest[:32] for at in (0, 1)}
    top = {one.path for one in client.list_artifacts(sweep.run_id)}
    assert {"runs.json", "figures"} <= top
    with using(store):
        rows = mlflow.artifacts.load_dict(f"runs:/{sweep.run_id}/runs.json")
    at = rows["columns"].index("run_id")
    assert {row[at] for row in rows["data"]} == {one.info.run_id for one in children}


def test_the_first_seeds_policy_is_registered(store: str, sweep: Sweep) -> None:
    assert sweep.first.registered == "models:/swept/1"
    x = separable(5).embeddings
    found = load("models:/swept@champion", store).distribution(x)
    np.testing.assert_array_equal(found, load(sweep.first.folder).distribution(x))


def test_one_run_has_no_deviation(store: str) -> None:
    import mlflow

    found = sweep_run({"": [Task(tiny(), policy="uniform")]}, tracking_uri=store)
    metrics = mlflow.MlflowClient(tracking_uri=store).get_run(found.run_id).data.metrics
    assert "value/greedy_mean" in metrics and "value/greedy_std" not in metrics


def test_a_failing_run_fails_the_parent(store: str) -> None:
    import mlflow

    wrong = Task(tiny(), policy="knn", options={"k": 0}, guard=False)
    tasks = [Task(tiny(), policy="uniform"), wrong]
    with pytest.raises(PolicyError, match="k must be"):
        sweep_run({"": tasks}, tracking_uri=store, run_name="failing")
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = client.search_experiments(filter_string="name = 'draftpick'")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.mlflow.runName = 'failing'")
    children = client.search_runs(
        [experiment.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    )
    assert parent.info.status == "FAILED"
    assert sorted(one.info.status for one in children) == ["FAILED", "FINISHED"]


def test_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="at least one task"):
        sweep_run({}, tracking_uri=f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []
