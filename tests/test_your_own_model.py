"""The commands of docs/your-own-model.md, one after the other on a small file."""

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest
import yaml
from gguf_toys import MIXED, save_gguf
from pages import ROOT, Snippet, snippets
from serve_toys import process

from router import cli

PAGE = ROOT / "docs" / "your-own-model.md"
RUN = "import sys; from router.cli import main; sys.exit(main(sys.argv[1:]))"


def blocks(*languages: str) -> list[Snippet]:
    return [each for each in snippets(*languages) if each.page == PAGE]


def commands() -> list[list[str]]:
    """Words of all but those that fetch a model which is known; answers are shorter."""
    lines = [
        line for each in blocks("bash") for line in each.text.replace("\\\n", " ").splitlines()
    ]
    shorter = [line.replace("-tokens 128", "-tokens 24") for line in lines]
    assert shorter != lines
    return [shlex.split(line) for line in shorter if "--fetch" not in line]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page takes for given: two files, the arms it shows, and queries."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    save_gguf(tmp_path / "my-model.gguf", "qwen2", kinds=MIXED)
    save_gguf(tmp_path / "small.gguf", "llama", "Q4_0", seed=1)
    (arms,) = blocks("yaml")
    (tmp_path / "arms.yaml").write_text(arms.text)
    assert set(yaml.safe_load(arms.text)["arms"]) == {"copy", "draft", "hybrid"}
    (shown,) = blocks("json")
    first = json.loads(shown.text.splitlines()[0])
    for name, count in (("queries.jsonl", 20), ("held-out.jsonl", 2)):
        made = [first | {"id": f"{name}{n}", "turns": [f"abcd{n}ab,ab,ab"]} for n in range(count)]
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in made))
    return tmp_path


@pytest.mark.slow
def test_the_page_goes_from_a_file_to_a_served_policy(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, serving = dict[str, str](), list[str]()
    for words in commands():
        if words[:2] == ["draftpick", "serve"]:
            serving = words[1:]
        elif words[0] == "draftpick":
            assert cli.main(words[1:]) == 0, (words, capsys.readouterr().err)
            shown = capsys.readouterr()
            told[words[1]] = shown.out + shown.err
    assert "best fixed arm" in told["train"] and (place / "policy" / "policy.json").is_file()
    assert "arm" in told["headroom"] and (place / "bench" / "report.html").is_file()
    assert re.search(r"\[arm (copy|draft|hybrid|autoregressive) ", told["generate"])

    (curl,) = [words for words in commands() if words[0] == "curl"]
    body = json.loads(curl[curl.index("-d") + 1])
    with process(["-c", RUN, *serving, "--port", "0"], 120) as (_, url):
        path = curl[1].partition("localhost:8000")[2]
        answered = httpx.post(url + path, json=body | {"max_tokens": 8}, timeout=60)
    assert answered.status_code == 200 and answered.json()["choices"][0]["message"]["content"]
