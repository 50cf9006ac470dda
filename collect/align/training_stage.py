"""One training of a recurrent drafter from texts to a finished folder, of many that share a target.

The folder is written again at every point of the learning curve, so that a run that is stopped
leaves its last weights; `result.json` says whether it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoders.backends.recurrent.cell import CELL, CellConfig, RecurrentCell
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.common.text import from_json
from decoders.sampling.draft_vocab import DraftVocab
from decoders.zoo.catalogue import trained_on

from .card import facts, finish
from .held_out import HeldOut
from .kept_states import KeptStates
from .packed_batch import flatten
from .recipe import RecurrentRecipe
from .recurrent import Drafting, Point, card_of, new_cell
from .resuming import content_of
from .teacher import Teacher
from .tokens import Tokens
from .training import train

RESULT = "result.json"
MEASURED = 8  # texts that a new cell's scale is measured on


@dataclass(frozen=True)
class TrainingStage:
    """out: its folder, the drafter being OUT/model.
    start: a drafter's folder to go on from, of whose sizes it will be.
    tasks: only these; none is all.
    width, blocks: of a new cell.
    vocab_size: ids that a new one scores, the most frequent of the answers.
    int8: whether its matrices are saved in that, half as large.
    new_rows: whether `start`'s vocabulary is chosen anew: as many ids, the answers' most frequent
        first. No weight belongs to an id, since the rows are the target's.
    """

    out: Path
    start: Path | None = None
    tasks: tuple[str, ...] = ()
    width: int = 1152
    blocks: int = 2
    vocab_size: int = 6144
    int8: bool = False
    new_rows: bool = False


@dataclass(frozen=True)
class Target:
    """What is drafted for: its name for the card, and its end-of-sequence ids."""

    name: str
    teacher: Teacher
    eos: tuple[int, ...]


def run_stage(
    stage: TrainingStage,
    target: Target,
    tokens: Tokens,
    held_out: HeldOut,
    recipe: RecurrentRecipe,
    program: str,
    report: Callable[[dict[str, float]], None],
    states: KeptStates | None = None,
    texts: Sequence[str] = (),
) -> Point:
    """Train, or go on training; the curve's last point.

    tokens: what may be trained on, none of it held out.
    states: the target's along them, where they are kept.
    texts: names of their queries, as of `facts`.
    program: how this process was called, for the card.
    report: as in `train`.
    """
    chosen = of_tasks(tokens, stage.tasks)
    teacher = target.teacher
    if len(chosen.ids) and int(chosen.ids.max()) >= teacher.vocab_size:
        raise DraftpickError(
            f"the texts hold the id {int(chosen.ids.max())}, and {target.name} knows "
            f"{teacher.vocab_size}; they are another model's"
        )
    cell, vocab = _begun(stage, target, chosen, recipe.seed)
    vocab.to(teacher.device)
    started = time.time()
    before = trained_on(str(stage.start)) if stage.start is not None else ()

    def card(point: Point) -> dict[str, Any]:
        return {
            "kind": "recurrent",
            "target": target.name,
            **card_of(point, cell, chosen, held_out),
            "int8": stage.int8,
            **facts(program, started, stage.start, recipe, [*texts, *before]),
        }

    def write(folder: Path, used: RecurrentCell) -> None:
        used.save(folder, stage.int8)
        vocab.save(folder)

    def save(used: RecurrentCell, point: Point) -> None:
        finish(stage.out / "model", stage.out.name, card(point), lambda to: write(to, used))
        _result(stage, recipe, point, finished=False)

    task = Drafting(cell, vocab, teacher, chosen, held_out, recipe, save, states=states)
    content = content_of(chosen, vocab, stage.start, "recurrent", cell.config)
    last = Point(**train(task, recipe, stage.out, report, content).curve[-1])
    _result(stage, recipe, last, finished=True)
    return last


def finished(stage: TrainingStage, recipe: RecurrentRecipe) -> Point | None:
    """The last point of a stage that is done already, by the same recipe."""
    path = stage.out / RESULT
    if not path.is_file():
        return None
    record = from_json(path.read_text(encoding="utf-8"))
    if not record["finished"] or record["recipe"] != asdict(recipe):
        return None
    return Point(**record["point"])


def of_tasks(tokens: Tokens, tasks: Sequence[str]) -> Tokens:
    """Texts of these tasks alone, all where none is named. Raises DraftpickError for a task without
    texts."""
    names = tokens.names()
    known = sorted(set(names.tolist()))
    unknown = sorted(set(tasks) - set(known))
    if unknown:
        raise DraftpickError(f"no text is of {', '.join(unknown)}; use {', '.join(known)}")
    return tokens.pick(np.isin(names, list(tasks))) if tasks else tokens


def commonest(
    tokens: Tokens, size: int, target_vocab: int, keep: Sequence[int], more: Sequence[int] = ()
) -> DraftVocab:
    """`DraftVocab.commonest` of the answers, `size` ids. A round number of them is scored faster: a
    recurrent drafter's head has no row for the others."""
    answers = (tokens.text(row)[tokens.answer[row] :] for row in range(len(tokens)))
    return DraftVocab.commonest(answers, size + 1, target_vocab, keep, more)


def _begun(
    stage: TrainingStage, target: Target, tokens: Tokens, seed: int
) -> tuple[RecurrentCell, DraftVocab]:
    teacher = target.teacher
    if stage.start is not None:
        vocab = DraftVocab.load(stage.start) if (stage.start / CELL).is_file() else None
        if vocab is None:
            raise DraftpickError(f"{stage.start} holds no recurrent drafter to go on from")
        cell = RecurrentCell.load(stage.start, teacher.device, torch.float32)
        if cell.config.hidden != teacher.hidden or vocab.target_vocab != teacher.vocab_size:
            raise DraftpickError(f"{stage.start} drafts for another target than {target.name}")
        if stage.new_rows:
            old = vocab.to_target.tolist()
            vocab = commonest(tokens, len(old), teacher.vocab_size, target.eos, old)
        return cell, vocab
    vocab = commonest(tokens, stage.vocab_size, teacher.vocab_size, target.eos)
    config = CellConfig(teacher.hidden, stage.width, stage.blocks)
    some = [tokens.text(row)[:512] for row in range(min(MEASURED, len(tokens)))]
    return new_cell(teacher, config, flatten(some).rows, seed), vocab


def _result(stage: TrainingStage, recipe: RecurrentRecipe, point: Point, finished: bool) -> None:
    record = {
        "tasks": stage.tasks,
        "finished": finished,
        "recipe": asdict(recipe),
        "point": asdict(point),
    }
    write_atomically(stage.out / RESULT, json.dumps(record, indent=1))
