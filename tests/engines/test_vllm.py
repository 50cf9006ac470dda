"""The proposer in vLLM itself, by the environment of `make engines`: minutes on two cores."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from router.logs.reader import read_log

pytestmark = pytest.mark.engines

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DRAFTPICK_ENGINES", ROOT / ".engines")) / "vllm" / "bin"
MOST = 8  # tokens of a draft
CLIENTS, QUERIES = 8, 24
COPY = {"kind": "max_gram", "shortest": 2, "longest": 12, "length": {"k": 8}}
OPTIONS = {
    "arms": {"copy": COPY, "short": {**COPY, "length": {"k": 2}, "by_cost": True}},
    "policy": "copy",
    "explore": 0.6,
    "seed": 1,
    "log": "log",
}
RAISING = """
from router.vllm import Proposer as Ours


class Proposer(Ours):
    def _draft(self, requests):
        raise RuntimeError("no luck")
"""


@dataclass
class Server:
    """url: of its API."""

    url: str
    process: subprocess.Popen[bytes]
    output: Path

    def ask(self, queries: list[str], seed: int = 0) -> list[list[int]]:
        """The ids of each answer, CLIENTS at a time."""
        from openai import OpenAI

        client = OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=600, max_retries=0)

        def one(query: str) -> list[int]:
            answer = client.chat.completions.create(
                model="target",
                messages=[{"role": "user", "content": query}],
                max_tokens=24,
                temperature=0,
                extra_body={"return_token_ids": True},
            )
            ids: Any = answer.choices[0].model_dump()["token_ids"]
            return list(ids)

        with ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(one, queries))

    def counted(self, name: str) -> int:
        """A counter of its metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as page:
            text = page.read().decode()
        found = re.findall(rf"^vllm:spec_decode_{name}_total{{.*?}} (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def served(folder: Path, proposer: str | None = None) -> Iterator[Server]:
    """`vllm serve` on the default target. proposer: a class; None decodes plainly."""
    from decoders.zoo import fetch
    from decoders.zoo.catalogue import TARGET

    if not (BIN / "vllm").exists():
        pytest.fail(f"there is no vLLM in {BIN}; run `make engines`")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(BIN / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(fetch(TARGET)), "--served-model-name", "target"]
    words += ["--port", str(port), "--enforce-eager", "--dtype", "float32"]
    words += ["--max-model-len", "1024", "--max-num-seqs", str(CLIENTS)]
    words += ["--no-enable-prefix-caching"]
    if proposer is not None:
        chosen = {"model": proposer, "num_speculative_tokens": MOST}
        place = {"draftpick": str(folder / "options.json")}
        words += ["--speculative-config", json.dumps(chosen)]
        words += ["--additional-config", json.dumps(place)]
    output = folder / f"server-{port}.log"
    paths = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "PYTHONPATH": paths}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            words, env=environment, stdout=sink, stderr=sink, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process, output)
    try:
        wait_for(server)
        yield server
    finally:
        server.kill()


def wait_for(server: Server, limit_s: float = 900) -> None:
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"vLLM did not start: {server.output.read_text()[-3000:]}")


def queries(many: int = QUERIES) -> list[str]:
    """The shortest that ship."""
    from collect.queries import shipped

    texts = sorted((query.turns[0] for query in shipped("train")), key=len)
    return texts[: 3 * many : 3]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with served(tmp_path_factory.mktemp("plain")) as server:
        return server.ask(queries())


def test_answers_are_plain_decodings_before_and_after_a_kill(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    """And the log has what vLLM's own counters have, arm by arm what that arm drafts."""
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    with served(tmp_path, "router.vllm.Proposer") as server:
        assert server.ask(queries()) == plain
        time.sleep(15)  # the last answers' lines are written once the engine is idle
        rows = read_log(tmp_path / "log").decisions
        assert len(rows) == QUERIES
        assert sum(each.outcome.drafted or 0 for each in rows) == server.counted("num_draft_tokens")
        accepted = sum(each.outcome.accepted or 0 for each in rows)
        assert accepted == server.counted("num_accepted_tokens") > 0
        for each in rows:
            longest = {"autoregressive": 0, "short": 2, "copy": MOST}[each.arm]
            assert (each.outcome.drafted or 0) <= longest * (each.outcome.rounds or 0)
        assert len({each.arm for each in rows}) == 3
        with ThreadPoolExecutor(1) as pool:
            broken = pool.submit(server.ask, queries())
            time.sleep(3)
            server.kill()
            assert broken.exception() is not None
    with served(tmp_path, "router.vllm.Proposer") as server:
        assert server.ask(queries()) == plain
        time.sleep(15)
    again = read_log(tmp_path / "log")
    assert again.broken <= 1 and len(again.decisions) >= 2 * QUERIES


def test_a_proposer_that_raises_costs_drafts_and_nothing_else(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    (tmp_path / "raising.py").write_text(RAISING)
    with served(tmp_path, "raising.Proposer") as server:
        assert server.ask(queries()) == plain
        assert server.counted("num_draft_tokens") == 0
        assert server.output.read_text().count("draftpick's proposer failed") == 1


def test_wrong_options_are_one_sentence_and_no_server(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({"arms": {"a": {"kind": "early_exit"}}}))
    words = [str(BIN / "python"), "-m", "router.vllm", str(tmp_path / "options.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "arms.a" in done.stderr
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "copy" in done.stdout and "0.32.0" in done.stdout


def test_a_schedule_as_exported_is_one_that_vllm_reads() -> None:
    code = (
        "from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup as read\n"
        "print(read([[1, 3, 8], [4, 8, 0]], 10, 8))"
    )
    done = subprocess.run([str(BIN / "python"), "-c", code], capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0]
