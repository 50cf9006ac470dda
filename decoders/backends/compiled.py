"""One layer as machine code: `--backend compiled`, for int8 and int4 weights on a CPU.

A pass over a few tokens is 120 small products with some nine hundred small operations around them,
which PyTorch starts one by one. Its compiler makes a few loops of a layer's: 30 layers in 4.5 ms
instead of 6.5 for one token in int4 (docs/notes/performance.md). What is compiled is
`llama_model.layer` itself with the weights among its inputs. A model's layers are alike, so two
programs serve all: one for a single token, one for 2 to WIDE. In wider passes, prompts, PyTorch's
products are faster, and what lies between them is compiled. A row's result does not depend on how
many others there are; it does differ in the last bits from what ordinary passes give, as fewer
values between operations are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .int8 import WIDE
from .kv import KVCache, ScatterSlot
from .llama_model import (
    BETWEEN,
    KEYS_ROUND,
    Between,
    LayerWeights,
    Rope,
    Shape,
    all_heads,
    attention_mask,
    chain_place,
    layer,
    tree_place,
)
from .packed import Rounded
from .shared_pass import Reading

Program = Callable[[list[Tensor]], Sequence[Tensor]]  # boxed: it may empty the list of its inputs
FEW = 6  # tokens that the second program is traced with; it may be any number from 2 to WIDE
READ = 384  # positions likewise, at most, of which there may be any number


@dataclass(frozen=True)
class Example:
    """What a model's programs are made from: any of its layers, its rotary table and its cache."""

    shape: Shape
    layer: LayerWeights
    rope: Rope
    cache: KVCache


@dataclass(frozen=True)
class Programs:
    """Each takes what `forward` of its module does, in one list, and gives the new states in
    another.

    one: `Layer` of a single token.
    few: of 2 to WIDE.
    shared: gives that of `SharedLayer` (compiled_shared.py), which not everybody needs; None where
        there is no compiler any more.
    between: what is between the products of wider passes (compiled_between.py).
    """

    one: Program
    few: Program
    shared: Callable[[], Program | None]
    between: Between = BETWEEN


class CompiledLayers:
    """A model's layers, run by programs, on its own weights and cache.

    most: tokens of a pass.
    """

    most: ClassVar[int] = WIDE

    def __init__(
        self,
        programs: Programs,
        layers: Sequence[LayerWeights],
        cache: KVCache,
        shape: Shape,
        rope: Rope,
    ) -> None:
        self.programs, self._cache = programs, cache
        self.between = programs.between
        self._shape, self._rope = shape, rope
        self.weights = [stored(weights) for weights in layers]

    def over(self, cache: KVCache) -> Self:
        """The same programs and weights on another cache."""
        other = copy(self)
        other._cache = cache
        return other

    def through(self, h: Tensor, first: int, last: int, reading: Reading) -> Tensor | None:
        """h [T, d] through the layers first..last-1; None where they are not what the programs are
        made for."""
        if len(h) > self.most:
            return None
        table = self._rope, self._shape
        if reading.branch is None:
            rope, mask = chain_place(*table, reading.start, reading.count)
        else:
            rope, mask = tree_place(*table, *reading.branch)
        if mask is None:
            return None
        positions = torch.arange(reading.start, reading.end)
        rooms = self._cache.all[first:last, 0, :, : mask.shape[-1]].unbind(0)
        program = self.programs.one if len(h) == 1 else self.programs.few
        for weights, room in zip(self.weights[first:last], rooms, strict=True):
            (h,) = program([h, *rope, mask, positions, room, *weights])
        return h


def stored(weights: LayerWeights) -> list[Tensor]:
    """A layer's tensors in the order of its fields, two of a rounded matrix."""
    parts = weights.tensors().values()
    return [t for part in parts for t in (part.stored if isinstance(part, Rounded) else (part,))]


def restored(tensors: Sequence[Tensor], like: LayerWeights) -> LayerWeights:
    """The layer of which these are `stored`, with the fields of `like`."""
    rest = iter(tensors)
    fields: dict[str, Any] = {
        name: type(part)(next(rest), next(rest), None) if isinstance(part, Rounded) else next(rest)
        for name, part in like.tensors().items()
    }
    return LayerWeights(**fields)


class Layer(torch.nn.Module):
    """`layer` with everything it reads as inputs. like: a layer with the same fields."""

    def __init__(self, shape: Shape, like: LayerWeights) -> None:
        super().__init__()
        self.shape, self.like = shape, like

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        positions: Tensor,
        room: Tensor,
        weights: list[Tensor],
    ) -> Tensor:
        """room: as in ScatterSlot, only what is read of it.
        weights: as `stored`.
        """
        heads = self.shape.kv_heads
        slot = ScatterSlot(room, positions, room[None, :heads], room[None, heads:])
        w = restored(weights, self.like)
        return layer(h, w, self.shape, (cos, sin), mask, slot)


def positions(cache: Tensor) -> int:
    """How many positions of a cache [..., C, D] to trace a program with: fewer than there are,
    where they may be fewer, or the distance of its heads would be taken for a multiple of them."""
    capacity = cache.shape[-2]
    return min(READ, max(capacity - KEYS_ROUND, KEYS_ROUND))


def traced(example: Example, tokens: int) -> torch.export.ExportedProgram:
    """The layer's operations for 1 token, or for 2 to WIDE where `tokens` is more than 1, over any
    number of positions."""
    shape, cache, dtype = example.shape, example.cache.all, example.rope[0].dtype
    read = positions(cache)
    dynamic = torch.export.Dim.DYNAMIC
    some = {} if tokens == 1 else {0: dynamic(min=2, max=WIDE)}
    lines = {1: some[0]} if some else {}
    with torch.inference_mode(False), torch.no_grad():
        weights = [t.clone() for t in stored(example.layer)]
        cos, sin = (part[:tokens].clone() for part in example.rope)
        seen = torch.ones(tokens, read, dtype=torch.bool)
        given = (
            torch.zeros(tokens, shape.hidden, dtype=dtype),
            *all_heads((cos, sin), shape),
            attention_mask(seen, shape, dtype),
            torch.arange(tokens),
            torch.zeros(cache.shape[2:], dtype=dtype)[:, :read],
            weights,
        )
        sizes = {
            "h": some,
            "cos": lines,
            "sin": lines,
            "mask": {3: dynamic} | ({2: dynamic} if some else {}),
            "positions": some,
            "room": {1: dynamic},
            "weights": [{} for _ in weights],
        }
        model = Layer(shape, example.layer)
        return torch.export.export(model, given, dynamic_shapes=sizes)
