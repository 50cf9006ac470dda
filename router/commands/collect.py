"""`draftpick collect`; heavy imports wait until the command runs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.terminal import show
from decoders.options import EngineOptions

from .align import align
from .listing import Listing
from .options import AsJson, at_once_in, engine_options, names_in, temperatures_in
from .with_records import with_records

if TYPE_CHECKING:
    from collect.sweeps.executor import Executor
    from collect.sweeps.protocols import BatchDecoder, SweepEngine
    from collect.sweeps.run import SweepReport

ENGINES = ("local", "ray")
INTERRUPTED = 130  # what shells expect after Ctrl-C

COLLECT_HELP = """Run every arm on every query and store the outcomes. `draftpick train` computes
rewards from them. The same command resumes a run that was stopped.

\b
Examples:
  draftpick collect --out rewards
  draftpick collect --queries my/*.jsonl --out rewards --limit 50
  draftpick collect --out rewards --embedder sentence
  draftpick collect --temperatures 0,1 --at-once 1,8,32 --out rewards
  draftpick collect --engine ray --ray-address auto --out rewards
  draftpick collect --summary rewards
"""


def mount(app: typer.Typer) -> None:
    """Add the commands to an application. What they raise (DraftpickError, PolicyError) is the
    application's to print."""
    app.command("collect", help=COLLECT_HELP, cls=Listing)(collect)
    app.command("align")(align)


@with_records(options=engine_options)
def collect(
    *,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="More query files.")
    ] = None,
    queries: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="Query files (JSON lines), or folders of them. Default: the shipped training "
            "queries.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the collection; the same command resumes it."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Arms to collect (see `draftpick arms`). Default: all."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most queries per task.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperatures: Annotated[
        str,
        typer.Option(
            metavar="T,T",
            help="Temperatures to collect at; 0 must be one of them. Each takes about as long as "
            "the first. Greedy answers, the default, need 0 only.",
        ),
    ] = "0",
    at_once: Annotated[
        str,
        typer.Option(
            metavar="N,N",
            help="Numbers of concurrent answers that share the target's passes; 1 must be one of "
            "them. Needs a native backend.",
        ),
    ] = "1",
    batch_size: Annotated[
        int, typer.Option(min=1, help="Queries decoded together. Lower it if memory runs out.")
    ] = 64,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also time every arm on every query, for the `measured` rewards. This is much "
            "slower and needs an otherwise idle machine.",
        ),
    ] = False,
    similarity: Annotated[
        bool,
        typer.Option(
            "--similarity/--no-similarity",
            help="Let drafters also write whole answers, for the rewards that compare them with "
            "the target's (paper). --no-similarity takes about half as long.",
        ),
    ] = True,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What embeds the queries: {collect.EMBEDDERS}, or a sentence-transformers folder "
            "or hub id. target, the default, takes the target's own state; sentence is "
            "all-minilm-l6-v2.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of sampled answers and orders.")] = 0,
    engine: Annotated[
        str,
        typer.Option(help="Where queries are collected: local (this process) or ray (a cluster)."),
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --engine ray: a running cluster: auto, or host:port of its head. Default: "
            "start a cluster on this machine, and stop it afterwards.",
        ),
    ] = None,
    options: EngineOptions,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Print the mean rewards of this collection, and collect nothing."
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="With --summary: the reward, one of {collect.REWARDS}. Default: modelled, or "
            "measured for endpoints."
        ),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(
            help="With --summary: weight of similarity against cost, as in `draftpick train`."
        ),
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    from decoders.common.errors import DraftpickError, NoSuchName

    files = [*(queries or []), *(more or [])]
    if engine not in ENGINES:
        raise NoSuchName("engine", engine, ENGINES)
    if ray_address is not None and engine != "ray":
        raise DraftpickError("--ray-address is of a Ray cluster; add --engine ray")
    if summary is not None:
        if files or out is not None:
            raise DraftpickError(
                "--summary only reads a collection; leave out --out and the query files"
            )
        _print_summary(summary, reward, alpha, as_json)
        return
    if out is None:
        raise DraftpickError("say where to store the outcomes, for instance --out rewards")
    from collect.embedders import OWN, load_embedder
    from collect.queries import first_per_task, read_queries, shipped
    from collect.sweeps.batch import SweepOptions
    from collect.sweeps.endpoints import Endpoints, for_endpoints

    how = SweepOptions(
        arms=tuple(names_in(arms)),
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        measure=measure,
        similarity=similarity,
        seed=seed,
        temperatures=temperatures_in(temperatures),
        at_once=at_once_in(at_once),
    )
    # Before the models are loaded: a mistake should show at once.
    asked = first_per_task(read_queries(files) if files else shipped("train"), limit)
    if options.arms is not None:  # the file may name plugins
        options = replace(options, arms=options.recipes())
    reader = embedder and (load_embedder(embedder, options.device) or OWN)
    load = partial(_load_engine, options, how.arms, how.at_once)
    loaded, batch = load()
    remote = isinstance(batch, Endpoints)
    if remote:
        how = for_endpoints(how)
        if engine != "local":
            raise DraftpickError(
                "endpoints are timed one after the other from this process; leave --engine out"
            )
    if engine == "local":
        report = _sweep(loaded, batch, asked, out, how, reader)
    else:
        from collect.sweeps.on_ray import OnRay

        with OnRay(load, ray_address) as cluster:
            report = _sweep(loaded, cluster, asked, out, how, reader)
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"out": str(out), **asdict(report)}))
        return
    typer.echo(
        f"{report.collected} queries collected in {report.seconds:.0f} s"
        + (f", {report.already} were there before" if report.already else "")
        + f"; {report.errors} of {report.rows} new rows are errors.\n"
        + _embedded(report)
        + _costs_of(report)
        + f"Look:  draftpick collect --summary {out}\n"
        + f"Train: draftpick train --rewards {out}"
    )
    if report.rows and report.errors == report.rows:
        raise DraftpickError(
            f"every row collected in this run is an error; see what they say in the `error` column "
            f"of {out}/outcomes, mend it, and collect into another --out"
        )


def _sweep(
    engine: SweepEngine,
    batch: BatchDecoder | Executor,
    queries: list[Any],
    out: Path,
    options: Any,
    embedder: Any,
) -> SweepReport:
    from collect.sweeps.progress import SweepProgress
    from collect.sweeps.run import sweep
    from decoders.common.terminal import progress

    try:
        with progress("collecting", "answers") as tick:

            def report(now: SweepProgress) -> None:
                tick(now.done, now.total, now.figures)

            return sweep(engine, batch, queries, out, options, report, embedder)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {out} is whole; run the same command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _embedded(report: SweepReport) -> str:
    if not report.embedded:
        return ""
    each_ms = 1000 * report.embed_s / report.embedded
    return f"{report.embedded} queries embedded in {report.embed_s:.1f} s, {each_ms:.1f} ms each.\n"


def _costs_of(report: SweepReport) -> str:
    if report.costs_of is None:
        return ""
    return (
        f"Costs stay those of the first run, by {report.costs_of}; for this run's, collect into "
        "another --out.\n"
    )


def _load_engine(
    options: EngineOptions, only: tuple[str, ...], at_once: tuple[int, ...]
) -> tuple[SweepEngine, BatchDecoder | Executor]:
    """An engine, and what decodes many prompts at once through it.

    only: arms; the target itself, whose answers all are compared with, is always there.
    """
    from decoders.arms import AUTOREGRESSIVE
    from decoders.endpoints.engine import EndpointEngine, remote

    if remote(options.recipes()):
        from collect.sweeps.endpoints import Endpoints

        endpoints = EndpointEngine.from_options(options, only)
        return endpoints, Endpoints(endpoints)
    from decoders import Engine
    from decoders.offline.batch import Batch
    from decoders.zoo.catalogue import cache_dir

    arms = [AUTOREGRESSIVE, *only] if only else None
    engine = Engine.from_options(options, only=arms)
    return engine, Batch(engine, at_once=at_once, folder=cache_dir() / "costs")


def _print_summary(folder: Path, reward: str | None, alpha: float, as_json: bool) -> None:
    from collect.store.collection import Collection
    from collect.summary import render, summarise_all

    first, *others = summarise_all(Collection.open(folder), reward, alpha)
    if as_json:
        record = first.as_json()
        for found in others:
            if found.at_once == 1:
                record.setdefault("at_temperature", {})[f"{found.temperature:g}"] = found.as_json()
            else:
                load = record.setdefault("at_once", {}).setdefault(str(found.at_once), {})
                load[f"{found.temperature:g}"] = found.as_json()
        typer.echo(json.dumps(record))
        return
    for found in (first, *others):
        show(partial(render, found))
        if found.repetitive:
            typer.echo(
                f"{found.repetitive:.0%} of the target's answers repeat themselves to the end."
            )
        for line in found.error_examples:
            typer.echo(f"error: {line}")
