"""The commands of the guides, page by page on the default model, each as it stands but shorter.

Pages of measurements are left out, whose commands take minutes to hours."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path

import httpx
import pytest
import yaml
from gguf_toys import MIXED, save_gguf
from pages import ROOT, snippets
from serve_toys import process

from decoders.arms.file import SHIPPED_ARMS
from decoders.testing.fake_server import FakeEndpoint
from decoders.zoo import fetch
from decoders.zoo.catalogue import EMBEDDER, TARGET
from router.cli import main

MEASURED = ("docs/gpu/", "docs/notes/", "docs/results.md", "docs/reproduction.md")
ELSEWHERE = {  # page -> the tests of its commands, or why there are none
    "CONTRIBUTING.md": "test_strangers.py",
    "docs/risk_control.md": "test_risk_control.py, as 118 queries take minutes",
    "docs/scaling.md": "test_on_ray.py",
    "docs/specialise.md": "test_specialise.py",
    "docs/methods/encoder_decoders.md": "its models are fetched from a hub",
}
OTHERS = {"curl", "haproxy", "install", "make", "mlflow", "pip", "podman", "python", "python3"}
OTHERS |= {"source", "sudo", "systemctl", "vllm"}
RUN = "import sys; from router.cli import main; sys.exit(main(sys.argv[1:]))"
ARMS = "autoregressive,max-gram"
SHORT = {  # options that a command gets besides; of two alike the last counts
    "align": "--minutes 0.02 --max-new-tokens 8",
    "audit": "--limit 1 --max-new-tokens 8 --draws 0",
    "check": "--seconds 2 --max-new-tokens 16",
    "collect": "--max-new-tokens 8",
    "demo": "--limit 1 --collect-limit 3 --max-new-tokens 8",
    "generate": "--max-new-tokens 8",
    "specbench": "--limit 1 --max-new-tokens 8 --tasks qa",
    "specialise": "--minutes 0.1 --max-new-tokens 8",
}
MADE = {  # what some pages take from others: name -> (its option, commands)
    "rewards": ("--out", [f"collect --queries queries.jsonl --max-new-tokens 8 --arms {ARMS}"]),
    "held": ("--out", [f"collect --queries held-out.jsonl --max-new-tokens 8 --arms {ARMS}"]),
    "policy": ("--out", ["train --rewards rewards"]),
    "log": ("--log", [f"generate --prompts prompts.jsonl --log-text --log-embeddings "
                      f"--explore {share} --max-new-tokens 8" for share in (0, 0.5)]),
}  # fmt: skip
MADE["decisions"] = MADE["log"]


def guides() -> list[str]:
    """Pages with commands of draftpick."""
    names = {str(b.page.relative_to(ROOT)) for b in snippets("bash") if "draftpick " in b.text}
    assert ELSEWHERE.keys() <= names
    return sorted(name for name in names - ELSEWHERE.keys() if not name.startswith(MEASURED))


def commands(guide: str) -> Iterator[tuple[list[str], str]]:
    """Words, and the file that their output goes to."""
    for block in (each for each in snippets("bash") if each.page == ROOT / guide):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, "")


def shorter(command: str, *words: str) -> list[str]:
    if "--summary" in words:
        return [command, *words]
    more = shlex.split(SHORT.get(command, ""))
    if command == "collect":
        more += ["--limit", "3"] * ("--queries" not in words)
        more += ["--arms", ARMS] * ("--config" not in words)
        more += ["--at-once", "1,4"] * ("--at-once" in words)
    if "--train-size" in words:
        more += ["--train-size", "12"]
    return [command, *words, *more]


def lay(folder: Path) -> None:
    """Files that the pages take for given."""

    def write(name: str, rows: list[dict[str, object]]) -> None:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    asked = ("Count to {}.", "Write {} words about rain.", "Is {} even?", "Say {} twice.")
    turns = [asked[n % 4].format(n) for n in range(64)]
    for name, many in {"queries": 24, "train": 24, "held-out": 64, "sql": 64, "json": 64}.items():
        texts = [f"{name}: {turn}" for turn in turns[:many]]
        write(name, [{"id": f"{name}{n}", "task": "qa", "turns": [t]} for n, t in enumerate(texts)])
    write("prompts", [{"prompt": turn} for turn in turns])
    write("greedy", [{"id": f"train{n}", "output": "one two"} for n in range(24)])
    answer = {"message": {"role": "assistant", "content": "one two " * 9}, "finish_reason": "stop"}
    requests = [{"messages": [{"role": "user", "content": turn}]} for turn in turns]
    write("log", [{"request": each, "response": {"choices": [answer]}} for each in requests])
    shipped = yaml.safe_load(SHIPPED_ARMS.read_text())["arms"]
    arms = {name: shipped[name] for name in ARMS.split(",")[1:]}
    (folder / "arms.yaml").write_text(json.dumps({"arms": arms}))
    (folder / "models").mkdir()
    for name in ("models/mine", "FOLDER", "MODEL"):
        (folder / name).symlink_to(fetch(TARGET))
    (folder / "models" / "my-embedder").symlink_to(fetch(EMBEDDER))
    save_gguf(folder / "my-model.gguf", "qwen2", kinds=MIXED)
    save_gguf(folder / "small.gguf", "llama", "Q4_0", seed=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of MADE, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("made")
    lay(folder)

    def of(name: str) -> Path:
        if not (folder / name).exists():
            if name == "policy":
                of("rewards")
            option, lines = MADE[name]
            with chdir(folder):
                assert all(main([*line.split(), option, name]) == 0 for line in lines)
        return folder / name

    return of


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The port of a server, where a page asks one."""
    with process(["-c", RUN, "serve", "--port", "0"], 300) as (_, url):
        yield url.rpartition(":")[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    lay(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("guide", guides())
def test_the_commands_of_a_guide_run(
    guide: str,
    place: Path,
    made: Callable[[str], Path],
    engine: str,
    server: FakeEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for block in reversed(snippets("yaml")):  # the first counts
        if block.page == ROOT / guide:
            name = "endpoints.yaml" if "endpoint" in block.text else "arms.yaml"
            (place / name).write_text(re.sub(r"http://[\w-]+:\d+/v1", server.url, block.text))
    curls = [words for words, _ in commands(guide) if words[0] == "curl"]
    known = set[str]()
    for (program, *words), file in commands(guide):
        writes = MADE["log"][0] if words[:1] == ["generate"] else "--out"
        for name in (MADE.keys() & {*words}) - known:
            if words[words.index(name) - 1] != writes:
                shutil.copytree(made(name), place / name)
            known.add(name)
        if "after.json" in words:
            shutil.copy("before.json", "after.json")
        if program in ("diff", "ln"):
            assert subprocess.run([program, *words]).returncode == 0
        elif program != "draftpick":
            assert Path(program).name in OTHERS, program
        elif words[0] == "serve":
            serves(words, curls)
        else:  # two names of a server, so that it can be compared with itself
            usual = server.url.split("/")[2] if words[0] == "costs" else f"localhost:{engine}"
            other = [word.replace("localhost:8001", f"127.0.0.1:{engine}") for word in words]
            given = [re.sub(r"localhost:80[08]0", usual, word) for word in other]
            capsys.readouterr()
            ended, said = main(shorter(*given)), capsys.readouterr()
            assert ended in ((0, 1) if words[0] == "compare" else (0,)), (words, said)
            if file:
                (place / file).write_text(said.out)


def serves(words: list[str], curls: list[list[str]]) -> None:
    """It answers what the page asks it, and ends when told."""
    with process(["-c", RUN, *words, "--port", "0"], 300) as (served, url):
        assert httpx.get(f"{url}/health").status_code == 200
        for curl in curls:
            path = curl[1].partition("localhost:8000")[2]
            body = json.loads(curl[curl.index("-d") + 1]) | {"max_tokens": 8}
            answer = httpx.post(url + path, json=body, timeout=120).json()
            assert answer["choices"][0]["message"]["content"]
        served.send_signal(signal.SIGTERM)
        assert served.wait(30) == 0
