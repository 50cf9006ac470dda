"""Passes that several sequences share, recorded: on a GPU the host launches one graph where it
would launch some thirty kernels a layer.

A recording is of a number of tokens, in whichever rows of the cache and at whichever positions they
are: these lie in small tensors on the device. A pass over fewer tokens repeats its last one, which
writes the same keys and values once more.

On CUDA only where the kernels of row_kernels.py run the model: without them every token would copy
its row's keys and values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...sampling.argmax import likeliest, numbered
from ..cuda.recorded import Recorder, Run, doubled
from ..llama.kv import KVCache
from ..llama.model import RopeTables, Weights, embedded, logits_of, rms_norm
from ..llama.reading import SequenceSlice
from ..llama.shape import Shape
from ..weights.packed import dense
from .row_passes import RowPasses, kernels_for

if TYPE_CHECKING:
    from ..native import LlamaBackend

DENSE = ("float32", "float64", "bfloat16")
TOKENS = (8, 16, 32, 64, 128, 256, 512)  # of a recording


class RecordedChains:
    """Passes over tokens of several rows of one cache, each recorded when it is first asked for.

    record: as of RecordedPasses.
    """

    def __init__(
        self, shape: Shape, weights: Weights, rope: RopeTables, cache: KVCache, record: Recorder
    ) -> None:
        device = weights.norm.device
        self._fast = kernels_for(shape, weights.layers, device)
        self._passes = RowPasses(shape, weights.layers, rope, cache, self._fast)
        self._shape, self._weights, self._capacity = shape, weights, cache.capacity
        self._embedding, self._record = dense(weights.embedding), record
        # ids, rows and positions
        self._given = torch.zeros(3, TOKENS[-1], dtype=torch.int64, device=device)
        self._replays: dict[tuple[object, ...], Run] = {}
        self._states = weights.norm.new_zeros(TOKENS[-1], shape.hidden)
        self._likeliest = torch.zeros(TOKENS[-1], dtype=torch.int64, device=device)
        self._left: dict[int, Tensor] = {}

    @classmethod
    def of(cls, like: LlamaBackend, cache: KVCache) -> RecordedChains | None:
        """Record the model's passes over the rows of `cache`; None if the model records none."""
        shape, weights = like.shape, like.weights
        if like.recorded is None or like.precision not in DENSE:
            return None
        if like.device.type != "cpu" and not kernels_for(shape, weights.layers, like.device):
            return None  # on a CPU tests record in another way
        return cls(shape, weights, like._rope, cache, like.recorded.record)

    def read(
        self, readings: Sequence[SequenceSlice], ids: Tensor, exits: Collection[int]
    ) -> tuple[Tensor, list[int], Tensor, dict[int, Tensor]]:
        """ids: [N] of the readings, which are chains, one after the other; N at most TOKENS[-1].
        exits: layers after which the states are wanted too.

        Returns logits [N, V], the likeliest token of each, as `numbered` has it, and in memory that
        the next pass writes to the final states [N, d], as the head reads them, and those after
        each exit layer.
        """
        logits, left = self._replayed(readings, ids, exits, True)
        n = len(ids)
        return logits.clone(), self._likeliest[:n].tolist(), self._states[:n], left

    def hidden(
        self, reading: SequenceSlice, ids: Tensor, exits: Collection[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Read a prompt up to the states [N, d] before the final norm; also returns those after
        each exit layer, as `read`."""
        h, left = self._replayed([reading], ids, exits, False)
        return h.clone(), left

    def _replayed(
        self, readings: Sequence[SequenceSlice], ids: Tensor, exits: Collection[int], finish: bool
    ) -> tuple[Tensor, dict[int, Tensor]]:
        n = len(ids)
        total = TOKENS[bisect_left(TOKENS, n)]
        places = [(r.row, at) for r in readings for at in range(r.start, r.end)]
        places += places[-1:] * (total - n)
        self._given[1:, :total].copy_(torch.tensor(places).T)
        self._given[0, :n].copy_(ids)
        self._given[0, n:total].copy_(ids[-1])
        for after in exits:
            self._left.setdefault(after, torch.zeros_like(self._states))
        end = max(r.end for r in readings)  # which the kernels take no notice of
        read = 0 if self._fast else doubled(end, self._capacity)
        key = total, read, tuple(sorted(exits)), finish
        if key not in self._replays:
            self._replays[key] = self._record(lambda: self._run(*key))
        made = self._replays[key]()[:n]
        return made, {after: self._left[after][:n] for after in exits}

    def _run(self, total: int, read: int, exits: tuple[int, ...], finish: bool) -> Tensor:
        ids, rows, positions = self._given[:, :total]
        h = embedded(ids, self._embedding, self._shape)
        for first, last in pairwise([0, *exits, len(self._weights.layers)]):
            h = self._passes.chains(h, rows, positions, read, first, last)
            if last in exits:
                self._left[last][:total].copy_(h)
        if not finish:
            return h
        states = rms_norm(h, self._weights.norm, self._shape.norm_eps)
        logits = logits_of(self._states[:total].copy_(states), self._weights.head, self._shape)
        self._likeliest[:total].copy_(numbered(likeliest(logits), logits))
        return logits
