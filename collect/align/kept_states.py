"""The target's states along texts, read once and kept in a file.

A drafter is trained on the same texts for several epochs, and several drafters on the same texts.
Their target does not change, and is many times their size: kept, its states cost a copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoders.common.errors import DraftpickError

from .packed_batch import flatten, order
from .teacher import Teacher

DATA, INDEX = "states.bin", "states.index"
RECORD = np.dtype([("text", "S16"), ("at", "<i8"), ("length", "<i8")])
MOST = 8192  # padded positions that the target reads at once


class KeptStates:
    """States [n, d] of each text, in the teacher's dtype, found by the text's own ids.

    folder: for its two files; what is there already, of a run that was stopped, is not read again.
    """

    def __init__(self, folder: Path, teacher: Teacher) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._teacher, self._data, self._index = teacher, folder / DATA, folder / INDEX
        self._row = teacher.hidden * teacher.dtype.itemsize  # bytes of a position
        self._places: dict[bytes, tuple[int, int]] = {}
        self._positions, self._mapped = 0, torch.empty(0, teacher.hidden, dtype=teacher.dtype)
        if self._index.is_file() and self._data.is_file():
            whole = self._index.read_bytes()
            whole = whole[: len(whole) // RECORD.itemsize * RECORD.itemsize]
            held = self._data.stat().st_size // self._row
            for text, at, length in np.frombuffer(whole, RECORD).tolist():
                if at + length <= held:
                    self._places[text] = at, length
                    self._positions = max(self._positions, at + length)
        self._map()

    def __len__(self) -> int:
        """Texts whose states are kept."""
        return len(self._places)

    def of(self, ids: np.ndarray) -> Tensor:
        """[n, d] along a text that was added; a view of the file."""
        at, length = self._places[_name(ids)]
        return self._mapped[at : at + length]

    def add(
        self, texts: Iterable[np.ndarray], on_done: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Read what is not there yet. on_done: positions read so far, and all.

        Raises DraftpickError where the disk has no room for it.
        """
        new = list(
            {_name(text): text for text in texts if _name(text) not in self._places}.values()
        )
        if not new:
            return
        lengths = np.array([len(text) for text in new])
        total = int(lengths.sum())
        room, needed = shutil.disk_usage(self._data.parent).free, total * self._row
        if needed > room:
            raise DraftpickError(
                f"the target's states along {total:,} tokens take {needed >> 20:,} MB, and "
                f"{self._data.parent} has {room >> 20:,} MB left; make room, or train on less"
            )
        done = 0
        with self._data.open("ab") as data, self._index.open("ab") as index:
            data.truncate(self._positions * self._row)  # what a stopped run wrote last
            index.truncate(len(self._places) * RECORD.itemsize)
            for rows in order(lengths, MOST, np.random.default_rng(0)):
                chosen = [new[int(row)] for row in rows]
                batch = flatten(chosen)
                read = self._teacher.states(batch.rows.to(self._teacher.device))
                flat = read.flatten(0, 1)[batch.where.to(read.device)].cpu()
                data.write(flat.view(torch.uint8).numpy().tobytes())
                data.flush()
                os.fsync(data.fileno())
                records = np.empty(len(chosen), RECORD)
                for place, text in enumerate(chosen):
                    records[place] = _name(text), self._positions, len(text)
                    self._places[_name(text)] = self._positions, len(text)
                    self._positions += len(text)
                index.write(records.tobytes())
                index.flush()
                done += len(flat)
                on_done(done, total)
        self._map()

    def _map(self) -> None:
        if self._positions:
            size = self._positions * self._teacher.hidden
            held = torch.from_file(str(self._data), False, size, dtype=self._teacher.dtype)
            self._mapped = held.view(self._positions, self._teacher.hidden)


def _name(ids: np.ndarray) -> bytes:
    """Never ends in a zero byte, which a record would drop."""
    whole = hashlib.blake2b(np.ascontiguousarray(ids, np.int64).tobytes(), digest_size=15).digest()
    return whole + b"."
