"""What `draftpick collect` is asked to do: its options, and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoders.common.errors import DraftpickError, NoSuchName

from ..options import EngineRecord, RayAddress, at_once_in, names_in, temperatures_in

if TYPE_CHECKING:
    from collect.sweeps.batch import SweepOptions

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """The options of `draftpick collect`."""

    more: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More query files.")] = (
        None
    )
    queries: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="Query files (JSON lines), or folders of them. Default: the shipped training "
            "queries.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the collection; the same command resumes it."),
    ] = None
    arms: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Arms to collect (see `draftpick arms`). Default: all."),
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Most queries per task.")] = None
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64
    temperatures: Annotated[
        str,
        typer.Option(
            metavar="T,T",
            help="Temperatures to collect at; 0 must be one of them. Each takes about as long as "
            "the first. Greedy answers, the default, need 0 only.",
        ),
    ] = "0"
    at_once: Annotated[
        str,
        typer.Option(
            metavar="N,N",
            help="Numbers of concurrent answers that share the target's passes, or of clients that "
            "ask an endpoint; 1 must be one of them. A target needs a native backend.",
        ),
    ] = "1"
    draws: Annotated[
        int,
        typer.Option(
            min=1,
            help="Seeds for each query at each temperature above 0. Each has an answer, over which "
            "rewards are averaged, and takes as long as the first.",
        ),
    ] = 1
    batch_size: Annotated[
        int, typer.Option(min=1, help="Queries decoded together. Lower it if memory runs out.")
    ] = 64
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also time every arm on every query, for the `measured` rewards. This is much "
            "slower and needs an otherwise idle machine.",
        ),
    ] = False
    similarity: Annotated[
        bool,
        typer.Option(
            "--similarity/--no-similarity",
            help="Let drafters also write whole answers, for the rewards that compare them with "
            "the target's (paper). --no-similarity takes about half as long.",
        ),
    ] = True
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What embeds the queries: {collect.EMBEDDERS}, or a sentence-transformers folder "
            "or hub id. target, the default, takes the target's own state; sentence is "
            "all-minilm-l6-v2.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Random seed of sampled answers and orders.")] = 0
    engine: Annotated[
        str,
        typer.Option(help="Where queries are collected: local (this process) or ray (a cluster)."),
    ] = "local"
    ray_address: RayAddress = None
    options: EngineRecord
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Print the mean rewards of this collection, and collect nothing."
        ),
    ] = None
    reward: Annotated[
        str | None,
        typer.Option(
            help="With --summary: the reward, one of {collect.REWARDS}. Default: modelled, or "
            "measured for endpoints."
        ),
    ] = None
    alpha: Annotated[
        float,
        typer.Option(
            help="With --summary: weight of similarity against cost, as in `draftpick train`."
        ),
    ] = 0.5

    @property
    def files(self) -> list[Path]:
        """Query files, or folders of them; none for those that ship."""
        return [*(self.queries or ()), *(self.more or ())]


def plan(asked: CollectOptions) -> SweepOptions | None:
    """How the command's options ask to collect, None where they ask for a summary alone; reads no
    file and prints nothing.

    Raises DraftpickError for options that do not go together and numbers out of range.
    """
    from collect.sweeps.batch import SweepOptions

    if asked.engine not in ENGINES:
        raise NoSuchName("engine", asked.engine, ENGINES)
    if asked.ray_address is not None and asked.engine != "ray":
        raise DraftpickError("--ray-address needs a Ray cluster; add --engine ray")
    if asked.summary is not None:
        if asked.files or asked.out is not None:
            raise DraftpickError(
                "--summary only reads a collection; leave out --out and the query files"
            )
        return None
    if asked.reward is not None or asked.alpha != 0.5:
        raise DraftpickError("--reward and --alpha need --summary DIR, which they are for")
    if asked.out is None:
        raise DraftpickError("say where to store the outcomes, for instance --out rewards")
    return SweepOptions(
        arms=tuple(names_in(asked.arms)),
        max_new_tokens=asked.max_new_tokens,
        batch_size=asked.batch_size,
        measure=asked.measure,
        similarity=asked.similarity,
        seed=asked.seed,
        temperatures=temperatures_in(asked.temperatures),
        at_once=at_once_in(asked.at_once),
        draws=asked.draws,
    )
