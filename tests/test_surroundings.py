"""What a process is given: its control group's limits, its folders, and texts that are none."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collect.queries import read_queries
from decoders.arms import load_arms
from decoders.common import control_group, machine
from decoders.common.errors import DraftpickError
from decoders.testing.fake_server import FakeEndpoint, listening
from decoders.zoo.catalogue import cache_dir
from router.cli import main
from router.commands.generate.prompts import read_prompts

GIB = 2**30
TWO = "0::/app.slice/mine.service\n"
ONE = "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
# membership, files under the root, (memory limit, memory left, cores)
GROUPS: dict[str, tuple[str, dict[str, str], tuple[int | None, int | None, float | None]]] = {
    "none": ("", {}, (None, None, None)),
    "no limits": (
        TWO,
        {"app.slice/memory.max": "max", "app.slice/cpu.max": "max 100000"},
        (None, None, None),
    ),
    "its own": (
        TWO,
        {
            "app.slice/mine.service/memory.max": str(GIB),
            "app.slice/mine.service/memory.current": str(GIB // 2),
            "app.slice/mine.service/memory.stat": f"anon 5\ninactive_file {GIB // 4}\n",
            "app.slice/mine.service/cpu.max": "50000 100000",
        },
        (GIB, GIB - GIB // 4, 0.5),
    ),
    "of one above": (
        TWO,
        {
            "app.slice/mine.service/memory.max": "max",
            "app.slice/memory.max": str(2 * GIB),
            "app.slice/memory.current": str(3 * GIB),
            "app.slice/cpu.max": "150000 100000",
            "app.slice/mine.service/cpu.max": "400000 100000",
        },
        (2 * GIB, 0, 1.5),
    ),
    "the root of a container": (
        "0::/\n",
        {"memory.max": str(GIB), "memory.current": "0", "cpu.max": "200000 100000"},
        (GIB, GIB, 2.0),
    ),
    "version 1": (
        ONE,
        {
            "memory/docker/abc/memory.limit_in_bytes": str(GIB),
            "memory/docker/abc/memory.usage_in_bytes": str(GIB // 2),
            "memory/docker/abc/memory.stat": f"total_inactive_file {GIB // 2}\n",
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        },
        (GIB, GIB, 0.5),
    ),
    "version 1, mounted by its last part, no quota": (
        ONE,
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        (None, None, None),
    ),
    "nonsense": ("0::/x\nnot a line\n", {"x/memory.max": "many", "x/cpu.max": ""}, (None,) * 3),
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_limits_of_control_groups(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership, files, (limit, left, cores) = GROUPS[group]
    (tmp_path / "membership").write_text(membership)
    for name, content in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(content + "\n")
    monkeypatch.setattr(control_group, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(control_group, "ROOT", tmp_path / "root")
    assert control_group.memory_limit() == limit
    assert control_group.memory_left() == left
    assert control_group.cores() == cores
    if left is not None:
        assert machine.available_bytes() == min(left, machine._machine_bytes() or left)
    if cores == 0.5:
        assert machine.usable_cores() == 1


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HOME": "/h"}, "/h/.cache/draftpick"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "/h/.cache/draftpick"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "caches"}, "/h/.cache/draftpick"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/draftpick"),
        ({"HOME": "/h", "DRAFTPICK_CACHE": "~/models"}, "/h/models"),
        ({"HOME": "/h", "DRAFTPICK_CACHE": " "}, "/h/.cache/draftpick"),
        ({"HOME": "/h", "DRAFTPICK_CACHE": "/m", "XDG_CACHE_HOME": "/c"}, "/m"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/draftpick"),
    ],
)
def test_where_models_are_kept(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", variables)
    assert cache_dir() == Path(folder)


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DraftpickError, match="set DRAFTPICK_CACHE to a folder"):
        cache_dir()


@pytest.mark.parametrize("name", ["yes", "off", "No", "on", "true", "1", "1.5", "null", "~"])
def test_an_arm_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text(f"arms:\n  {name}: {{kind: max_gram}}\n")
    assert name in load_arms(path)


def test_anchors_still_merge(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text("arms:\n  a: &a {kind: max_gram, note: n}\n  b: {<<: *a, note: m}\n")
    assert load_arms(path)["b"].kind == "max_gram"


HALF = json.dumps("\ud83d")[1:-1]  # spelled


def test_half_a_character_is_refused_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    whole = '{"id": "a", "task": "qa", "turns": ["\\ud83d\\ude00"]}'
    for field in ("id", "task", "turns", "reference", "category"):
        record = {"id": "b", "task": "qa", "turns": ["x"]}
        record[field] = ["x HALF"] if field in ("turns", "reference") else "x HALF"
        path.write_text(f"{whole}\n{json.dumps(record).replace('HALF', HALF)}\n")
        with pytest.raises(DraftpickError, match=r"q.jsonl:2: holds half a surrogate pair"):
            read_queries(path)
    path.write_text(whole)
    assert read_queries(path)[0].turns == ("\U0001f600",)
    path.write_text(f'"{HALF}"')
    with pytest.raises(DraftpickError, match=r"q.jsonl:1: holds half a surrogate pair"):
        read_prompts(path)


def test_bytes_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", b"\xff hello".decode("utf-8", "surrogateescape")]) == 2
    assert "bytes that are no UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["2", "1", "0", "2 1 0"])
def test_standard_streams_may_be_closed(closed: str, tmp_path: Path) -> None:
    """Nor does a file that is opened get their numbers, and what is written to them."""
    code = (
        "import os, sys, router.cli as cli\n"
        "code = cli.main(['arms', '--json'])\n"
        "opened = os.open('mine', os.O_RDWR | os.O_CREAT)\n"
        "os.write(2, b'said'); print('told', file=sys.stderr, flush=True)\n"
        "assert opened > 2 and not os.path.getsize('mine')\n"
        "os._exit(code)\n"
    )
    shut = " ".join(f"{number}{'<' if number == '0' else '>'}&-" for number in closed.split())
    command = ["sh", "-c", f'"$0" -c "$1" {shut}', sys.executable, code]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    if "1" not in closed:
        assert json.loads(done.stdout)


@pytest.mark.every(2)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_is_whole_in_any_encoding(
    encoding: str, as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "blé, 青 and 🍎"
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding=encoding, errors="strict")
    with listening(fake := FakeEndpoint(words=lambda prompt: said.split(" "))):
        config = tmp_path / "arms.yaml"
        config.write_text(f"arms: {{a: {{kind: endpoint, url: '{fake.url}', model: m}}}}")
        monkeypatch.setattr(sys, "stdout", out)
        asked = ["generate", "why?", "--config", str(config), *(["--json"] if as_json else [])]
        assert main(asked) == 0
    out.flush()
    text = written.getvalue().decode(encoding)
    if as_json:
        assert json.loads(text)["text"] == said.replace(" ", "")
    else:
        assert text.strip().encode().decode("unicode-escape" if encoding == "ascii" else "utf-8")
        assert "bl" in text and ("青" in text or "\\u9752" in text)
