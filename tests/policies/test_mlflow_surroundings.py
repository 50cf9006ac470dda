"""MLflow where a caller has runs of its own, and in folders with names of every kind."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from policy_tables import separable

import policies
from policies import PolicyError
from policies.mlflow_store import default_uri, sqlite_path, sqlite_uri, using
from policies.tracking.run import Task, TrainedRun, train_run
from router.mlflow_model import log_text_model

PARENT = "mlflow.parentRunId"
LOG_MODEL = partial(log_text_model, "target:toy@8", 16)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def task(register: str | None = None) -> Task:
    log_model = LOG_MODEL if register else None
    return Task(separable(20), policy="uniform", held_out=0, register=register, log_model=log_model)


def tags(run_id: str, store: str | None = None) -> dict[str, str]:
    from mlflow import MlflowClient

    with using(store):
        return dict(MlflowClient().get_run(run_id).data.tags)


def is_loaded_by_all_its_uris(done: TrainedRun) -> bool:
    """The registered version's among them."""
    uris = [done.policy_uri, *filter(None, [done.registered])]
    return {policies.load(each).fingerprint for each in uris} == {done.fitted.policy.fingerprint}


def outer_of(done: TrainedRun) -> str | None:
    return tags(done.run_id, done.tracking_uri).get(PARENT)


NAMES = (
    "with space", "100%", "%20", "%25", "why?", "a?b=c", "no#1", "a&b", "a+b", "a@b", "me:pw@h",
    "ünïcode 日本", "it's", 'a"b', "[a]", "*", "~", "$HOME", "{a}", "a;b", "a,b", "a\\b", "sqlite:",
    "-rf", "new\nline", "...",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_uri_of_a_file_is_that_files(name: str, here: Path) -> None:
    """As SQLAlchemy, through which MLflow opens it, reads the URI."""
    from sqlalchemy import make_url

    path = here / name / "mlflow.db"
    made = make_url(sqlite_uri(path))
    assert (made.get_backend_name(), made.database) == ("sqlite", str(path))
    assert sqlite_path(sqlite_uri(path)) == path


REGISTERED = (None, pytest.param("drafter", marks=pytest.mark.slow))


@pytest.mark.parametrize("register", REGISTERED)
def test_a_working_folder_may_have_any_name(
    register: str | None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here / "%20 sure? é #1 [*] ~{x}&y+z@w:v"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    done = train_run(task(register))
    assert sorted(path.name for path in Path().iterdir()) == ["mlruns"]
    assert os.listdir("..") == [folder.name]
    assert sqlite_path(done.tracking_uri) == Path.cwd() / "mlruns" / "mlflow.db"
    assert is_loaded_by_all_its_uris(done)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("register", REGISTERED)
def test_a_working_folder_may_move(
    register: str | None, copied: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = here / "it's 100% ours", here / "el\u0073ewhere" / "é #2"
    old.mkdir()
    monkeypatch.chdir(old)
    done = train_run(task(register))
    new.parent.mkdir()
    (shutil.copytree if copied else shutil.move)(old, new)
    monkeypatch.chdir(new)
    before = files(old) if copied else {}
    assert is_loaded_by_all_its_uris(done)
    again = train_run(task(register))
    assert is_loaded_by_all_its_uris(again)
    assert files(old) == before and old.exists() == copied
    assert list((new / "mlruns" / "artifacts").rglob(f"{again.run_id}/**/policy.json"))


def test_artifacts_that_lie_elsewhere_stay_there(here: Path) -> None:
    from mlflow import MlflowClient

    place = (here / "disk" / "artifacts" / "draftpick").as_uri()
    (here / "disk").mkdir()
    with using(None):
        MlflowClient().create_experiment("draftpick", artifact_location=place)
    done = train_run(task(), experiment="draftpick")
    assert list((here / "disk").rglob("policy.json"))
    assert is_loaded_by_all_its_uris(done)


def test_below_the_callers_run(here: Path) -> None:
    import mlflow

    with using(None), mlflow.start_run(run_name="mine") as mine:
        mlflow.log_param("policy", "my own")
        done = train_run(task())
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert outer_of(done) == mine.info.run_id
    with using(None):
        kept = mlflow.get_run(mine.info.run_id)
    assert kept.data.params == {"policy": "my own"} and not kept.data.metrics
    assert kept.info.status == "FINISHED" and kept.info.run_name == "mine"


def test_a_callers_run_in_another_store(here: Path) -> None:
    import mlflow

    with using(sqlite_uri(here / "other.db")), mlflow.start_run() as mine:
        done = train_run(task(), tracking_uri=sqlite_uri(here / "ours.db"))
        mlflow.log_param("still", "mine")
    assert outer_of(done) is None and mine.info.run_id != done.run_id


def test_a_run_of_the_environment_is_not_written_over(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    first = train_run(task())
    monkeypatch.setenv("MLFLOW_RUN_ID", first.run_id)
    before = tags(first.run_id)
    done = train_run(task(), experiment="another")
    assert outer_of(done) == first.run_id != done.run_id
    assert tags(first.run_id) == before and os.environ["MLFLOW_RUN_ID"] == first.run_id
    with using(None):
        assert mlflow.active_run() is None


@pytest.mark.parametrize("named", ["0" * 32, "nonsense", "deleted"])
def test_a_run_of_the_environment_that_is_not_there(
    named: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    if named == "deleted":
        named = train_run(task()).run_id
        MlflowClient(tracking_uri=default_uri()).delete_run(named)
    monkeypatch.setenv("MLFLOW_RUN_ID", named)
    with pytest.raises(PolicyError, match=f"MLFLOW_RUN_ID names the run '{named}', which"):
        train_run(task())
