"""`draftpick collect` and `draftpick train`; heavy imports wait until a command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .align.commands import align

if TYPE_CHECKING:
    from rich.table import Table

    from policies.tracking import TrainedRun

    from .engine import SweepEngine
    from .sweep import SweepReport

INTERRUPTED = 130  # what shells expect after Ctrl-C

COLLECT_HELP = """Collect what a policy learns from: every arm on every query.

For each query the target model writes its greedy answer, every drafter writes its own, and the
drafter's loop is replayed along the target's answer. Tokens, likeness (ROUGE-L), accepted tokens,
rounds and times go into DIR as raw outcomes; rewards are derived from them later, so trying
another reward needs no new collection.

Stop it whenever you like (Ctrl-C, a power cut): the same command goes on where it stopped. Query
files are JSON lines, {"id", "task", "turns", "reference"} or Spec-Bench's form; of a chat the
first turn is collected.

\b
  draftpick collect --out rewards                      the queries that ship
  draftpick collect --queries my/*.jsonl --out rewards --limit 50
  draftpick collect --summary rewards --reward modelled
"""

TRAIN_HELP = """Train the policy that picks an arm for each query, from collected rewards.

Some queries are held out; the table at the end gives the mean reward on them of the policy and of
what it has to beat: choosing at random (uniform), always the same arm (fixed), the best such arm,
the best arm for each task, and, out of reach, the best arm for every query (oracle). Everything
about the run is kept in MLflow.

\b
  draftpick train --rewards rewards --out policy
  draftpick train --rewards rewards --policy knn --reward modelled --register drafter
  draftpick generate "Why is the sky blue?" --policy policy
"""


def mount(app: typer.Typer) -> None:
    """Add the commands to an application. What they raise (DraftpickError, PolicyError) is the
    application's to print."""
    app.command("collect", help=COLLECT_HELP)(collect)
    app.command("train", help=TRAIN_HELP)(train)
    app.command("align")(align)


def collect(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="More query files.")
    ] = None,
    queries: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="Query files, or folders of them. Without any: the train queries that ship.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to store; a folder that exists is gone on with."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Arms to collect (see `draftpick arms`); default: all."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many queries of each task.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer, in tokens. 64 or 128 tell arms apart well.")
    ] = 64,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Queries decoded together; lower it if memory runs out.")
    ] = 64,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also decode each query through each arm alone and keep the times, for the "
            "`measured` rewards. Much slower; leave the machine idle meanwhile.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of sampled answers and of random orders.")] = 0,
    target: Annotated[
        str | None,
        typer.Option(help="The large model: a known name, hub id, folder or .gguf file."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, int8 or int4.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="native, hf, fused, graphs, compiled or auto.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a prompt with its answer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|TEXT",
            help="Jinja chat template, or its file; default: the tokenizer's own.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="YAML", help="Your own arms, instead of those shipped.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Collect nothing; print a collection's mean rewards instead."
        ),
    ] = None,
    reward: Annotated[
        str, typer.Option(help="With --summary: which reward; an unknown name lists them all.")
    ] = "paper",
    alpha: Annotated[
        float,
        typer.Option(help="With --summary: weight of likeness against cost, 1 = likeness alone."),
    ] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from decoders.errors import DraftpickError

    files = [*(queries or []), *(more or [])]
    if summary is not None:
        if files or out is not None:
            raise DraftpickError(
                "--summary only reads a collection; leave out --out and the query files"
            )
        _print_summary(summary, reward, alpha, as_json)
        return
    if out is None:
        raise DraftpickError("say where to store the outcomes, for instance --out rewards")
    from .batch import SweepOptions
    from .queries import first_per_task, read_queries, shipped

    options = SweepOptions(
        arms=_names(arms),
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        measure=measure,
        seed=seed,
    )
    # Before the models are loaded: a mistake should show at once.
    asked = first_per_task(read_queries(files) if files else shipped("train"), limit)
    engine = _load_engine(
        target, dtype, device, backend, context, config, options.arms, chat_template
    )
    report = _sweep(engine, asked, out, options)
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"out": str(out), **asdict(report)}))
        return
    typer.echo(
        f"{report.collected} queries collected in {report.seconds:.0f} s"
        + (f", {report.already} were there before" if report.already else "")
        + f"; {report.errors} of {report.rows} new rows are errors.\n"
        f"Look:  draftpick collect --summary {out}\nTrain: draftpick train --rewards {out}"
    )
    if report.rows and report.errors == report.rows:
        raise DraftpickError(
            f"every row collected in this run is an error; see what they say in the `error` column "
            f"of {out}/outcomes, mend it, and collect into another --out"
        )


def train(
    rewards: Annotated[
        Path, typer.Option(metavar="DIR", help="What `draftpick collect --out DIR` wrote.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="reinforce (the paper's network), exact (its exact gradient), knn, regression, "
            "logistic, best-fixed or uniform."
        ),
    ] = "reinforce",
    reward: Annotated[
        str,
        typer.Option(
            help="What to maximise: paper, parameter-ratio, latency-ratio, acceptance, "
            "saved-passes, modelled (speed-up), measured or measured-speedup."
        ),
    ] = "paper",
    alpha: Annotated[
        float,
        typer.Option(help="Weight of likeness against cost: 1 = likeness alone, 0 = cost alone."),
    ] = 0.5,
    validation_share: Annotated[
        float, typer.Option(help="Share of every task's queries held out to judge the policy.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Of the split and of training.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the queries.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Another option of the policy, e.g. --set k=5."
        ),
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment to log into.")] = "draftpick",
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="MLflow store; default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."),
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also register the model, as models:/NAME@champion."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Policy folder; default: mlruns/policies/<run id>."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from policies import options_of
    from policies.tracking import train_run

    from .table import reward_table

    options_of(policy)  # an unknown policy should show before the rewards are read
    chosen = _policy_options(options or [])
    chosen |= {k: v for k, v in (("epochs", epochs), ("lr", lr)) if v is not None}
    run = train_run(
        reward_table(rewards, reward, alpha),
        policy=policy,
        options=chosen,
        seed=seed,
        held_out=validation_share,
        out=out,
        tracking_uri=tracking_uri,
        experiment=experiment,
        register=register,
        params={
            "alpha": alpha,
            "rewards": str(rewards),
            "validation_share": validation_share,
        },
    )
    if as_json:
        typer.echo(json.dumps(_run_as_json(run)))
        return
    from rich.console import Console

    Console().print(_value_table(run))
    typer.echo(
        f"Policy:     {run.folder}\n"
        f"MLflow run: {run.run_id} (experiment {run.experiment})\n"
        + (f"Registered: {run.registered}\n" if run.registered else "")
        + f"Look:       mlflow ui --backend-store-uri {_shown(run.tracking_uri)}\n"
        f'Use:        draftpick generate "..." --policy {run.folder}'
    )


def _sweep(engine: SweepEngine, queries: list[Any], out: Path, options: Any) -> SweepReport:
    from rich.console import Console

    from .progress import progress_bar
    from .sweep import sweep

    try:
        with progress_bar(Console(stderr=True)) as show:
            return sweep(engine, queries, out, options, show)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {out} is whole; run the same command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _load_engine(
    target: str | None,
    dtype: str | None,
    device: str | None,
    backend: str | None,
    context: int | None,
    config: Path | None,
    only: tuple[str, ...],
    chat_template: str | None,
) -> SweepEngine:
    """The engine with the defaults it has itself for what was not asked. only: arms; the target
    itself, whose answers all are compared with, is always there."""
    from decoders import Engine
    from decoders.arms import AUTOREGRESSIVE

    named: dict[str, Any] = {
        "target": target, "dtype": dtype, "device": device, "backend": backend, "context": context,
        "chat_template": chat_template,
    }  # fmt: skip
    arms = [AUTOREGRESSIVE, *only] if only else None
    return Engine.load(arms=config, only=arms, **{k: v for k, v in named.items() if v is not None})


def _print_summary(folder: Path, reward: str, alpha: float, as_json: bool) -> None:
    from .summary import render, summarise

    found = summarise(folder, reward, alpha)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
        return
    from rich.console import Console

    console = Console()
    for table in render(found, console.width):
        console.print(table)
    for line in found.error_examples:
        typer.echo(f"error: {line}")


def _names(listed: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (listed or "").split(",") if name.strip())


def _policy_options(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; values are JSON (5, 0.1, true) and otherwise text."""
    from decoders.errors import DraftpickError

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise DraftpickError(f"--set takes NAME=VALUE, for instance --set k=5, not {pair!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _value_table(run: TrainedRun) -> Table:
    """The policy's rows and the reference rows, with bootstrap intervals."""
    from rich.table import Table

    judged = "held-out" if run.evaluated_on == "validation" else "training"
    table = Table(title=f"Mean reward on the {judged} queries, with its 95 % interval")
    for name in ("choice", "reward", "interval", "queries"):
        table.add_column(name, justify="left" if name == "choice" else "right")
    evaluation = run.evaluation
    for row in [*evaluation.rows, evaluation.gain]:
        name = {
            "greedy": "policy (greedy)",
            "dynamic": "policy (sampled)",
            "best-fixed": f"best fixed ({evaluation.best_fixed})",
        }.get(row.name, row.name)
        if row is evaluation.gain:
            table.add_section()
            name = "policy - best fixed"
        style = "bold green" if row.name == "greedy" else None
        interval = f"{row.low:.4f} .. {row.high:.4f}"
        table.add_row(name, f"{row.mean:.4f}", interval, str(row.queries), style=style)
    return table


def _run_as_json(run: TrainedRun) -> dict[str, Any]:
    rows = [*run.evaluation.rows, run.evaluation.gain]
    return {
        "run_id": run.run_id,
        "experiment": run.experiment,
        "tracking_uri": _shown(run.tracking_uri),
        "policy": str(run.folder),
        "policy_uri": run.policy_uri,
        "registered": run.registered,
        "evaluated_on": run.evaluated_on,
        "best_fixed": run.evaluation.best_fixed,
        "values": {row.name: {"mean": row.mean, "ci95": [row.low, row.high]} for row in rows},
    }


def _shown(uri: str) -> str:
    from policies.store import shown

    return shown(uri)
