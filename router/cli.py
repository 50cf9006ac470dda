"""The command `draftpick`: options are read here, work is done elsewhere and imported late."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common import plugins
from decoders.common.terminal import show
from decoders.options import EngineOptions
from decoders.records import Request
from router.commands import collect as collect_command
from router.commands.listing import Listing
from router.commands.options import AsJson, Config, engine_options, names_in, takes
from router.commands.renamed import Renames

from .commands import evaluate, export, headroom, learn, promote, train
from .commands import serve as serve_command
from .commands import theory as theory_command
from .commands import tradeoff as tradeoff_command
from .commands.router_options import (
    Embedder,
    Limit,
    LogOptions,
    MaxNewTokens,
    Policy,
    Questions,
    Seed,
    Tasks,
    answer_request,
    log_options,
)

if TYPE_CHECKING:
    from .routing.router import Router

EXAMPLES = """
Pick, for every query, the cheapest way to make a language model answer.

\b
  draftpick generate "Why is the sky blue?"             answer through the arm a policy picks
  draftpick collect --out rewards                       what every arm does on every query
  draftpick headroom rewards                            what picking could gain
  draftpick train --rewards rewards --out policy        learn which arm to pick
  draftpick specbench --limit 5 --out bench             measure it, arm against arm
  draftpick report bench                                one HTML page of it
  draftpick evaluate --logs log --policy policy         what another policy would have earned
  draftpick learn --logs log --policy policy --out policy   what a log teaches a policy
  draftpick promote drafter --rewards held              let a registered policy serve
  draftpick theory --acceptance 0.7 --cost 0.1          how far to draft, computed
  draftpick export vllm                                 the arms as vLLM's options
  draftpick tradeoff sweep.yaml --out curves            quality against latency
  draftpick serve                                       OpenAI's API, an arm for every request
  draftpick demo                                        all of that, in minutes
"""

app = typer.Typer(
    name="draftpick",
    cls=Renames,
    help=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Global options. `main` reads --debug itself, wherever it is given."""


@app.command(cls=Listing)
@takes(request=answer_request, log=log_options, options=engine_options)
def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The question; - reads it from stdin.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with prompt, turns or messages; a failed one is an error line."
        ),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="Force an arm (see `draftpick arms`).")] = None,
    policy: Policy = None,
    embedder: Embedder = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Draw the arm from the policy, not its best.")
    ] = False,
    explore: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Take any arm, all alike, in this share of the answers: 0.1."
        ),
    ] = 0.0,
    learn_into: Annotated[
        Path | None,
        typer.Option(
            "--learn",
            metavar="FOLDER",
            help="Learn from every answer, and save the policy here; for one that learns, such as "
            "`draftpick train --policy thompson` makes.",
        ),
    ] = None,
    request: Request,
    seed: Annotated[
        int | None,
        typer.Option(help="Makes draws repeatable; of several prompts each has a seed from it."),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End at this string; repeatable.")] = None,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineOptions,
) -> None:
    """Answer a prompt through the arm that the policy picks.

    The answer streams to standard output; the arm, its propensity and the speed follow on standard
    error. Exit code 1: some prompts of a file failed.

    Examples:

      draftpick generate "Translate German to English: Guten Morgen."

      draftpick generate --prompts prompts.jsonl --json > answers.jsonl

      draftpick generate --prompts prompts.jsonl --explore 0.2 --log log
    """
    from decoders.common.errors import DraftpickError

    from .commands.generate import generate_all
    from .commands.prompts import Prompt, read_prompts
    from .routing.messages import as_messages

    if (prompt is None) == (prompts is None):
        raise DraftpickError("give either a PROMPT or --prompts FILE")
    if not 0 <= explore <= 1:
        raise DraftpickError(f"--explore is a share from 0 to 1, not {explore:g}")
    if explore and arm is not None:
        raise DraftpickError("--explore draws arms, --arm forces one; give either")
    if learn_into is not None and (explore or arm is not None):
        raise DraftpickError("--learn draws arms by itself; leave --arm and --explore out")
    # Mistakes that need no model are reported before one is loaded.
    request = replace(request, stop=tuple(stop or ()), seed=seed)
    if prompts is not None:
        asked = read_prompts(prompts)
    else:
        words = sys.stdin.read() if prompt == "-" else str(prompt)
        as_messages(words)
        asked = [Prompt(None, (), (words,))]
    named = [] if arm is None else [arm]
    router = _router(options, policy, arm is None, named, request, embedder, log)
    if explore:
        router, dynamic = router.exploring(explore, greedy=not dynamic), True
    if learn_into is not None:
        router = router.learning(learn_into)
    try:
        failed = generate_all(router, asked, request, arm=arm, dynamic=dynamic, as_json=as_json)
    finally:
        router.save_learned()
    if failed:
        raise typer.Exit(1)


