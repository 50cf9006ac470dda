"""One layer of row_attention.py as machine code: the same programs for a sequence alone and for
several."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocked import NARROW
from .compiled import CompiledLayers, Example, restored, stored
from .llama_model import LayerWeights, Rope, Shape, all_heads
from .row_attention import Sight, row_layer
from .shared_pass import Reading

ROWS = 3  # of the cache that the program for several tokens is traced with


class CompiledRows(CompiledLayers):
    """Of programs that `traced_rows` gave."""

    most = NARROW

    def through(self, h: Tensor, first: int, last: int, reading: Reading) -> Tensor | None:
        sight = Sight.of([reading]) if len(h) <= self.most else None
        if sight is None:
            return None
        return self.read(h, first, last, sight.rope(self._rope, self._shape), sight)

    def read(self, h: Tensor, first: int, last: int, rope: Rope, sight: Sight) -> Tensor:
        """As of row_attention.Runs."""
        program = self.programs.one if len(h) == 1 else self.programs.few
        places = [sight.rows, sight.slots, sight.begins, sight.bits]
        rooms = self._cache.all[first:last].unbind(0)
        for weights, room in zip(self.weights[first:last], rooms, strict=True):
            (h,) = program([h, *rope, *places, room, *weights])
        return h


class RowLayer(torch.nn.Module):
    """`row_layer` with everything it reads as inputs. like: a layer with the same fields."""

    def __init__(self, shape: Shape, like: LayerWeights) -> None:
        super().__init__()
        self.shape, self.like = shape, like

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        rows: Tensor,
        slots: Tensor,
        begins: Tensor,
        bits: Tensor,
        room: Tensor,
        weights: list[Tensor],
    ) -> Tensor:
        """weights: as `stored`."""
        sight = Sight(rows, slots, slots, begins, bits)
        w = restored(weights, self.like)
        return row_layer(h, w, self.shape, (cos, sin), room, sight)


def traced_rows(example: Example, tokens: int) -> torch.export.ExportedProgram:
    """The layer's operations for 1 token, or for 2 to NARROW where `tokens` is more than 1, of any
    number of rows."""
    shape, cache, dtype = example.shape, example.cache.all, example.rope[0].dtype
    dynamic = torch.export.Dim.DYNAMIC
    n = {} if tokens == 1 else {0: dynamic(min=2, max=NARROW)}
    lines = {1: n[0]} if n else {}
    with torch.inference_mode(False), torch.no_grad():
        weights = [t.clone() for t in stored(example.layer)]
        cos, sin = (part[:tokens].clone() for part in example.rope)
        ids = torch.arange(tokens)
        given = (
            torch.zeros(tokens, shape.hidden, dtype=dtype),
            *all_heads((cos, sin), shape),
            torch.zeros_like(ids),
            ids,
            torch.zeros_like(ids),
            torch.ones_like(ids),
            torch.zeros(ROWS, *cache.shape[2:], dtype=dtype),
            weights,
        )
        sizes = {
            "h": n,
            "cos": lines,
            "sin": lines,
            **dict.fromkeys(("rows", "slots", "begins", "bits"), n),
            "room": {0: dynamic},
            "weights": [{} for _ in weights],
        }
        model = RowLayer(shape, example.layer)
        return torch.export.export(model, given, dynamic_shapes=sizes)
