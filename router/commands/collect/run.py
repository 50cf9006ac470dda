"""Carry out a plan of `draftpick collect`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collect.embedders import OWN, load_embedder
from collect.queries import first_per_task, read_queries, shipped
from collect.sweeps.executor import OwnExecutor
from collect.sweeps.executors import EXECUTORS
from collect.sweeps.run import sweep
from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from decoders.common.terminal import progress
from decoders.costs.measured import MEASUREMENTS
from decoders.options import EngineOptions

from ...routing import loading

if TYPE_CHECKING:
    from collect.replay.batch import Batch
    from collect.sweeps.batch import SweepOptions
    from collect.sweeps.executor import Executor
    from collect.sweeps.progress import SweepProgress
    from collect.sweeps.protocols import SweepEngine
    from collect.sweeps.run import SweepReport

    from .plan import CollectOptions


def run(asked: CollectOptions, out: Path, how: SweepOptions) -> SweepReport:
    """Read the queries, load the models, and collect into a folder.

    how: as of `plan`.

    Raises DraftpickError as `sweep` does; mistakes in the queries and the embedder's name show
    before a model is loaded.
    """
    check_folder(out, "--out")
    found = read_queries(asked.files) if asked.files else shipped("train")
    queries, on_ray = first_per_task(found, asked.limit), asked.engine == "ray"
    options = asked.options.resolved()  # the arms file may name plugins
    reader = asked.embedder and (load_embedder(asked.embedder, options.device) or OWN)
    load = partial(load_engine, options, how.arms, how.at_once)
    engine, batch = load()
    if isinstance(batch, OwnExecutor):
        how = batch.adapted(how)
        if on_ray:
            raise DraftpickError(
                "endpoints are timed one after the other from this process; leave --engine out"
            )

    with ExitStack() as open_:
        executor: Batch | Executor = batch
        if on_ray:
            from collect.sweeps.on_ray import OnRay

            executor = open_.enter_context(OnRay(load, asked.ray_address))
        show = shown_by(open_.enter_context(progress("collecting", "answers")))
        return sweep(engine, executor, queries, out, how, show, reader)


def shown_by(tick: Callable[..., None]) -> Callable[[SweepProgress], None]:
    """Shows on a bar how far a sweep is."""
    return lambda now: tick(now.done, now.total, now.figures)


def load_engine(
    options: EngineOptions, only: tuple[str, ...], at_once: tuple[int, ...]
) -> tuple[SweepEngine, Batch | Executor]:
    """An engine, and what decodes many prompts at once through it.

    only: arms; the target itself, whose answers all are compared with, is always there.
    """
    from decoders import Engine
    from decoders.zoo.catalogue import cache_dir

    engine = loading.load_engine(options, only or tuple(options.recipes()))  # all are checked
    if not isinstance(engine, Engine):
        return engine, EXECUTORS[next(iter(engine.arms.values())).kind](engine)
    from collect.replay.batch import Batch

    return engine, Batch(engine, None, at_once, cache_dir() / "costs", _tell_costs)


def _tell_costs(times: int, answers: int) -> None:
    whose = "one answer" if answers == 1 else f"up to {answers} answers at once"
    print(f"measuring the costs of {whose}, {times + 1} of {MEASUREMENTS}", file=sys.stderr)
