"""Commands of `draftpick export`, started: llama.cpp's server, vLLM's; SGLang reads its options."""

import json
import os
import shlex
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from real_servers import ENGINES, GGUF, Server, llama_cpp
from vllm_server import BIN as VLLM
from vllm_server import served

from collect.queries import shipped
from router import cli

pytestmark = pytest.mark.engines

COPY = {"kind": "max_gram", "shortest": 2, "longest": 12, "length": {"k": 8}}
MODEL = {"kind": "neural", "drafter": str(GGUF), "length": {"k": 4}}
ARMS: dict[str, dict[str, Any]] = {
    "copy": COPY,
    "draft": MODEL,
    "joined": {"kind": "hybrid", "shortest": 3, "length": {"k": 8}, "model": MODEL},
}


def commands(
    engine: str, arms: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    """By arm, the words of the command that is printed for it."""
    (folder / "arms.yaml").write_text(json.dumps({"arms": arms}))
    words = ["export", engine, "--config", str(folder / "arms.yaml"), "--json"]
    assert cli.main(words) == 0
    made = json.loads(capsys.readouterr().out)["arms"]
    return {arm: shlex.split(each["command"]) for arm, each in made.items()}


def answered(server: Server) -> tuple[str, int, int]:
    """A greedy answer that copies its question; its drafted and accepted tokens."""
    text = "Write these words again, exactly: a red kettle, a blue lamp, a red kettle, a blue lamp."
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0}
    asked = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        made = json.load(answer)
    timings = made["timings"]
    written = made["choices"][0]["message"]["content"]
    return written, timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def test_llama_cpp_drafts_by_each_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its passes of several tokens round otherwise than those of one, so that only an answer of
    which the model is sure is compared."""
    made = commands("llama.cpp", ARMS, tmp_path, capsys)
    found = {}
    for arm, words in made.items():
        words[words.index("MODEL")] = str(GGUF)
        with llama_cpp([*words, "--ctx-size", "4096"], tmp_path) as server:
            found[arm] = answered(server)
    plain, *none = found.pop("autoregressive")
    assert none == [0, 0] and set(found) == set(ARMS)
    for arm, (text, drafted, accepted) in found.items():
        assert text == plain and drafted >= accepted > 0, (arm, found)


def test_vllm_drafts_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suffix = {"kind": "suffix", "length": {"k": 8}}
    made = commands("vllm", {"copy": COPY, "suffix": suffix}, tmp_path, capsys)
    texts = [query.turns[0] for query in shipped("test")][:8]
    answers = []
    for arm in ("autoregressive", "suffix", "copy"):
        words = made[arm]
        assert words[:3] == ["vllm", "serve", "MODEL"]
        with served(tmp_path, options=words[3:]) as server:
            answers.append(server.ask(texts))
            if arm != "copy":  # which finds no match of 8 tokens in some answers
                assert (server.counted("num_draft_tokens") > 0) == (arm == "suffix")
    assert answers[0] == answers[1] == answers[2]


def test_sglang_reads_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = {"kind": "eagle3", "drafter": "org/head", "length": {"k": 3}}
    draft = {**MODEL, "drafter": "org/small"}
    made = commands("sglang", {"copy": COPY, "draft": draft, "head": head}, tmp_path, capsys)
    script = Path(__file__).with_name("with_sglang_options.py")
    for arm, algorithm in (("copy", "NGRAM"), ("draft", "STANDALONE"), ("head", "EAGLE3")):
        words = made[arm]
        assert words[1:3] == ["-m", "sglang.launch_server"]
        ended = subprocess.run(
            [VLLM / "python", script, *words[3:]],
            env={**os.environ, "PYTHONPATH": str(ENGINES / "sglang")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        read = json.loads(ended.stdout.splitlines()[-1])
        assert read["speculative_algorithm"] == algorithm
        assert read["speculative_num_draft_tokens"] == {"copy": 9, "draft": 5, "head": 4}[arm]
