"""The proposer in vLLM itself, by the environment of `make engines`: minutes on two cores."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from real_servers import ROOT
from vllm_server import BIN, MOST, QUERIES, queries, served

from router.logs.reader import read_log

pytestmark = pytest.mark.engines

COPY = {"kind": "max_gram", "shortest": 2, "longest": 12, "length": {"k": 8}}
OPTIONS = {
    "arms": {"copy": COPY, "short": {**COPY, "length": {"k": 2}, "by_cost": True}},
    "policy": "copy",
    "explore": 0.6,
    "seed": 1,
    "log": "log",
}
RAISING = """
from router.engines.vllm import Proposer as Ours


class Proposer(Ours):
    def _draft(self, requests):
        raise RuntimeError("no luck")
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    with served(tmp_path_factory.mktemp("plain")) as server:
        return server.ask(queries())


def test_answers_are_plain_decodings_before_and_after_a_kill(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    """And the log has what vLLM's own counters have, arm by arm what that arm drafts."""
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    with served(tmp_path, "router.engines.vllm.Proposer") as server:
        assert "draws wrong tokens" in server.output.read_text()  # sampled ones, in this version
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
    with served(tmp_path, "router.engines.vllm.Proposer") as server:
        assert server.ask(queries()) == plain
        time.sleep(15)
    again = read_log(tmp_path / "log")
    assert again.broken <= 1 and len(again.decisions) >= 2 * QUERIES


def test_without_options_answers_are_plain_decodings_too(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    with served(tmp_path, "router.engines.vllm.Proposer") as server:
        assert server.ask(queries()) == plain
        assert server.counted("num_accepted_tokens") > 0


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
    words = [str(BIN / "python"), "-m", "router.engines.vllm", str(tmp_path / "options.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "arms.a" in done.stderr
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "copy" in done.stdout and "0.32.0" in done.stdout
