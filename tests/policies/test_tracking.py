"""A training run in MLflow: complete, loadable by every kind of URI, refused early."""

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import numpy as np
import pandas as pd
import pytest
from kills import die, killed
from mlflow.exceptions import MlflowException
from policy_tables import separable, table, tiny, with_features

import policies
from decoders.common.secrets import masked
from policies import PolicyError, RewardTable, mlflow_store
from policies.mlflow_store import default_uri
from policies.tracking import run as tracking
from policies.tracking.run import Task, TrainedRun, train_run
from router.mlflow_model import log_text_model

LOG_MODEL = partial(log_text_model, "target:toy@8", 16)


def trained(*tables: RewardTable, tracking_uri: str | None = None, **task: Any) -> TrainedRun:
    return train_run(Task(*tables, **task), tracking_uri=tracking_uri)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, kept = Path.cwd(), os.environ.pop("MLFLOW_TRACKING_URI", None)
    folder = tmp_path_factory.mktemp("cwd")
    os.chdir(folder)
    yield folder
    os.chdir(before)
    if kept is not None:
        os.environ["MLFLOW_TRACKING_URI"] = kept


@pytest.fixture(scope="module")
def run(place: Path) -> TrainedRun:
    options = {"epochs": 2, "hidden": 8}
    asked = {"register": "router-test", "params": {"alpha": 0.5}, "log_model": LOG_MODEL}
    return trained(separable(80), policy="reinforce", options=options, guard=False, **asked)


def test_the_default_store_is_beside_you(place: Path, run: TrainedRun) -> None:
    assert run.tracking_uri == f"sqlite:///{place}/mlruns/mlflow.db" == default_uri()
    kept = sorted(path.name for path in (place / "mlruns").iterdir())
    assert kept == ["artifacts", "mlflow.db", "policies"]
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_everything_is_logged(run: TrainedRun) -> None:
    client = mlflow.MlflowClient(tracking_uri=run.tracking_uri)
    logged = client.get_run(run.run_id)
    assert logged.info.status == "FINISHED"
    params = logged.data.params
    assert (params["policy"], params["alpha"], params["epochs"]) == ("reinforce", "0.5", "2")
    assert params["lr"] == "0.001"
    digest = params["table_digest"]
    inputs = {i.tags[0].value: i.dataset.digest for i in logged.inputs.dataset_inputs}
    assert digest.startswith(inputs["training"])
    assert set(inputs) == {"training", "validation"}
    for key in ("train/loss", "train/entropy", "validation/reward", "arm_share/ngram"):
        assert [m.step for m in client.get_metric_history(run.run_id, key)] == [1, 2], key
    metrics = logged.data.metrics
    for row in ("greedy", "dynamic", "uniform", "fixed/ngram", "best-fixed", "per-task-best"):
        assert metrics[f"value/{row}_low"] <= metrics[f"value/{row}"] <= metrics["value/oracle"]
    assert metrics["value/greedy"] == run.evaluation["greedy"].mean
    assert {"draftpick.git_sha", "draftpick.hardware", "draftpick.argv"} <= set(logged.data.tags)
    assert "draftpick.version.mlflow" in logged.data.tags
    top = {a.path for a in client.list_artifacts(run.run_id)}
    assert {"values_by_task.json", "decisions.json", "policy", "card.md"} <= top
    assert metrics.items() >= run.metrics.items()
    assert logged.data.tags["mlflow.note.content"] == (run.folder / "card.md").read_text()


def test_every_decision_is_logged(run: TrainedRun) -> None:
    with mlflow_store.using(run.tracking_uri):
        logged = mlflow.artifacts.load_dict(f"runs:/{run.run_id}/decisions.json")
    found = pd.DataFrame(logged["data"], columns=logged["columns"])
    assert len(found) == run.evaluation["greedy"].queries == 16
    assert found["reward"].mean() == pytest.approx(run.evaluation["greedy"].mean)
    assert found["best_reward"].mean() == pytest.approx(run.evaluation["oracle"].mean)
    assert found["best_fixed_reward"].mean() == pytest.approx(run.evaluation["best-fixed"].mean)
    gap = (found["best_reward"] - found["best_fixed_reward"]).sum()
    closed = (found["reward"] - found["best_fixed_reward"]).sum() / gap
    assert closed == pytest.approx(run.regret.gap_closed)
    right = found["arm"] == found["best_arm"]
    assert (found["reward"] == found["best_reward"])[right].all()


