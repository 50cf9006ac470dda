"""Token files: texts as ids, many in one `.npz`, so that training at scale reads no text.

A shard holds `ids` (uint16, all texts end to end), `starts` (int64 [n + 1], where each begins),
`answer` (int32 [n], where in its text the answer begins), `task` (uint8 [n], an index into the
names `tasks`) and `temperature` (float32 [n], 0 for greedy answers).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoders.common.errors import DraftpickError
from decoders.common.files import replacing

HELD_OUT_PERCENT = 3
_KEYS = ("ids", "starts", "answer", "task", "tasks", "temperature")
_KINDS = {"ids": "u", "starts": "i", "answer": "i", "task": "u", "tasks": "U", "temperature": "f"}


@dataclass(frozen=True)
class Text:
    """ids: prompt then answer, each below 65536.
    answer: index of the answer's first token, or len(ids) where there is none.
    temperature: at which it was drawn, 0 if greedy.
    """

    ids: Sequence[int] | np.ndarray
    answer: int
    task: str
    temperature: float = 0.0


@dataclass(frozen=True)
class Tokens:
    """Texts of any number of shards; the arrays of the module's docstring."""

    ids: np.ndarray
    starts: np.ndarray
    answer: np.ndarray
    task: np.ndarray
    tasks: tuple[str, ...]
    temperature: np.ndarray

    def __len__(self) -> int:
        return len(self.answer)

    @property
    def lengths(self) -> np.ndarray:
        """[n] tokens of each text."""
        lengths: np.ndarray = np.diff(self.starts)
        return lengths

    def text(self, row: int) -> np.ndarray:
        """Ids of one text, a view."""
        ids: np.ndarray = self.ids[self.starts[row] : self.starts[row + 1]]
        return ids

    def names(self) -> np.ndarray:
        """[n] each text's task by its name."""
        names: np.ndarray = np.array(self.tasks, dtype=str)[self.task]
        return names

    def pick(self, rows: np.ndarray) -> Tokens:
        """Some of the texts: a mask [n] or indices."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        lengths = self.lengths[rows]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = np.empty(int(ends[-1]), np.uint16)
        for at, row in enumerate(rows):
            ids[ends[at] : ends[at + 1]] = self.text(int(row))
        return Tokens(
            ids, ends, self.answer[rows], self.task[rows], self.tasks, self.temperature[rows]
        )

    def held_out(self, percent: int = HELD_OUT_PERCENT) -> np.ndarray:
        """[n] bool: a fixed few percent, by prompt, so that all answers to one prompt fall on the
        same side whichever shard they lie in."""
        prompts = (self.text(row)[: self.answer[row]].tobytes() for row in range(len(self)))
        return np.fromiter((zlib.crc32(p) % 100 < percent for p in prompts), bool, len(self))


def pack(texts: Iterable[Text]) -> Tokens:
    """Texts in one. Raises DraftpickError for an id that 16 bits do not hold, for more than 256
    tasks, and for an answer that begins outside its text."""
    texts = list(texts)
    tasks = sorted({text.task for text in texts})
    if len(tasks) > 256:
        raise DraftpickError(f"a token file holds at most 256 tasks, not {len(tasks)}")
    parts = [np.asarray(text.ids, np.int64).reshape(-1) for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if part.size and not 0 <= part.min() <= part.max() < 65536:
            raise DraftpickError("a token file holds ids from 0 to 65535 only")
        if not 0 <= text.answer <= len(part):
            raise DraftpickError(f"an answer begins at {text.answer} of {len(part)} tokens")
    index = {name: at for at, name in enumerate(tasks)}
    return Tokens(
        np.concatenate([np.empty(0, np.int64), *parts]).astype(np.uint16),
        np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64),
        np.array([text.answer for text in texts], np.int32),
        np.array([index[text.task] for text in texts], np.uint8),
        tuple(tasks),
        np.array([text.temperature for text in texts], np.float32),
    )


def save(path: Path, texts: Iterable[Text] | Tokens) -> None:
    """Write one shard, whole or not at all. Raises as `pack`."""
    made = texts if isinstance(texts, Tokens) else pack(texts)
    with replacing(Path(path)) as stream:
        np.savez(
            stream,
            ids=made.ids,
            starts=made.starts,
            answer=made.answer,
            task=made.task,
            tasks=np.array(made.tasks, dtype=str),
            temperature=made.temperature,
        )


def load(paths: Iterable[Path]) -> Tokens:
    """All shards in one. Raises DraftpickError for none, and for a file that is missing, cut short
    or not of this format."""
    return join([_shard(Path(path)) for path in paths])


def join(shards: Sequence[Tokens]) -> Tokens:
    """Shards end to end, their tasks by name. Raises DraftpickError for none."""
    if not shards:
        raise DraftpickError("name at least one token file")
    tasks = sorted({name for shard in shards for name in shard.tasks})
    if len(tasks) > 256:
        raise DraftpickError(f"token files together hold at most 256 tasks, not {len(tasks)}")
    index = {name: at for at, name in enumerate(tasks)}
    task = [np.array([index[n] for n in s.tasks], np.uint8)[s.task] for s in shards]
    lengths = np.concatenate([shard.lengths for shard in shards])
    return Tokens(
        np.concatenate([shard.ids for shard in shards]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([shard.answer for shard in shards]),
        np.concatenate(task),
        tuple(tasks),
        np.concatenate([shard.temperature for shard in shards]),
    )


def _shard(path: Path) -> Tokens:
    if not path.is_file():
        raise DraftpickError(f"no such token file: {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in _KEYS}
    except (ValueError, KeyError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DraftpickError(f"{path}: not a token file, or a damaged one ({error})") from error
    for key, array in arrays.items():
        empty = key == "tasks" and array.size == 0  # no names have no letters
        if array.ndim != 1 or (array.dtype.kind != _KINDS[key] and not empty):
            raise DraftpickError(f"{path}: `{key}` is {array.dtype} with {array.ndim} dimensions")
    ids, starts, answer = arrays["ids"], arrays["starts"], arrays["answer"]
    n = len(answer)
    whole = (
        len(starts) == n + 1
        and len(arrays["task"]) == len(arrays["temperature"]) == n
        and starts[0] == 0
        and starts[-1] == len(ids)
        and bool((np.diff(starts) >= 0).all())
        and bool(((answer >= 0) & (answer <= np.diff(starts))).all())
        and (n == 0 or int(arrays["task"].max()) < len(arrays["tasks"]))
        and ids.dtype.itemsize <= 2
    )
    if not whole:
        raise DraftpickError(f"{path}: its arrays do not fit together")
    return Tokens(
        ids.astype(np.uint16, copy=False),
        starts.astype(np.int64, copy=False),
        answer.astype(np.int32, copy=False),
        arrays["task"].astype(np.uint8, copy=False),
        tuple(str(name) for name in arrays["tasks"]),
        arrays["temperature"].astype(np.float32, copy=False),
    )
