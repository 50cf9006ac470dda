"""Passes recorded once and replayed: CUDA graphs, behind `--backend graphs` and `fused`.

A pass over a few tokens launches some nine hundred kernels, and at batch 1 the host takes longer to
launch them than the GPU to run them. A graph launches them at once, but always with the same shapes
and addresses. So here nothing depends on the sequence's length but the contents of two small
tensors, the tokens (or states) and `start`: rotary rows are gathered, keys and values scattered,
and attention reads a whole number of blocks of the cache behind a mask. Fused kernels (fused.py)
do the same with a tenth of the launches.

Recording is a function's: `cuda_graphs` gives the one that the switch turns on. Tests trace the
same passes on a CPU instead and replay the trace, which fails wherever a pass would read a tensor
on the host or keep a position from the time of recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ...device_rounds import WIDEST
from ..llama.attention import attention_masks
from ..llama.kv import KVCache
from ..llama.model import Place, RopeTables, Weights, embedded, layer, logits_of, rms_norm, ropes_at
from ..llama.shape import Shape
from ..weights.packed import dense
from .fused import FusedLayers

Run = Callable[[], Tensor]
Recorder = Callable[[Run], Run]

LEAST_READ = 256  # positions; twice as many each time a sequence outgrows what was recorded
WARM_UP = 3
PROMPTS = (32, 64, 128, 256, 512)  # tokens of a prompt that one recording reads


def doubled(end: int, capacity: int) -> int:
    """Positions that a recording reads which serves a sequence up to `end`."""
    read = LEAST_READ
    while read < end:
        read *= 2
    return min(read, capacity)


def cuda_graphs() -> Recorder:
    """A recorder whose graphs share one pool of memory. A replay's result stays until the next."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Run) -> Run:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # kernels choose their workspaces before they are recorded
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            made = run()

        def replay() -> Tensor:
            graph.replay()
            return made

        return replay

    return record


class Layers(Protocol):
    """How the layers are run inside a recording: `TorchLayers`, or fused (fused.py)."""

    def through(self, h: Tensor, first: int, last: int, start: Tensor, behind: int) -> Tensor:
        """h [T, d] through the layers first..last-1, at the positions start + behind..; [T, d].

        start: int64 [1] on the device. h stays as it is.
        """

    def normed(self, h: Tensor, out: Tensor) -> Tensor:
        """out [T, d], the final norm of states [T, d]."""

    def logits(self, normed: Tensor) -> Tensor:
        """[T, V] of states [T, d] that `normed` gave."""


class TorchLayers:
    """Recorded layers by PyTorch's operators, as an ordinary pass; reads the first `read`
    positions."""

    def __init__(
        self, shape: Shape, weights: Weights, rope: RopeTables, cache: KVCache, read: int
    ) -> None:
        self._shape, self._weights, self._rope, self._cache = shape, weights, rope, cache
        self._read = read

    def through(self, h: Tensor, first: int, last: int, start: Tensor, behind: int) -> Tensor:
        positions = start + torch.arange(behind, behind + len(h), device=h.device)
        seen = torch.arange(self._read, device=h.device) <= positions.unsqueeze(1)
        masks = attention_masks(seen, self._shape, h.dtype)
        place = Place(ropes_at(self._rope, positions, self._shape), masks)
        slots = self._cache.scattered(positions, self._read, first, last)
        for w, slot in zip(self._weights.layers[first:last], slots, strict=True):
            h = layer(h, w, self._shape, place, slot)
        return h

    def normed(self, h: Tensor, out: Tensor) -> Tensor:
        return out.copy_(rms_norm(h, self._weights.norm, self._shape.norm_eps))

    def logits(self, normed: Tensor) -> Tensor:
        return logits_of(normed, self._weights.head, self._shape)


Through = Callable[[Tensor, Tensor, Layers], Tensor]