def test_the_card_says_what_it_was_trained_on(run: TrainedRun) -> None:
    card = (run.folder / "card.md").read_text()
    origin, gain = run.fitted.policy.origin, run.evaluation.gain
    shares = dict(zip(run.evaluation.tasks, run.evaluation.choices, strict=True))
    best = int(shares["qa"].argmax())
    for words in (
        "# Policy: reinforce", "| queries | 64 |", "math 32, qa 32", origin.table_digest,
        "| arms | autoregressive, small, ngram |", "held-out queries",
        f"| {gain.mean:.4f} | {gain.low:.4f} to {gain.high:.4f} | 16 |",
        f"| qa | {origin.arms[best]} {shares['qa'][best]:.0%}", "Other tasks than math, qa",
    ):  # fmt: skip
        assert words in card, words


def test_another_policys_card_does_not_stay(place: Path, tmp_path: Path) -> None:
    from policies.tracking.registry import training_ids

    for name in ("knn", "uniform"):
        run = trained(tiny(), policy=name, guard=False, held_out=0, out=tmp_path / "policy")
        assert f"# Policy: {name}" in (tmp_path / "policy" / "card.md").read_text()
    assert training_ids(run.folder, run.fitted.policy) == set(tiny().query_ids)
    other = policies.fit("uniform", separable(30)).policy
    assert training_ids(run.folder, other) is None, "it is of another table"


def test_every_uri_gives_the_same_policy(run: TrainedRun) -> None:
    x = separable(6, seed=4).embeddings
    expected = run.fitted.policy.distribution(x)
    assert run.registered == "models:/router-test/1" and run.champion
    champion = "models:/router-test@champion"
    for uri in (run.folder, run.policy_uri, run.registered, champion):
        policy = policies.load(uri, run.tracking_uri)
        np.testing.assert_array_equal(policy.distribution(x), expected)
        assert policy.origin == run.fitted.policy.origin


def test_a_second_version_is_the_challenger(run: TrainedRun) -> None:
    asked = {"held_out": 0, "register": "router-test", "log_model": LOG_MODEL}
    data = separable(40, seed=1)
    again = trained(data, policy="knn", options={"k": 2}, guard=False, **asked)
    assert again.on == "train" and again.fitted.history == []
    assert again.registered == "models:/router-test/2" and not again.champion
    assert policies.load("models:/router-test@challenger").name == "knn"
    assert policies.load("models:/router-test@champion").name == "reinforce"


def test_the_guard_is_on_record(place: Path) -> None:
    run = trained(separable(120), plain="autoregressive", seed=1)
    assert run.guarded is not None and run.guarded.saved == "regression"
    logged = mlflow.MlflowClient(tracking_uri=run.tracking_uri).get_run(run.run_id).data
    assert logged.tags["draftpick.verdict"] == run.guarded.verdict
    assert run.on == "folds" and logged.params["validation_queries"] == "0"
    gain = next(one.gain for one in run.guarded.tried if one.name == "regression")
    assert run.evaluation.gain.mean == pytest.approx(gain.mean), "the table shows what was judged"
    assert logged.params["asked"] == "auto" and logged.params["policy"] == "regression"
    metrics = logged.metrics
    assert 0 < metrics["guard/regression_low"] < metrics["guard/regression"]
    assert metrics["regret/mean"] == run.regret.mean < 0.2
    assert metrics["regret/worse_than_plain"] == run.regret.worse_than_plain
    assert set(metrics) >= {"guard/knn", "guard/logistic", "guard/reinforce", "regret/gap_closed"}


def test_a_binned_policy_is_logged_with_the_inputs_that_it_reads(place: Path) -> None:
    temperature = np.arange(60) % 3 / 2
    rewards = separable(60).rewards.copy()
    rewards[:, 1] += np.where(temperature > 0.7, 1, -1)
    data = table(separable(60).embeddings, rewards)
    data = with_features(data, temperature=temperature, length=np.arange(60.0))
    run = trained(data, policy="binned", held_out=0)
    assert run.guarded is not None and run.guarded.saved == "binned by temperature"
    answer = policies.load(run.policy_uri, run.tracking_uri).choose(np.array([1.0]))
    assert answer.arm == "small"


def test_queries_are_counted_and_not_rows(place: Path) -> None:
    data = replace(tiny(), groups=[f"q{i // 2}" for i in range(12)])
    run = trained(data, policy="best-fixed", held_out=0)
    logged = mlflow.MlflowClient(tracking_uri=run.tracking_uri).get_run(run.run_id).data
    assert logged.params["queries"] == "6" and run.evaluation["greedy"].queries == 6


def test_a_share_may_be_held_out_from_the_guard_too(place: Path) -> None:
    run = trained(separable(120), policy="regression", held_out=0.25)
    assert run.on == "validation" and run.evaluation["greedy"].queries == 30
    assert run.guarded is not None and run.guarded.queries == 90


