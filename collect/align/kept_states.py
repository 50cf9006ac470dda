"""The target's states along answers, read once and kept in a file.

A drafter is trained on the same answers for several epochs, and several drafters on the same ones.
Their target does not change, and is many times their size: kept, its states cost a copy. Where the
target wrote the answers itself, it has had them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoders.common.errors import DraftpickError

from .packed_batch import flatten, order
from .teacher import Teacher
from .tokens import Tokens

DATA, INDEX = "states.bin", "states.index"
RECORD = np.dtype([("text", "S16"), ("at", "<i8"), ("length", "<i8")])
MOST = 8192  # padded positions that the target reads at once


class KeptStates:
    """States [n, d] in front of each of an answer's n tokens, after the final norm.

    folder: for its two files; what is there already, of a run that was stopped, is not read again.
    hidden, dtype: of a state.
    """

    def __init__(self, folder: Path, hidden: int, dtype: torch.dtype) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data, self._index = folder / DATA, folder / INDEX
        self._hidden, self._dtype = hidden, dtype
        self._row = hidden * dtype.itemsize  # bytes of a state
        self._places: dict[bytes, tuple[int, int]] = {}
        self._positions, self._mapped = 0, torch.empty(0, hidden, dtype=dtype)
        if self._index.is_file() and self._data.is_file():
            whole = self._index.read_bytes()
            whole = whole[: len(whole) // RECORD.itemsize * RECORD.itemsize]
            held = self._data.stat().st_size // self._row
            for text, at, length in np.frombuffer(whole, RECORD).tolist():
                if at + length <= held:
                    self._places[text] = at, length
                    self._positions = max(self._positions, at + length)

    def __len__(self) -> int:
        """Answers whose states are kept."""
        return len(self._places)

    def of(self, ids: np.ndarray, answer: int) -> Tensor:
        """[n, d] of a text whose answer begins there; a view of the file."""
        at, length = self._places[_name(ids, answer)]
        if len(self._mapped) < at + length:
            size = self._positions * self._hidden
            held = torch.from_file(str(self._data), False, size, dtype=self._dtype)
            self._mapped = held.view(self._positions, self._hidden)
        return self._mapped[at : at + length]

    def put(self, found: Iterable[tuple[np.ndarray, int, Tensor]]) -> None:
        """Keep the states of texts: their ids, where the answer begins, [n, d]."""
        new = {_name(ids, answer): states for ids, answer, states in found if len(ids) > answer}
        new = {name: states for name, states in new.items() if name not in self._places}
        if not new:
            return
        records = np.empty(len(new), RECORD)
        places, at = dict[bytes, tuple[int, int]](), self._positions
        for place, (name, states) in enumerate(new.items()):
            records[place] = name, at, len(states)
            places[name] = at, len(states)
            at += len(states)
        rows = torch.cat([states.to("cpu", self._dtype) for states in new.values()])
        with self._data.open("ab") as data:
            data.truncate(self._positions * self._row)  # what a stopped run wrote last
            data.write(rows.contiguous().view(torch.uint8).numpy().tobytes())
            data.flush()
            os.fsync(data.fileno())
        with self._index.open("ab") as index:
            index.truncate(len(self._places) * RECORD.itemsize)
            index.write(records.tobytes())
        self._places |= places
        self._positions = at

    def read(
        self,
        tokens: Tokens,
        teacher: Teacher,
        on_done: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Let the target read what is not there yet. on_done: tokens read so far, and all.

        Raises DraftpickError where the disk has no room for it.
        """
        answers = tokens.answer.tolist()
        new = [
            row
            for row, answer in enumerate(answers)
            if _name(tokens.text(row), answer) not in self._places and tokens.lengths[row] > answer
        ]
        if not new:
            return
        lengths = tokens.lengths[new]
        self._require_room(int((lengths - tokens.answer[new]).sum()))
        done, total = 0, int(lengths.sum())
        for rows in order(lengths, MOST, np.random.default_rng(0)):
            chosen = [new[int(row)] for row in rows]
            texts = [tokens.text(row) for row in chosen]
            self.put(_read(texts, [answers[row] for row in chosen], teacher))
            done += int(lengths[rows].sum())
            on_done(done, total)

    def _require_room(self, positions: int) -> None:
        room, needed = shutil.disk_usage(self._data.parent).free, positions * self._row
        if needed > room:
            raise DraftpickError(
                f"the target's states along {positions:,} tokens take {needed >> 20:,} MB, and "
                f"{self._data.parent} has {room >> 20:,} MB left; make room, or train on less"
            )


def _read(
    texts: Sequence[np.ndarray], answers: Sequence[int], teacher: Teacher
) -> list[tuple[np.ndarray, int, Tensor]]:
    states = teacher.states(flatten(list(texts)).rows.to(teacher.device))  # [B, T, d]
    return [
        (ids, answer, row[answer - 1 : len(ids) - 1])
        for ids, answer, row in zip(texts, answers, states, strict=True)
    ]


def _name(ids: np.ndarray, answer: int) -> bytes:
    """Sixteen bytes, the last of which is not zero: a record would drop it."""
    whole = np.append(np.asarray(ids, np.int64), answer).tobytes()
    return hashlib.blake2b(whole, digest_size=15).digest() + b"."
