"""`draftpick specbench`, and with it the commands of this room: a plugin by the entry points."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder

from ..commands import COMMANDS
from ..commands.options import (
    AsJson,
    Embedder,
    EngineRecord,
    LogOptions,
    MaxNewTokens,
    Policy,
    RequestRecord,
    names_in,
    router_for,
)
from ..tabulated import print_json, show_tables
from .compare_command import compare


def specbench(
    *,
    out: Annotated[Path, typer.Option(help="Folder for rows, answers, summary and picture.")],
    questions: Annotated[
        list[Path] | None,
        typer.Option(
            help="Spec-Bench's question.jsonl, or query files. Default: the shipped test."
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            help="Arms to run: a,b,c or repeated. Default: all. Plain decoding always runs."
        ),
    ] = None,
    policy: Policy = None,
    embedder: Embedder = None,
    routed: Annotated[
        bool, typer.Option("--routed/--no-routed", help="Also run the policy's choice.")
    ] = True,
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=POLICY",
            help="Also run this policy, under NAME in the tables. Repeatable. The default policy "
            "then runs only with --policy.",
        ),
    ] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Also report each --candidate with sampled arms.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Questions per task, evenly spaced.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(help="Only these tasks: a,b,c or repeated.")
    ] = None,
    request: RequestRecord,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of questions, their order and sampling.")
    ] = 0,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask/--no-ask", help="--no-ask summarises a stopped run without answering more."
        ),
    ] = True,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineRecord,
) -> None:
    """Benchmark every arm and the policy against plain decoding. All answer the same questions, in
    interleaved order. The same command resumes a run that was stopped.

    \b
    Examples:
      draftpick specbench --questions question.jsonl --limit 20 --out bench
      draftpick specbench --candidate knn=policies/knn --dynamic --out bench
    """
    from collect.queries import shipped_folder
    from decoders.common.provenance import measured_on

    from ..routing.loading import FIXED, shipped_policy
    from .bench import load_questions
    from .bench import specbench as run_specbench
    from .candidates import candidates_of, named_folders, policy_label
    from .markdown import failures, sections

    # Mistakes that need no model are reported before one is loaded.
    check_folder(out, "--out")
    request = replace(request, seed=seed)
    further = named_folders(candidate or [])
    if dynamic and not further:
        raise DraftpickError("--dynamic needs a --candidate, whose arms it samples; name one")
    routed = routed and (policy is not None or not further)
    asked = load_questions(questions or [shipped_folder("test")], limit, seed, names_in(tasks))
    named = names_in(arms)
    router = router_for(options, policy, routed, named, request, embedder, log)
    precision = router.engine.target_fingerprint.rpartition("/")[2]
    given, label = policy or shipped_policy(options), FIXED if routed else None
    if given and router.policy is not None:
        label = policy_label(given, router.policy)
    summary = run_specbench(
        router,
        asked,
        request,
        out,
        arms=named,
        policy_label=label,
        seed=seed,
        hardware=measured_on(precision, options.device),
        ask=ask,
        candidates=candidates_of(router, further, dynamic),
    )
    if as_json:
        print_json(summary)
    else:
        show_tables(sections(summary)[:3])
        for sentence in failures(summary):
            print(sentence, file=sys.stderr)
    print(f"written to {out}; draw the report with: draftpick report {out}", file=sys.stderr)


def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `draftpick specbench` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file. Default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page with the results of a benchmark. The page is self-contained: tables and
    picture need no other file.

    \b
    Example:
      draftpick report bench
    """
    from .report import write_report

    print(write_report(folder, out))


def demo(
    ctx: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(
        "demo"
    ),
    collect_limit: Annotated[int, typer.Option(min=1, help="Training queries per task.")] = 24,
    limit: Annotated[int, typer.Option(min=1, help="Test questions per task.")] = 3,
    max_new_tokens: MaxNewTokens = 64,
) -> None:
    """Collect, train, answer and measure on the shipped queries. It takes less than ten minutes on
    two cores, and the same command resumes it.

    \b
    Example:
      draftpick demo
    """
    from .demo import run_demo

    code = run_demo(ctx.obj, out, collect_limit, limit, max_new_tokens)
    if code:
        raise typer.Exit(code)


COMMANDS |= {"compare": compare, "specbench": specbench, "report": report, "demo": demo}