def test_what_the_guard_refuses(place: Path) -> None:
    with pytest.raises(PolicyError, match="log one by log_model="):
        trained(tiny(), register="router-test")
    with pytest.raises(PolicyError, match="'auto' needs the guard"):
        trained(tiny(), guard=False)
    with pytest.raises(PolicyError, match=r"'auto' takes no options \(k\)"):
        trained(tiny(), options={"k": 3})
    with pytest.raises(PolicyError, match="has no option 'epochs'"):
        trained(tiny(), policy="knn", options={"epochs": 3})


@pytest.mark.parametrize("uri", ["models:/nope@champion", "runs:/abc/policy"])
def test_what_is_not_there(run: TrainedRun, uri: str) -> None:
    with pytest.raises(PolicyError, match=f"cannot fetch {uri}"):
        policies.load(uri, run.tracking_uri)


def test_loading_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no MLflow store"):
        policies.load("models:/a@b", f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


def silent_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        yield f"http://someone:secret@127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["closed port", "silent", "no database", "in the way", "scheme"])
def test_an_unreachable_store_is_refused_before_training(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(policies, "fit", never)
    monkeypatch.setattr(mlflow_store, "PING_S", 1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "text").write_text("not a database, just text")
    server = silent_server()
    uri = {
        "closed port": "http://127.0.0.1:9",
        "silent": next(server),
        "no database": f"sqlite:///{tmp_path}/text",
        "in the way": f"sqlite:///{tmp_path}/text/mlflow.db",
        "scheme": "bogus://x",
    }[kind]
    began = time.monotonic()
    with pytest.raises(PolicyError) as caught:
        trained(tiny(), tracking_uri=uri)
    assert time.monotonic() - began < 15
    message = str(caught.value)
    assert masked(uri) in message
    assert "--tracking-uri" in message
    assert "secret" not in message
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
    server.close()


@pytest.mark.parametrize(
    ("stage", "error", "says"),
    [
        ("log_run", MlflowException("gone"), "stopped working.*gone; the trained policy is in"),
        (
            "write_atomically",
            OSError(errno.ENOSPC, "No space left"),
            "No space left.*; free the disk",
        ),
    ],
)
def test_a_store_or_a_disk_that_fails_meanwhile_keeps_the_policy(
    stage: str, error: Exception, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, stage, Mock(side_effect=error))
    store = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(PolicyError, match=says):
        trained(tiny(), policy="uniform", tracking_uri=store, out=tmp_path / "kept")
    assert policies.load(tmp_path / "kept").name == "uniform"


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere")
    assert default_uri() == "http://somewhere"
    assert masked("http://a:b@c/d") == "http://a:***@c/d"


def killed_at(module: Any, name: str, work: Callable[[], object]) -> None:
    """Work in a copy of this process that is killed where it comes to the function."""

    def until_there() -> None:
        setattr(module, name, die)
        work()

    killed(until_there)


@pytest.mark.usefixtures("stores_are_made")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_a_kill_while_the_store_is_made_leaves_none(tmp_path: Path) -> None:
    """MLflow's tables are made one by one, and half of them are refused for ever."""
    from mlflow.store.db import utils

    store = f"sqlite:///{tmp_path}/mlflow.db"
    asked = {"policy": "uniform", "tracking_uri": store, "out": tmp_path / "policy"}
    killed_at(utils, "_upgrade_db", lambda: trained(tiny(), **asked))
    assert not (tmp_path / "mlflow.db").exists()
    assert policies.load(trained(tiny(), **asked).policy_uri, store).name == "uniform"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
@pytest.mark.parametrize("stage", ["write_training_ids", "log_policy", "enrol"])
def test_a_kill_leaves_nothing_half_written(place: Path, tmp_path: Path, stage: str) -> None:
    """Before the card, before the model, before its version: what is there can be loaded."""
    from policies.tracking import run_log
    from policies.tracking.registry import versions_of

    store, out = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "policy"
    asked = {"policy": "uniform", "tracking_uri": store, "register": "killed", "out": out,
             "log_model": LOG_MODEL}  # fmt: skip
    module = run_log if stage == "enrol" else tracking
    killed_at(module, stage, lambda: trained(tiny(), **asked))
    assert policies.load(out).name == "uniform"
    assert not [path for path in out.iterdir() if path.name.endswith(".tmp")]
    with mlflow_store.using(store):
        assert versions_of(mlflow.MlflowClient(), "killed") == []
    again = trained(tiny(), **asked)
    assert again.registered == "models:/killed/1" and again.champion
