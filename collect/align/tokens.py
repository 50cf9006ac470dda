"""Texts as token ids, many in one, for training at scale.

`ids` (all texts end to end; uint16, or uint32 where 16 bits do not hold them), `starts` (int64
[n + 1], where each begins), `answer` (int32 [n], where in its text the answer begins), `task`
(uint8 [n], an index into the names `tasks`) and `temperature` (float32 [n], 0 for greedy answers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from decoders.common.errors import DraftpickError


@dataclass(frozen=True)
class Text:
    """ids: prompt then answer.
    answer: index of the answer's first token, or len(ids) where there is none.
    temperature: at which it was drawn, 0 if greedy.
    """

    ids: Sequence[int] | np.ndarray
    answer: int
    task: str
    temperature: float = 0.0


@dataclass(frozen=True)
class Tokens:
    """The arrays of the module's docstring."""

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
        ids = np.empty(int(ends[-1]), self.ids.dtype)
        for at, row in enumerate(rows):
            ids[ends[at] : ends[at + 1]] = self.text(int(row))
        return Tokens(
            ids, ends, self.answer[rows], self.task[rows], self.tasks, self.temperature[rows]
        )


def narrow(ids: np.ndarray) -> np.ndarray:
    """ids in 16 bits where those hold them, else in 32."""
    return ids.astype(np.uint16 if ids.max(initial=0) < 1 << 16 else np.uint32)


def pack(texts: Iterable[Text]) -> Tokens:
    """Texts in one. Raises DraftpickError for an id that 32 bits do not hold, for more than 256
    tasks, and for an answer that begins outside its text."""
    texts = list(texts)
    tasks = sorted({text.task for text in texts})
    if len(tasks) > 256:
        raise DraftpickError(f"a token file holds at most 256 tasks, not {len(tasks)}")
    parts = [np.asarray(text.ids, np.int64).reshape(-1) for text in texts]
    for text, part in zip(texts, parts, strict=True):
        if part.size and not 0 <= part.min() <= part.max() < 1 << 32:
            raise DraftpickError("a token file holds ids from 0 to 2^32 - 1 only")
        if not 0 <= text.answer <= len(part):
            raise DraftpickError(f"an answer begins at {text.answer} of {len(part)} tokens")
    index = {name: at for at, name in enumerate(tasks)}
    return Tokens(
        narrow(np.concatenate([np.empty(0, np.int64), *parts])),
        np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64),
        np.array([text.answer for text in texts], np.int32),
        np.array([index[text.task] for text in texts], np.uint8),
        tuple(tasks),
        np.array([text.temperature for text in texts], np.float32),
    )
