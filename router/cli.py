"""The command `draftpick`: options are read here, work is done elsewhere and imported late."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from decoders.common.openmp import spin_briefly
from decoders.common.secrets import masked
from decoders.common.terminal import bars_as_lines, show
from decoders.common.wording import in_words
from decoders.options import EngineOptions
from decoders.records import Request

from .commands.align.command import align
from .commands.collect.command import collect
from .commands.evaluate import evaluate
from .commands.headroom.command import headroom
from .commands.learn import learn
from .commands.listing import Listing
from .commands.options import AsJson, Config, Target, engine_options, names_in
from .commands.promote import promote
from .commands.renamed import Renames
from .commands.router_options import (
    Embedder,
    LogOptions,
    MaxNewTokens,
    Policy,
    answer_request,
    log_options,
)
from .commands.serve.command import serve
from .commands.train.command import train
from .commands.with_records import with_records
from .engines.audit.command import audit
from .engines.costs import costs
from .engines.export.command import export
from .theory.command import theory

if TYPE_CHECKING:
    from .routing.router import Router


PLACES = {
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What is wrong where a file or folder that was named cannot be one."""

EXAMPLES = """
Answer prompts by speculative decoding. A policy learns which way to draft is fastest for which
prompt, and picks one for each.

\b
Examples:
  draftpick generate "Why is the sky blue?"         answer a prompt
  draftpick serve                                   serve OpenAI's API
  draftpick collect --out rewards                   measure arms on queries
  draftpick headroom rewards                        report the possible gain
  draftpick train --rewards rewards --out policy    train a policy
  draftpick specbench --limit 5 --out bench         benchmark the arms
  draftpick demo                                    do this in ten minutes
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
@with_records(request=answer_request, log=log_options, options=engine_options)
def generate(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from standard input.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of JSON lines with prompt, turns or messages. A prompt that fails gives a "
            "line with the error."
        ),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="Force an arm (see `draftpick arms`).")] = None,
    policy: Policy = None,
    embedder: Embedder = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Sample the arm from the policy's distribution.")
    ] = False,
    explore: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Pick an arm uniformly at random for this share of the answers, such as 0.1.",
        ),
    ] = 0.0,
    learn_into: Annotated[
        Path | None,
        typer.Option(
            "--learn",
            metavar="FOLDER",
            help="Update the policy after every answer, and save it here. It must be an online "
            "policy, such as `draftpick train --policy thompson` makes.",
        ),
    ] = None,
    request: Request,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Random seed; with --prompts, each prompt gets its own, derived from it."
        ),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop at this string. Repeatable.")] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer in JSON that this JSON schema takes."),
    ] = None,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineOptions,
) -> None:
    """Answer a prompt with the arm that the policy picks. The answer goes to standard output; the
    arm, its propensity and the speed go to standard error. The exit code is 1 if a prompt of a file
    failed.

    \b
    Examples:
      draftpick generate "Translate German to English: Guten Morgen."
      draftpick generate --prompts prompts.jsonl --json > answers.jsonl
      draftpick generate --prompts prompts.jsonl --explore 0.2 --log log
      draftpick generate "Name a city and its river." --json-schema city.json
    """
    from .commands.generate import generate_all
    from .commands.prompts import Prompt, read_prompts, schema_in
    from .routing.messages import as_messages

    if (prompt is None) == (prompts is None):
        raise DraftpickError("give either a PROMPT or --prompts FILE")
    if not 0 <= explore <= 1:
        raise DraftpickError(f"--explore is a share from 0 to 1, not {explore:g}")
    if explore and arm is not None:
        raise DraftpickError("--explore draws arms, --arm forces one; give either")
    if learn_into is not None and (explore or arm is not None):
        raise DraftpickError("--learn samples arms itself; leave --arm and --explore out")
    # Mistakes that need no model are reported before one is loaded.
    if learn_into is not None:
        check_folder(learn_into, "--learn")
    grammar = None if json_schema is None else schema_in(json_schema)
    request = replace(request, stop=tuple(stop or ()), seed=seed, grammar=grammar)
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
@with_records(request=answer_request, log=log_options, options=engine_options)
def specbench(
    *,
    out: Annotated[Path, typer.Option(help="Folder for rows, answers, summary and plots.")],
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
        bool,
        typer.Option("--dynamic", help="Also report each --candidate with sampled arms."),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Questions per task, evenly spaced.")] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(help="Only these tasks: a,b,c or repeated.")
    ] = None,
    request: Request,
    seed: Annotated[
        int, typer.Option(help="Random seed of questions, their order and sampling.")
    ] = 0,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask/--no-ask", help="--no-ask summarises a stopped run without answering more."
        ),
    ] = True,
    log: LogOptions,
    as_json: AsJson = False,
    options: EngineOptions,
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

    from .routing.loading import FIXED, shipped_policy
    from .specbench.bench import result_tables
    from .specbench.bench import specbench as run_specbench
    from .specbench.candidates import candidates_of, named_folders, policy_label
    from .specbench.markdown import failures
    from .specbench.protocol import load_questions

    # Mistakes that need no model are reported before one is loaded.
    check_folder(out, "--out")
    request = replace(request, seed=seed)
    further = named_folders(candidate or [])
    if dynamic and not further:
        raise DraftpickError("--dynamic needs a --candidate, whose arms it samples; name one")
    routed = routed and (policy is not None or not further)
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
        policy_label=policy_label(policy or shipped_policy(options) or FIXED) if routed else None,
        seed=seed,
        hardware=measured_on(precision, options.device),
        ask=ask,
        candidates=candidates_of(router, further, dynamic),
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
    out: Annotated[
        Path | None, typer.Option(help="HTML file. Default: report.html in that folder.")
    ] = None,
) -> None:
    """Write one HTML page with the results of a benchmark. The page is self-contained: tables and
    plots need no other file.

    \b
    Example:
      draftpick report bench
    """
    from .commands.report import write_report

    print(write_report(folder, out))


@app.command()
def arms(
    config: Config = None,
    target: Target = EngineOptions.target,
    kinds: Annotated[
        bool,
        typer.Option("--kinds", help="List what an arms file can hold: kinds and their fields."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the arms, their recipes, and whether they are lossless.

    \b
    Examples:
      draftpick arms
      draftpick arms --config arms.yaml
      draftpick arms --target qwen2.5-coder-1.5b-instruct
      draftpick arms --kinds
    """
    from decoders.arms.file import own_arms
    from decoders.zoo.catalogue import TARGET

    from .commands.views import arms_json, arms_table, kinds_json, kinds_table

    listed = EngineOptions(target, config)
    if config is None and target != TARGET and listed.made_for is None:
        raise DraftpickError(
            f"--target {target}: no arms ship for it; give a model for which some do "
            f"({', '.join([TARGET, *own_arms()])}), or declare arms in a file for --config"
        )
    if as_json:
        _print_json(kinds_json() if kinds else arms_json(listed))
    else:
        show(lambda width: [kinds_table() if kinds else arms_table(listed)])


