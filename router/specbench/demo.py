"""`draftpick demo`: the whole job on the queries that ship, one command after another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from collect.queries import first_per_task, shipped, shipped_folder
from decoders.common.files import check_folder
from decoders.records import Request

Command = Callable[[list[str]], int]

PROMPT = "Explain in two sentences why leaves turn red in autumn."


class StageFailed(Exception):
    """A command returned another exit code than 0; it has reported why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_demo(
    command: Command, out: Path, collect_limit: int, limit: int, max_new_tokens: int
) -> int:
    """Run every stage; stop at the first that fails and return its exit code.

    command: runs a command line in this process.
    collect_limit, limit: queries of each task, for training and for testing.
    """
    check_folder(out, "--out")
    Request(max_new_tokens)  # a wrong number should not show in the middle
    rewards, policy, bench = (str(out / name) for name in ("rewards", "policy", "specbench"))
    tokens = ["--max-new-tokens", str(max_new_tokens)]
    from policies.selection.crossfit import MIN_GROUPS  # queries; of fewer nothing is estimated

    try:
        _banner("1/5  collect: every arm answers the training queries")
        queries = ["--queries", str(shipped_folder("train")), "--limit", str(collect_limit)]
        _run(command, ["collect", *queries, *tokens, "--no-similarity", "--out", rewards])
        _run(command, ["collect", "--summary", rewards])

        _banner("2/5  headroom and train: a policy is kept only if it pays with 95% confidence")
        if len(first_per_task(shipped("train"), collect_limit)) >= MIN_GROUPS:
            _run(command, ["headroom", rewards])
        _run(command, ["train", "--rewards", rewards, "--out", policy])

        _banner("3/5  generate: what was saved picks an arm for one prompt")
        _run(command, ["generate", PROMPT, "--policy", policy, *tokens])

        _banner("4/5  specbench: every arm and the routed choice on the test questions")
        questions = ["--questions", str(shipped_folder("test")), "--limit", str(limit)]
        _run(command, ["specbench", *questions, *tokens, "--policy", policy, "--out", bench])

        _banner("5/5  report: one page with all of it")
        _run(command, ["report", bench])
    except StageFailed as failed:
        return failed.code
    print(f"\nReport: {bench}/report.html\nTables: {bench}/summary.md")
    return 0


def _run(command: Command, arguments: list[str]) -> None:
    print("$ draftpick " + " ".join(arguments), file=sys.stderr, flush=True)
    code = command(arguments)
    if code:
        raise StageFailed(code)


def _banner(title: str) -> None:
    from rich.console import Console

    sys.stdout.flush()
    Console(stderr=True).rule(f"[bold]{title}[/bold]", align="left")
