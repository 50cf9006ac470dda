"""`draftpick train --seeds` and `--alphas`: several runs below one parent run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from decoders.common.errors import DraftpickError

if TYPE_CHECKING:
    from policies.tracking.run import Task
    from policies.tracking.seeds import Sweep


class MakeTask(Protocol):
    """The task of a weight of the reward and a seed."""

    def __call__(
        self, weight: float, seed: int, out: Path | None, register: str | None, run_name: str
    ) -> Task: ...


def weights_in(alphas: str, reward: str) -> list[float]:
    """`0,0.5,1` as numbers; raises DraftpickError, also for a reward that has no weight."""
    from collect.rewards import check_alpha, get

    if not get(reward).uses_alpha:
        raise DraftpickError(
            f"the reward {reward!r} has no alpha; leave --alphas out, or name a reward "
            "that has one, such as --reward paper"
        )
    try:
        weights = list(dict.fromkeys(float(part) for part in alphas.split(",")))
    except ValueError:
        raise DraftpickError(f"--alphas takes numbers, such as 0,0.5,1, not {alphas!r}") from None
    for weight in weights:
        check_alpha(weight)
    return weights


def groups_of(
    make: MakeTask,
    weights: Sequence[float],
    seeds: Sequence[int],
    out: Path | None,
    register: str | None,
) -> dict[str, list[Task]]:
    """A group a weight, a task a seed. The first seed's policy goes to `out`, in a folder for each
    weight where there are several, and is the one that is registered."""
    if len(weights) > 1 and register is not None:
        raise DraftpickError(
            "--register takes one policy, and --alphas trains one for each weight; name one --alpha"
        )
    found: dict[str, list[Task]] = {}
    for weight in weights:
        name = f"alpha={weight:g}" if len(weights) > 1 else ""
        place = out / name if out is not None else None
        found[name] = [
            make(
                weight,
                seed,
                place if seed == seeds[0] else None,
                register if seed == seeds[0] else None,
                f"{name}, seed={seed}".removeprefix(", "),
            )
            for seed in seeds
        ]
    return found


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Runs done, on standard error: a bar on a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from decoders.common.terminal import Lines

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console, "training", "runs")
        return
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        row = bar.add_task("training", total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


def tell(done: Sweep, left_out: str, as_json: bool) -> None:
    """Print what the runs came to."""
    from decoders.common.terminal import show

    from .sweep_tables import sweep_json, sweep_tables, where

    if as_json:
        typer.echo(json.dumps(sweep_json(done)))
        return
    show(lambda width: sweep_tables(done, width))
    for line in [*([f"Left out:   {left_out}"] if left_out else []), *where(done)]:
        typer.echo(line)
