"""One layer of a shared pass as machine code: compiled.py for tokens of several sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .compiled import Example, Program, positions, restored, stored
from .int8 import WIDE
from .llama_model import LayerWeights, Rope, Shape, all_heads, attention_mask
from .shared_pass import LEAST, NEIGHBOURS, Group, shared_layer

ROWS, TOKENS = 3, 4  # of the pass it is traced with: rows, and places of each
COUNT = 7  # tokens, of those places


class CompiledSharedLayers:
    """A model's layers, run by a program for neighbouring rows of a cache.

    weights: `stored` of every layer.
    """

    def __init__(self, program: Program, weights: Sequence[list[Tensor]], cache: Tensor) -> None:
        """cache: [layers, B, 2 KV, C, D]."""
        self._program, self._weights, self._cache = program, weights, cache

    def through(
        self,
        h: Tensor,
        first: int,
        last: int,
        rope: Rope,
        places: tuple[Tensor, Tensor],
        group: Group,
    ) -> Tensor:
        """As in shared_pass.py; N is 2 to WIDE."""
        rows, slots = places
        rows = rows - group.rows.start
        rooms = self._cache[first:last, group.rows, :, : group.read].unbind(0)
        for weights, room in zip(self._weights[first:last], rooms, strict=True):
            given = [h, *rope, group.mask, rows, slots, group.tokens, group.taken, room, *weights]
            (h,) = self._program(given)
        return h


class SharedLayer(torch.nn.Module):
    """`shared_layer` of one group with everything it reads as inputs. like: a layer with the same
    fields."""

    def __init__(self, shape: Shape, like: LayerWeights) -> None:
        super().__init__()
        self.shape, self.like = shape, like

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        rows: Tensor,
        slots: Tensor,
        tokens: Tensor,
        taken: Tensor,
        room: Tensor,
        weights: list[Tensor],
    ) -> Tensor:
        """room: [B, 2 KV, S, D], what is read of the group's rows.
        weights: as `stored`.
        """
        group = Group(slice(None), room.shape[2], tokens, mask, taken)
        w = restored(weights, self.like)
        rope, places = (cos, sin), (rows, slots)
        return shared_layer(h, w, self.shape, rope, room, places, [(room, group)])


def traced_shared(example: Example) -> torch.export.ExportedProgram:
    """The layer's operations for 2 to WIDE tokens of 2 to NEIGHBOURS rows, over any number of
    positions."""
    shape, cache, dtype = example.shape, example.cache.all, example.rope[0].dtype
    read = positions(cache)
    dynamic = torch.export.Dim.DYNAMIC
    n, width = {0: dynamic(min=2, max=WIDE)}, dynamic(min=LEAST, max=WIDE)
    with torch.inference_mode(False), torch.no_grad():
        weights = [t.clone() for t in stored(example.layer)]
        cos, sin = (part[:COUNT].clone() for part in example.rope)
        seen = torch.ones(ROWS, TOKENS, read, dtype=torch.bool)
        room = torch.zeros(ROWS, *cache.shape[2:], dtype=dtype)[:, :, :read]
        given = (
            torch.zeros(COUNT, shape.hidden, dtype=dtype),
            *all_heads((cos, sin), shape),
            attention_mask(seen, shape, dtype),
            torch.arange(COUNT) % ROWS,
            torch.arange(COUNT),
            torch.zeros(ROWS, TOKENS, dtype=torch.int64),
            torch.arange(COUNT),
            room,
            weights,
        )
        rows = dynamic(min=2, max=NEIGHBOURS)
        sizes = {
            "h": n,
            "cos": {1: n[0]},
            "sin": {1: n[0]},
            "mask": {0: rows, 2: dynamic, 3: dynamic},
            "rows": n,
            "slots": n,
            "tokens": {0: rows, 1: width},
            "taken": n,
            "room": {0: rows, 2: dynamic},
            "weights": [{} for _ in weights],
        }
        model = SharedLayer(shape, example.layer)
        return torch.export.export(model, given, dynamic_shapes=sizes)
