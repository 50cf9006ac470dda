"""Keys and values of all layers in one tensor, allocated once; rolling back is the caller's length.

A pass asks for its `slots` once: views of where each layer writes and of what it reads. Cutting
them out layer by layer costs eight small operations a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """One layer's views for one pass. write: [B, 2 * KV, T, D], the new keys, then the new values.
    keys, values: [B, KV, S, D], from position 0 on, the new ones among them."""

    write: Tensor
    keys: Tensor
    values: Tensor


class KVCache:
    """[layers, B, 2 * KV, capacity, D]. Zeros: what is masked is still read, and a NaN stays."""

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._kv_heads = kv_heads
        size = (layers, batch, 2 * kv_heads, capacity, head_dim)
        self.all = torch.zeros(size, dtype=dtype, device=device)

    def slots(
        self, start: int, t: int, read: int, first: int = 0, last: int | None = None
    ) -> list[Slot]:
        """For the layers first..last-1 of a pass that writes t positions from `start` on, and reads
        the first `read`."""
        layers, kv = self.all[first:last], self._kv_heads
        write = layers[:, :, :, start : start + t].unbind(0)
        keys = layers[:, :, :kv, :read].unbind(0)
        values = layers[:, :, kv:, :read].unbind(0)
        return [Slot(*views) for views in zip(write, keys, values, strict=True)]

    def move(self, target: slice, source: Tensor) -> None:
        """Copy positions `source` [n] to the n of `target`, in every layer."""
        self.all[:, :, :, target] = self.all[:, :, :, source]