@app.command()
def models(
    clear: Annotated[
        list[str] | None,
        typer.Option(help="Remove this entry of the cache from the disk; may be given repeatedly."),
    ] = None,
    fetch: Annotated[
        list[str] | None,
        typer.Option(help="Fetch this model into the cache; may be given repeatedly."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models known by name, and whether they are on disk. The table gives each model's
    size, licence and acceptance rate. A second one lists what the cache holds.

    \b
    Examples:
      draftpick models
      draftpick models --fetch qwen2.5-coder-0.5b-instruct
      draftpick models --clear compiled
    """
    from .commands.views import megabytes, models_json, models_tables

    if clear or fetch:
        from decoders.zoo import clear as remove

        for name in clear or ():
            typer.echo(f"removed {name}, {megabytes(remove(name).size_bytes)}")
        for name in fetch or ():
            from decoders.models import targets

            typer.echo(targets.fetch_known(name))
    elif as_json:
        _print_json(models_json())
    else:
        show(models_tables)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo writes.")] = Path(
        "demo"
    ),
    collect_limit: Annotated[int, typer.Option(min=1, help="Training queries per task.")] = 12,
    limit: Annotated[int, typer.Option(min=1, help="Test questions per task.")] = 3,
    max_new_tokens: MaxNewTokens = 64,
) -> None:
    """Collect, train, answer and measure on the shipped queries. It takes less than ten minutes on
    two cores, and the same command resumes it.

    \b
    Example:
      draftpick demo
    """
    from .commands.demo import run_demo

    code = run_demo(main, out, collect_limit, limit, max_new_tokens)
    if code:
        raise typer.Exit(code)


for command in (
    collect, align, theory, headroom, costs, audit, train, evaluate, serve, export, learn, promote,
):  # fmt: skip
    app.command(cls=Listing)(command)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    2: the user's mistake, in one sentence. 1: anything else. 130: interrupted. No traceback
    without --debug, which may be given anywhere.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        spin_briefly()
        plugins.load()
        with bars_as_lines():
            app([a for a in arguments if a != "--debug"], prog_name="draftpick")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _tell(error, debug)
    return 0


def _tell(error: Exception, debug: bool) -> int:
    """Print one line about the error and return the exit code; with debug, the traceback before it.
    Neither shows a password."""
    import traceback

    if debug:
        print(masked("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, DraftpickError):
        print(f"error: {masked(in_words(error))}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.filename and error.errno in PLACES:
        print(f"error: {in_words(error)}; name another file or folder", file=sys.stderr)
        return 2
    print(f"error: {masked(in_words(error))} (run with --debug to see where)", file=sys.stderr)
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
