"""The server as a Ray Serve application, as far as it needs no Ray that runs (tests/test_on_ray.py
has the rest): its metrics, and what a configuration file may say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from serve_toys import ASKED, CHAT, Served

from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions
from router.commands.options import LogOptions
from router.commands.serve import served as loading
from router.commands.serve.options import ServeOptions
from router.commands.with_records import made
from router.serve.app import Settings
from router.serve.metrics import Reading

pytest.importorskip("ray.serve", reason="there is no Ray for this Python")
from router.commands.serve import ray as command
from router.serve import on_ray

DOCS = Path(__file__).resolve().parents[3] / "docs"


def report(toy: Served, replica: str) -> on_ray.Report:
    service = toy.server.config.app.state.service
    return on_ray.Report(replica, service.stats(), list(service.metrics.registry.collect()))


def test_metrics_of_replicas_have_a_label(toy: Served) -> None:
    with toy.http() as http:
        assert http.post(CHAT, json=ASKED).status_code == 200
    one, other = report(toy, "one"), report(toy, "other")
    written: Any = Reading(lambda: on_ray.labelled({"one": one.metrics, "other": other.metrics}))
    text = generate_latest(written).decode()
    lines = re.findall(r'^vllm:generation_tokens_total\{replica="(\w+)"\} (\S+)$', text, re.M)
    assert [name for name, _ in lines] == ["one", "other"] and float(lines[0][1]) >= 40
    assert text.count("# TYPE vllm:generation_tokens_total counter") == 1
    assert 'vllm:time_to_first_token_seconds_bucket{le="0.01",replica="one"}' in text


# -- a configuration file -------------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[loading.Served]:
    """The plans that are built, none of which needs a cluster."""
    found: list[loading.Served] = []
    monkeypatch.setattr(command, "application_of", found.append)
    return found


def test_args_are_the_options_of_the_command(
    planned: list[loading.Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTPICK_API_KEY", "secret")
    policies = ["here", "mine=there"]
    command.app({"slots": 2, "batch-invariant": True, "warm_up": False, "policy": policies})
    (plan,) = planned
    assert (plan.asked.on_ray, plan.asked.replicas, plan.asked.slots) == (True, None, 2)
    assert plan.asked.batch_invariant and not plan.asked.warm_up
    assert plan.named == {"default": "here", "mine": "there"}
    assert plan.settings.api_key is not None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"slot": 2}, "No such option: --slot"),
        ({"slots": "many"}, "Invalid value for '--slots'"),
        ({"learn": "policy"}, "each replica would learn for itself"),
        ({"port": 8000, "host": "::"}, "host, port: not among args; Serve's own http_options"),
    ],
)
def test_wrong_args_are_told(
    planned: list[loading.Served], args: dict[str, Any], words: str
) -> None:
    with pytest.raises(DraftpickError, match=re.escape(words)):
        command.app(args)
    assert not planned


def test_the_file_in_the_docs_is_one_of_serve(planned: list[loading.Served]) -> None:
    from ray.serve.schema import ServeDeploySchema

    page = (DOCS / "serving.md").read_text()
    (text,) = re.findall(r"```yaml\n(proxy_location.*?)```", page, re.S)
    parsed = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (one,) = parsed.applications
    module, _, name = one.import_path.partition(":")
    assert (module, getattr(command, name)) == (command.__name__, command.app)
    assert [each.name for each in one.deployments] == [on_ray.NAME]
    command.app(one.args)
    assert len(planned) == 1


# -- the command ----------------------------------------------------------------------------------


def test_paths_hold_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "arms.yaml", "template"):
        Path(name).touch()
    options = EngineOptions(target="known-name", arms="arms.yaml", chat_template="template")
    log = LogOptions(Path("log"))
    asked = replace(made(ServeOptions, {}), options=options, log=log)
    named = {"default": "mine", "other": "models:/a@b"}
    placed = loading.Served(asked, named, Settings(), None, None).placed()
    assert placed.asked.options.target == "known-name"
    assert placed.asked.options.arms == tmp_path / "arms.yaml"
    assert placed.asked.options.chat_template == str(tmp_path / "template")
    assert placed.named == {"default": str(tmp_path / "mine"), "other": "models:/a@b"}
    assert placed.asked.log.folder == tmp_path / "log"
    asked = replace(asked, options=EngineOptions(chat_template="{{ x }}" * 999))
    text = loading.Served(asked, {}, Settings(), None, None)
    assert text.placed().asked.options.chat_template == "{{ x }}" * 999
