"""Randomness, passed in: the few questions that sampling ever asks.

A test may answer them by walking every outcome, which gives the shipped loop's exact distribution.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 64


class Chance(Protocol):
    """Draws tokens and settles acceptances, without waiting for the device."""

    def draw(self, probs: Tensor) -> Tensor:
        """[V] probabilities (need not sum to 1) -> [] int64."""
        ...

    def follow(self, probs: Tensor, ids: Tensor) -> Tensor:
        """Draw from [K + 1, V], row after row, as long as what is drawn is ids [K]: [K + 1] int64,
        of which those after the first that differs mean nothing. `use` comes next."""
        ...

    def use(self, count: int) -> None:
        """So many of what `follow` drew are kept; the others count as never drawn."""
        ...

    def accept(self, probability: Tensor) -> Tensor:
        """[K] probabilities, values above 1 meaning 1 -> [K] bool."""
        ...


class Generator:
    """A seeded torch generator on the model's device.

    Every token drawn takes one number of one sequence, whether it was asked for alone or in a row
    of them, so that answers to one seed do not depend on how far drafts were followed.
    """

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed(secrets.randbits(63) if seed is None else seed)
        self._next = torch.empty(0, dtype=torch.float64, device=device)
        self._none = torch.empty(0, dtype=torch.int64, device=device)

    def draw(self, probs: Tensor) -> Tensor:
        tokens = self.follow(probs.unsqueeze(0), self._none)
        self.use(1)
        return tokens[0]

    def follow(self, probs: Tensor, ids: Tensor) -> Tensor:
        while len(self._next) < len(probs):  # by blocks, as a GPU's numbers depend on the size
            self._next = torch.cat([self._next, self._uniform((BLOCK,), torch.float64)])
        below = probs.double().cumsum(-1)  # by inversion: no host read, unlike multinomial
        height = self._next[: len(probs)].unsqueeze(1) * below[:, -1:]
        tokens = torch.searchsorted(below, height, right=True).squeeze(1)
        return tokens.clamp(max=probs.shape[-1] - 1)

    def use(self, count: int) -> None:
        self._next = self._next[count:]

    def accept(self, probability: Tensor) -> Tensor:
        return self._uniform(probability.shape, probability.dtype) < probability

    def _uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        device = self._generator.device
        return torch.rand(shape, dtype=dtype, device=device, generator=self._generator)