class RecordedPasses:
    """One model's passes, each recorded when it is first asked for; by what it runs, how many
    tokens and how many positions it reads. Passes are repeatable: recording may run them more than
    once.

    fused: layers that read as many positions as there are, so that one recording serves all.
    """

    def __init__(
        self,
        shape: Shape,
        weights: Weights,
        rope: RopeTables,
        cache: KVCache,
        record: Recorder,
        fused: FusedLayers | None = None,
    ) -> None:
        self._shape, self._weights, self._rope, self._cache = shape, weights, rope, cache
        self.record, self.fused = record, fused
        embedding = self._embedding = dense(weights.embedding)
        self._start = torch.zeros(1, dtype=torch.int64, device=embedding.device)
        self._ids = torch.zeros(WIDEST, dtype=torch.int64, device=embedding.device)
        self._prompt = torch.zeros(PROMPTS[-1], dtype=torch.int64, device=embedding.device)
        self._states = embedding.new_zeros(WIDEST, shape.hidden)
        self._final = embedding.new_zeros(WIDEST, shape.hidden)
        self._replays: dict[tuple[object, ...], Run] = {}

    def extend(self, ids: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """`ids` [T] at positions start.., through the whole model. T <= WIDEST.

        Returns logits [T, V] and final states [T, d], as the head reads them, in memory that the
        next whole pass of this model writes to.
        """
        t = len(ids)
        read = self.positions(start + t)
        self._ids[:t].copy_(ids)

        def run() -> Tensor:
            layers = self.run(read)
            h = self.embedded(self._ids[:t])
            h = layers.through(h, 0, self._shape.layers, self._start, 0)
            return self.read_out(layers, h)[0]

        return self._replay(("extend", t, read), run, start), self._final[:t]

    def prompt(
        self, ids: Tensor, start: int, end: int, through: Through, of: object
    ) -> Tensor | None:
        """`ids` [T] of a prompt at positions start.. -> states [T, d] after the last layer; None
        for so many that running kernels takes longer than launching them, or where the context
        ends.

        They are filled up to a width of PROMPTS, and what fills them up is written behind them,
        where the next tokens go.

        end: positions of the context.
        through: (h, start, layers) -> h after all layers, within a recording.
        of: what else the recording depends on.
        """
        t = len(ids)
        width = next((w for w in PROMPTS if w >= t), 0)
        if not width or start + width > end:
            return None
        read = doubled(start + width, self._cache.capacity)
        self._prompt[:t].copy_(ids)
        layers = TorchLayers(self._shape, self._weights, self._rope, self._cache, read)

        def run() -> Tensor:
            return through(self.embedded(self._prompt[:width]), self._start, layers)

        return self._replay(("prompt", width, read, of), run, start)[:t]

    def finish(self, h: Tensor, first: int, start: int) -> tuple[Tensor, Tensor]:
        """Run the states h [T, d] below layer `first` through the rest; as `extend`."""
        t = len(h)
        read = self.positions(start + t)
        self._states[:t].copy_(h)

        def run() -> Tensor:
            layers, h = self.run(read), self._states[:t]
            h = layers.through(h, first, self._shape.layers, self._start, 0)
            return self.read_out(layers, h)[0]

        return self._replay(("finish", first, t, read), run, start), self._final[:t]

    def layers(self, h: Tensor, first: int, last: int, start: int) -> Tensor:
        """h [T, d] through the layers first..last-1, at positions start..; [T, d]. T <= WIDEST."""
        t = len(h)
        read = self.positions(start + t)
        self._states[:t].copy_(h)

        def run() -> Tensor:
            return self.run(read).through(self._states[:t], first, last, self._start, 0)

        return self._replay(("layers", first, last, t, read), run, start)

    def draft(self, ids: Tensor, k: int, known: int, start: int) -> Tensor:
        """Read `ids` [U] at positions start.., then draft k >= 1 tokens greedily among the first
        `known` ids; [k]. The last one is not read."""
        u = len(ids)
        read = self.positions(start + u + k - 1)
        self._ids[:u].copy_(ids)

        def run() -> Tensor:
            def likeliest(logits: Tensor, ahead: int) -> Tensor:
                return logits[:, :known].argmax(-1)

            return self.drafted(self._ids[:u], k, likeliest, self._start, read)

        return self._replay(("draft", u, k, known, read), run, start)

    # -- inside other recordings --------------------------------------------------------------

    def drafted(
        self, ids: Tensor, k: int, choose: Callable[[Tensor, int], Tensor], start: Tensor, read: int
    ) -> Tensor:
        """Draft within a recording.

        start: int64 [1] on the device.
        read: as of `positions`.
        """
        layers, unread, at = self.run(read), ids, 0
        drafted: list[Tensor] = []
        while len(drafted) < k:
            h = layers.through(self.embedded(unread), 0, self._shape.layers, start, at)[-1:]
            drafted.append(choose(self.read_out(layers, h)[0], len(drafted)))
            at += len(unread)
            unread = drafted[-1]
        return torch.cat(drafted)

    def embedded(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d]."""
        return embedded(ids, self._embedding, self._shape)

    def read_out(self, layers: Layers, h: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and final states, as of `extend`, of states h [T, d] after the last layer, within
        a recording."""
        states = layers.normed(h, self._final[: len(h)])
        return layers.logits(states), states

    def run(self, read: int) -> Layers:
        """The layers, over the first `read` positions; 0 for all there are."""
        if self.fused is not None:
            return self.fused
        read = read or self._cache.capacity
        return TorchLayers(self._shape, self._weights, self._rope, self._cache, read)

    def positions(self, end: int) -> int:
        """Positions that a pass up to `end` reads; 0 for all there are."""
        return 0 if self.fused is not None else doubled(end, self._cache.capacity)

    def _replay(self, key: tuple[object, ...], run: Run, start: int) -> Tensor:
        self._start.fill_(start)
        if key not in self._replays:
            self._replays[key] = self.record(run)
        return self._replays[key]().clone()
