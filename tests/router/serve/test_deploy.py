"""The container file and the systemd unit say what the server understands."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from serve_toys import Served

from router.cli import make_app
from router.serve.server import READY, notify

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "docs" / "deploy"
USUAL_STOP_S = 10  # after which a container is killed


def stages() -> list[list[tuple[str, str]]]:
    """(keyword, rest) of every line of the container file: what builds, and what runs."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found: list[list[tuple[str, str]]] = []
    for line in lines:
        if line.startswith("FROM"):
            found.append([])
        if line.strip() and not line.startswith("#"):
            keyword, rest = line.split(maxsplit=1)
            found[-1].append((keyword, rest))
    return found


def all_of(keyword: str, stage: int = 1) -> list[str]:
    return [rest for each, rest in stages()[stage] if each == keyword]


def settings(name: str) -> dict[str, str]:
    """Of a unit or its environment: the last of each."""
    lines = (DEPLOY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def parsed(words: list[str]) -> dict[str, Any]:
    """What `draftpick WORDS` would be called with; fails where it does not understand them."""
    assert words[0] == "/opt/draftpick/bin/draftpick"
    group = typer.main.get_command(make_app())
    with group.make_context("draftpick", words[1:], resilient_parsing=False) as context:
        _, command, rest = group.resolve_command(context, words[1:])
        return dict(command.make_context(words[1], rest).params)


def test_the_commands_are_understood_and_end_before_they_are_killed() -> None:
    """The container's while it is built and when it runs, the unit's with its environment."""
    lines = [shlex.split(line) for line in all_of("RUN")]
    asked = [words for words in lines if words[0].endswith("/draftpick")]
    assert asked and all(parsed(words) for words in asked)
    (entry,), (more,) = all_of("ENTRYPOINT"), all_of("CMD")
    contained = parsed(json.loads(entry) + json.loads(more))
    assert contained["host"] == "0.0.0.0" and all_of("EXPOSE") == [str(contained["port"])]
    assert contained["drain"] < USUAL_STOP_S and all_of("STOPSIGNAL") == ["SIGTERM"]
    service, given = settings("draftpick.service"), settings("draftpick.env")
    command = re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], service["ExecStart"])
    words = shlex.split(re.sub(r"\$(\w+)", lambda found: given[found[1]], command))
    served = parsed(words)
    assert served["host"] == "127.0.0.1" and served["drain"] < int(service["TimeoutStopSec"])
    assert str(served["folder"]).startswith(f"/var/lib/{service['StateDirectory']}")


# -- container ------------------------------------------------------------------------------------


def test_what_the_container_copies_is_there_and_enough() -> None:
    copied = [word for line in all_of("COPY", stage=0) for word in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    ignore = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == set(copied)
    packages = re.search(r"include = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert packages is not None
    wanted = {name.strip(' "*') for name in packages[1].split(",")}
    assert wanted | {"setup.py"} <= set(copied)
    *_, whole, kernels = all_of("RUN", stage=0)
    assert shlex.split(whole)[-1] == shlex.split(kernels)[-1] == "."
    assert stages()[0][-2] == ("ENV", "DRAFTPICK_KERNELS=all")


def test_the_health_check_asks_this_server(toy: Served) -> None:
    (check,) = all_of("HEALTHCHECK")
    words = json.loads(check.partition("CMD ")[2])
    (entry,) = all_of("ENTRYPOINT")
    port = parsed(json.loads(entry))["port"]
    assert f":{port}/" in words[-1]
    code = words[-1].replace(f"http://127.0.0.1:{port}", toy.url)
    assert subprocess.run([sys.executable, words[1], code]).returncode == 0
    wrong = code.replace("/health", "/nothing")
    assert subprocess.run([sys.executable, words[1], wrong], capture_output=True).returncode == 1


# -- systemd --------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """The program itself is not installed here, so that another takes its place."""
    own = (DEPLOY / "draftpick.service").read_text()

    def verified(text: str) -> str:
        place = tmp_path / "draftpick.service"
        place.write_text(text.replace("/opt/draftpick/bin/draftpick", "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(place)], capture_output=True, text=True
        )
        told = [line for line in done.stderr.splitlines() if "draftpick.service" in line]
        return "\n".join(told) if told or not done.returncode else done.stderr

    if "Failed to" in verified("[Service]\nExecStart=/bin/true\n"):
        pytest.skip("systemd-analyze does not work here")
    assert verified(own) == ""
    assert "Unknown key" in verified(own.replace("TimeoutStopSec", "TimeoutStoppSec"))


# -- readiness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@draftpick-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify(READY)
        assert manager.recv(100) == b"READY=1"


def test_without_a_manager_nobody_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify(READY)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not notify(READY)
    assert "READY=1 could not be sent" in capsys.readouterr().err
