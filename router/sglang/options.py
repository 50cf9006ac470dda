"""What SGLang's adaptive configuration says for a `StepPolicy`.

SGLang reads the file too: its entries by batch size name the draft lengths for which it prepares,
and size its buffers; other keys it leaves alone.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from decoders.arms.file import mistaken, sentences
from decoders.arms.strict import Strict
from decoders.common.errors import DraftpickError
from decoders.common.text import from_json

KEY = "draftpick"


class Part(Strict):
    """The part `draftpick` of the file.

    costs: a file of `draftpick costs`, made on this server without drafts; its place is relative to
        the configuration's.
    draft_cost: of one drafted token of each answer, in steps of one answer without drafts.
    margin: how much faster another length must promise to be, as a share.
    """

    costs: str
    draft_cost: Annotated[float, Field(ge=0)]
    margin: Annotated[float, Field(ge=0)] = 0.03


@dataclass(frozen=True)
class StepOptions:
    """candidates: by the least batch size from which they hold, draft lengths in rising order.
    step_s: seconds of a step without drafts by the tokens that it reads, from 1 on, never falling.
    draft_s: seconds of one drafted token of each answer.
    margin: as in Part.
    """

    candidates: dict[int, tuple[int, ...]]
    step_s: dict[int, float]
    draft_s: float
    margin: float = 0.03


def read_options(path: str | Path) -> StepOptions | None:
    """None for a file without a part `draftpick`. Raises DraftpickError for a wrong one."""
    path = Path(path)
    record = _record(path)
    if KEY not in record:
        return None
    try:
        part = Part.model_validate(record[KEY])
    except ValidationError as error:
        found = sentences(KEY, error, list(Part.model_fields))
        raise mistaken(path, found) from error
    candidates = {
        int(size): _lengths(path, size, entry) for size, entry in record.items() if size.isdigit()
    }
    if not candidates:
        raise DraftpickError(
            f'{path} names no draft lengths; add such as {{"1": {{"candidate_steps": [0, 2, 4]}}}}'
        )
    step_s = _step_s(path.parent / Path(part.costs).expanduser())
    return StepOptions(candidates, step_s, part.draft_cost * step_s[1], part.margin)


def _record(path: Path) -> dict[str, object]:
    try:
        record = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DraftpickError(f"cannot read {path}: {error}") from error
    if not isinstance(record, dict):
        raise DraftpickError(f"{path} is no JSON object")
    return record


def _lengths(path: Path, size: str, entry: object) -> tuple[int, ...]:
    lengths = entry.get("candidate_steps") if isinstance(entry, dict) else None
    if not isinstance(lengths, list) or not lengths:
        lengths = [None]
    if not all(isinstance(each, int) and each >= 0 for each in lengths):
        raise DraftpickError(
            f"{path}: {size}.candidate_steps must be a list of draft lengths, such as [0, 2, 4]"
        )
    return tuple(sorted(set(lengths)))


def _step_s(path: Path) -> dict[int, float]:
    try:
        repeats = _record(path)["step_s"]
        counts = sorted({int(n) for each in repeats for n in each})  # type: ignore[attr-defined]
        medians = {
            n: statistics.median(float(each[str(n)]) for each in repeats if str(n) in each)  # type: ignore[attr-defined]
            for n in counts
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        medians = {}
    if 1 not in medians or min(medians.values()) <= 0:
        raise DraftpickError(
            f"{path} has no seconds of a server's steps; make it with draftpick costs URL"
        )
    later, least = float("inf"), dict[int, float]()
    for count in sorted(medians, reverse=True):  # more tokens never take less
        later = least[count] = min(later, medians[count])
    return dict(sorted(least.items()))
