"""Measuring arms beside the target alone: rows of raw answers, and the points they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.records import Request, Sampling

from ..routing.router import Router
from ..specbench.bench import ask_all
from ..specbench.records import BASELINE, Row
from .points import Point, first_answers, points_of

if TYPE_CHECKING:
    from collect.queries import Query

    from ..protocols import RoutingEngine


@dataclass(frozen=True)
class Measured:
    """settings: all that two parts of the run share.
    rows: a question each, with every arm's answer.
    points: every arm, overall and by task.
    """

    settings: dict[str, Any]
    rows: list[Row]
    points: list[Point]


def measure(
    engine: RoutingEngine,
    questions: Sequence[Query],
    request: Request,
    folder: Path,
    *,
    seed: int = 0,
    ask: bool = True,
    quiet: bool = False,
) -> Measured:
    """Every arm of the engine on every question, paired, interleaved, journaled in `folder`.

    Call it again with the same settings to resume, or to add questions; other settings raise
    DraftpickError.

    ask: False takes the questions that were asked before.

    Where answers are sampled the target is asked once more for its greedy ones, into
    `folder`/greedy.
    """
    router = Router(engine, None)
    settings, rows = ask_all(router, questions, request, folder, seed=seed, ask=ask, quiet=quiet)
    greedy_rows = rows
    if not request.sampling.greedy:
        held = {row.question_id for row in rows}
        questions = [question for question in questions if question.id in held]
        plain = replace(request, sampling=Sampling())
        _, greedy_rows = ask_all(
            router, questions, plain, folder / "greedy", arms=[BASELINE], seed=seed, quiet=quiet
        )
    points = points_of(
        rows,
        first_answers(greedy_rows),
        greedy=request.sampling.greedy,
        eos_ids=engine.eos_ids,
        seed=seed,
    )
    return Measured(settings, rows, points)
