"""A policy as an MLflow model: texts in, the arm that the router would take out."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import infer_and_parse_data
from packaging.utils import canonicalize_name
from strangers import installed_with
from tiny_models import WORDS, sentence_model, target_model

import policies
from policies.mlflow_store import using
from router import cli
from router.mlflow_model import NEEDED, PACKAGES, copies_of_code
from router.routing.router import Router

TEXTS = ["what is the river", "sum of two three", "lake lake lake lake lake city", "sea"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, an embedder, and a collection with the target at two temperatures."""
    place = tmp_path_factory.mktemp("served")
    target_model(place / "target")
    sentence_model(place / "sentences")
    (place / "arms.yaml").write_text("arms:\n  copy: {kind: max_gram, length: {k: 4}}\n")
    lines = [
        {"id": f"{task}{i}", "task": task, "turns": [f"what is the {word} {WORDS[i]} " * (i + 1)]}
        for task, word in (("qa", "river"), ("math", "sum"))
        for i in range(6)
    ]
    (place / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main("collect", "--queries", place / "q.jsonl", "--out", place / "rewards",
                "--max-new-tokens", 8, "--temperatures", "0,1", *model(place)) == 0  # fmt: skip
    return place


def main(*words: object) -> int:
    return cli.main([str(word) for word in words])


def model(place: Path) -> list[object]:
    return ["--target", place / "target", "--config", place / "arms.yaml", "--dtype", "float32",
            "--device", "cpu"]  # fmt: skip


def trained(place: Path, name: str, *more: object, register: bool = True) -> str:
    """The store; the policy is registered as `name`, and its folder is beside."""
    store = f"sqlite:///{place}/mlflow.db"
    words: list[object] = ["train", "--rewards", place / "rewards", "--reward", "saved-passes"]
    words += ["--no-guard", "--out", place / name, "--tracking-uri", store, *more]
    assert main(*words, *(["--register", name] if register else [])) == 0
    return store


def loaded(store: str, name: str) -> Any:
    import mlflow

    with using(store):
        return mlflow.pyfunc.load_model(f"models:/{name}@champion")


@pytest.fixture(autouse=True, scope="module")
def beside(place: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPICK_TARGET", str(place / "target"))
        yield


@pytest.fixture
def code_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.mlflow_model.copies_of_code", copies_of_code)


@pytest.fixture(scope="module")
def even(place: Path) -> Any:
    """A policy that takes both arms alike, loaded."""
    return loaded(trained(place, "even", "--policy", "uniform"), "even")


@pytest.mark.usefixtures("code_travels")
@pytest.mark.parametrize("reads", ["target", "sentences"])
def test_it_takes_the_routers_arm(place: Path, reads: str) -> None:
    """Embedding and features are those that the router gives the policy."""
    embedder = "target" if reads == "target" else place / "sentences"
    options: list[object] = ["--policy", "knn", "--set", "k=1", "--set", "temperature=0.2"]
    features = "temperature,log-prompt-length,repeated-bigrams,log-max-new-tokens"
    name = f"by-{reads}"
    store = trained(place, name, *options, "--embedder", embedder, "--features", features)
    router = Router.from_pretrained(
        str(place / "target"), place / name, place / "arms.yaml", dtype="float32", device="cpu"
    )
    policy, temperatures = policies.load(place / name), [0.0, 1.0] * 2
    frame = pd.DataFrame({"text": TEXTS, "temperature": temperatures, "max_new_tokens": [4] * 4})
    answered = loaded(store, name).predict(frame)
    for row, text, temperature in zip(
        answered.to_dict("records"), TEXTS, temperatures, strict=True
    ):
        routed = router.generate(text, max_new_tokens=4, temperature=temperature, seed=1)
        assert row["arm"] == routed.arm
        chances = policy.probabilities(np.array([routed.scores]))[0]
        assert [row[f"p_{arm}"] for arm in policy.arms] == pytest.approx(chances, abs=1e-4)
    assert answered.iloc[:, 1:].nunique().max() > 1, "the texts should make a difference"


def test_defaults_and_bad_input(even: Any) -> None:
    one = even.predict(pd.DataFrame({"text": ["the sea"]})).iloc[0].to_dict()
    assert one == {"arm": "autoregressive", "p_autoregressive": 0.5, "p_copy": 0.5}
    for wrong, says in (
        ({"text": [" "]}, "row 1: the prompt is empty"),
        ({"text": ["sea", "lake"], "temperature": [0.0, -1.0]}, "row 2: temperature must be 0"),
        ({"text": ["sea"], "max_new_tokens": [0]}, "row 1: max_new_tokens must be"),
        ({"text": ["sea"], "running": [-2]}, "row 1: running must be 0 or more"),
        ({"text": ["sea"], "running": [0.5]}, "row 1: running must be a whole number, not 0.5"),
        ({"text": ["sea"], "running": ["2"]}, "row 1: running must be a number, not '2'"),
        ({"words": ["sea"]}, "missing inputs"),
    ):
        with pytest.raises(MlflowException, match=says):
            even.predict(pd.DataFrame(wrong))


@pytest.mark.parametrize("name", ["max_new_tokens", "running", "temperature"])
def test_a_row_may_lack_a_number(even: Any, name: str) -> None:
    """As MLflow's server hands requests on, and as callers in Python do."""
    schema = even.metadata.get_input_schema()
    for values in ([3, None], [None, None], [3, 4], [0.0, None]):
        if name == "max_new_tokens" and values[0] == 0:
            continue
        rows = [
            {"text": text} | ({} if value is None else {name: value})
            for text, value in zip(("sea", "lake"), values, strict=True)
        ]
        nulls = [{"text": row["text"], name: row.get(name)} for row in rows]
        split = {"columns": ["text", name], "data": [[*row.values()] for row in nulls]}
        bodies = [{"dataframe_records": rows}, {"dataframe_records": nulls}]
        served = [
            infer_and_parse_data(body, schema) for body in (*bodies, {"dataframe_split": split})
        ]
        frames = [pd.DataFrame(rows), pd.DataFrame(nulls), pd.DataFrame(nulls).convert_dtypes()]
        for given in (*served, *frames):
            assert even.predict(given)["arm"].tolist() == ["autoregressive"] * 2


def test_another_target_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    store = trained(place, "owned", "--policy", "knn", "--set", "k=1")
    other = target_model(tmp_path / "other")
    weights = {k: v + 1 for k, v in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setenv("DRAFTPICK_TARGET", str(other))
    with pytest.raises(MlflowException, match=r"trained with the target target:target@\w+, but"):
        loaded(store, "owned").predict(pd.DataFrame({"text": ["the sea"]}))


@pytest.mark.slow
@pytest.mark.usefixtures("code_travels")
def test_mlflow_serves_it(place: Path, tmp_path: Path) -> None:
    """`mlflow models serve`, from a folder without this code: what is logged is enough."""
    store = trained(
        place, "served", "--policy", "knn", "--set", "k=1", "--embedder", place / "sentences",
        "--features", "temperature",
    )  # fmt: skip
    expected = loaded(store, "served").predict(pd.DataFrame({"text": TEXTS}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/served@champion",
               "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(
        command, cwd=tmp_path, env=found | {"MLFLOW_TRACKING_URI": store, "PATH": path},
        stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 200
        while not answers(f"{url}/ping"):
            assert server.poll() is None and time.monotonic() < deadline, log.name
            time.sleep(0.3)
        records = [{"text": text} for text in TEXTS]
        body = post(f"{url}/invocations", {"dataframe_records": records})
        assert [row["arm"] for row in body["predictions"]] == list(expected["arm"])
        assert set(body["predictions"][0]) == set(expected.columns)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(f"{url}/invocations", {"dataframe_records": [{"text": ""}]})
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)
        log.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())


def not_required() -> list[str]:
    """Modules of this environment that an environment of the logged requirements lacks."""
    there = installed_with(NEEDED)
    return [
        module
        for module, names in packages_distributions().items()
        if module.isidentifier() and not there & {canonicalize_name(name) for name in names}
        if module not in {package.name for package in PACKAGES}
    ]


@pytest.mark.slow
def test_the_code_that_travels_with_a_policy_reads_the_default_target(tmp_path: Path) -> None:
    """In a process that has no other copy of it: what is compiled, declared or listed is there."""
    copies = copies_of_code(tmp_path / "code")
    size = sum(path.stat().st_size for path in (tmp_path / "code").rglob("*") if path.is_file())
    assert size < 4_000_000, "a run that is tracked should not carry weights"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "sys.modules |= dict.fromkeys(sys.argv[2:]); "  # imports of these fail
        "import decoders; from decoders.options import EngineOptions; "
        "from router.routing.loading import load_engine; "
        "import router.mlflow_model.model; "
        "engine = load_engine(EngineOptions(), ['autoregressive']); "
        "from decoders.backends.cpp_kernels import instructions, loaded; "
        "assert loaded() or not instructions(), 'no kernels'; "
        "ids = engine.encode_chat([{'role': 'user', 'content': 'Hi'}]); "
        "print(decoders.__file__, len(engine.prefill(ids).embedding))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "code"), *not_required()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, width = done.stdout.split()[-2:]
    assert Path(where).is_relative_to(tmp_path) and int(width) == 576
    assert [Path(copy).name for copy in copies] == [package.name for package in PACKAGES]
