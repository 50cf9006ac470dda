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
    queries = ["--queries", str(shipped_folder("train")), "--limit", str(collect_limit)]
    questions = ["--questions", str(shipped_folder("test")), "--limit", str(limit)]
    from policies.selection.crossfit import MIN_GROUPS  # queries; of fewer nothing is estimated

    enough = len(first_per_task(shipped("train"), collect_limit)) >= MIN_GROUPS
    stages = {
        "1/5  collect: every arm answers the training queries": [
            ["collect", *queries, *tokens, "--no-similarity", "--out", rewards],
            ["collect", "--summary", rewards],
        ],
        "2/5  headroom and train: a policy is kept only if it pays with 95% confidence": [
            *([["headroom", rewards]] if enough else []),
            ["train", "--rewards", rewards, "--out", policy],
        ],
        "3/5  generate: what was saved picks an arm for one prompt": [
            ["generate", PROMPT, "--policy", policy, *tokens],
        ],
        "4/5  specbench: every arm and the routed choice on the test questions": [
            ["specbench", *questions, *tokens, "--policy", policy, "--out", bench],
        ],
        "5/5  report: one page with all of it": [["report", bench]],
    }
    for title, commands in stages.items():
        _banner(title)
        for arguments in commands:
            print("$ draftpick " + " ".join(arguments), file=sys.stderr, flush=True)
            if code := command(arguments):
                return code
    print(f"\nReport: {bench}/report.html\nTables: {bench}/summary.md")
    return 0


def _banner(title: str) -> None:
    from rich.console import Console

    sys.stdout.flush()
    Console(stderr=True).rule(f"[bold]{title}[/bold]", align="left")