@app.command(cls=Listing)
@takes(request=answer_request, log=log_options, options=engine_options)
def specbench(
    *,
    out: Annotated[Path, typer.Option(help="Folder for rows, answers, summary and plots.")],
    questions: Questions = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(help="Arms to run: a,b,c or repeated. Default: all. AR always runs."),
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
            help="A further policy to run beside, by its name in the tables; repeatable. Policies "
            "of one name are its seeds, and their mean and deviation are told. --policy is then "
            "only run if given.",
        ),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option("--dynamic", help="Of each --candidate, also a row whose arms are drawn."),
    ] = False,
    limit: Limit = None,
    tasks: Tasks = None,
    request: Request,
    seed: Seed = 0,
    ask: Annotated[
        bool, typer.Option("--ask/--no-ask", help="--no-ask sums up what a stopped run holds.")
    ] = True,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineOptions,
) -> None:
    """Measure every arm and the routed choice, paired and interleaved, against plain decoding.

    Re-run the same command to resume a run that was stopped.

    Example:

      draftpick specbench --questions question.jsonl --limit 20 --out bench

      draftpick specbench --candidate knn=policies/knn --candidate rl=policies/rl --dynamic --out b
    """
    from collect.queries import shipped_folder
    from decoders.common.errors import DraftpickError
    from decoders.common.provenance import measured_on

    from .routing.loading import DEFAULT_POLICY
    from .specbench.bench import result_tables
    from .specbench.bench import specbench as run_specbench
    from .specbench.candidates import candidates_of, named_folders, policy_label
    from .specbench.markdown import failures
    from .specbench.protocol import load_questions

    request = replace(request, seed=seed)
    beside = named_folders(candidate or [])
    if dynamic and not beside:
        raise DraftpickError("--dynamic is of the policies that --candidate names; name one")
    routed = routed and (policy is not None or not beside)
    asked = load_questions(questions or [shipped_folder("test")], limit, seed, names_in(tasks))
    named = names_in(arms)
    router = _router(options, policy, routed, named, request, embedder, log)
    precision = router.engine.target_fingerprint.rpartition("/")[2]
    summary = run_specbench(
        router,
        asked,
        request,
        out,
        arms=named,
        policy_label=policy_label(policy or DEFAULT_POLICY) if routed else None,
        seed=seed,
        hardware=measured_on(precision, options.device),
        ask=ask,
        candidates=candidates_of(router, beside, dynamic),
    )
    if as_json:
        _print_json(summary)
    else:
        show(lambda width: result_tables(summary, width))
        for sentence in failures(summary):
            print(sentence, file=sys.stderr)
    print(f"written to {out}; draw the report with: draftpick report {out}", file=sys.stderr)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `draftpick specbench` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Default: report.html in that folder.")] = None,
    collected: Annotated[
        Path | None, typer.Option(help="JSON summary of a collection, shown as a table.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="JSON of a training run's epochs, shown as curves.")
    ] = None,
) -> None:
    """Write one self-contained HTML page with the figures and plots of a benchmark."""
    from .commands.report import write_report

    print(write_report(folder, out, collected, history))


@app.command()
def arms(
    config: Config = None,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="What an arms file may say: kinds, fields, verifiers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the arms: each one's recipe, and whether it is lossless."""
    from .commands.arms_view import arms_json, arms_table
    from .commands.kinds_view import kinds_json, kinds_table

    if as_json:
        _print_json(kinds_json() if kinds else arms_json(config))
    else:
        show(lambda width: [kinds_table() if kinds else arms_table(config)])


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models known by name: size, licence, acceptance, and whether they are on disk."""
    from .commands.models_view import models_json, models_tables

    if as_json:
        _print_json(models_json())
    else:
        show(models_tables)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
    collect_limit: Annotated[int, typer.Option(help="Training queries a task.")] = 12,
    limit: Annotated[int, typer.Option(help="Test questions a task.")] = 3,
    max_new_tokens: MaxNewTokens = 64,
) -> None:
    """Collect, train, answer and measure on the queries that ship: under ten minutes on two cores.

    Re-run the same command to resume.
    """
    from .commands.demo import run_demo

    code = run_demo(main, out, collect_limit, limit, max_new_tokens)
    if code:
        raise typer.Exit(code)


collect_command.mount(app)
theory_command.mount(app)
tradeoff_command.mount(app)
headroom.mount(app)
train.mount(app)
evaluate.mount(app)
serve_command.mount(app)
export.mount(app)
learn.mount(app)
promote.mount(app)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    2: the user's mistake, in one sentence. 1: anything else. 130: interrupted. No traceback
    without --debug, which may be given anywhere.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        plugins.load()
        app([a for a in arguments if a != "--debug"], prog_name="draftpick")
    except SystemExit as stop:
        return _exit_code(stop)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        return _tell(error)
    return 0


def _exit_code(stop: SystemExit) -> int:
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _tell(error: Exception) -> int:
    """Print one line about the error and return the exit code."""
    from decoders.common.errors import DraftpickError
    from policies.errors import PolicyError

    words = " ".join(str(error).split())
    if isinstance(error, DraftpickError | PolicyError):
        print(f"error: {words}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.strerror:
        words = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        words = f"{type(error).__name__}: {words}"
    print(f"error: {words} (run with --debug to see where)", file=sys.stderr)
    return 1


def _router(
    options: EngineOptions,
    policy: str | None,
    routed: bool,
    named: list[str],
    request: Request,
    embedder: str | None,
    log: LogOptions,
) -> Router:
    """named: arms that `request` is for. Where there is a policy they are checked once the model is
    loaded, since a policy that does not fit gives the better message."""
    from .routing.loading import load_engine
    from .routing.router import Router

    held = log.open()
    if routed:
        return Router.from_options(options, policy, embedder, held)
    return Router(load_engine(options, named, request), None, log=held)


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
