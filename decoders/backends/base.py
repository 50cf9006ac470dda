"""The seam between the loop and a model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..records import Prefilled


@runtime_checkable
class Backend(Protocol):
    """One sequence being decoded by one model. The cache is the backend's own.

    Positions 0..length-1 are held; `extend` appends, `truncate` takes back.
    """

    vocab_size: int
    parameters: int
    context: int
    device: torch.device
    dtype: torch.dtype

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        ...

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        """Forget everything, read `prompt_ids` [S], S >= 1."""
        ...

    def extend(self, ids: Tensor) -> Tensor:
        """Append `ids` [T] int64; logits [T, V] float32 or the model's dtype, row i for what
        follows ids[i]. T >= 1 and length + T <= context."""
        ...

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions; 0 <= length <= self.length."""
        ...
