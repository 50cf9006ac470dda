"""Randomness, passed in: the few questions that sampling ever asks.

A test may answer them by walking every outcome, which gives the shipped loop's exact distribution.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .kernels import ON_CPU

BLOCK = 64
WIDTHS = (512, 256, 128, 64)  # tokens of a part, the first that divides a vocabulary


class RandomSource(Protocol):
    """Draws tokens and settles acceptances, without waiting for the device."""

    def draw(self, probs: Tensor) -> Tensor:
        """[V] probabilities (need not sum to 1) -> [] int64."""
        ...

    def follow(self, probs: Tensor, ids: Tensor) -> Tensor:
        """Draw from [K + 1, V], row after row, as long as what is drawn is ids [K]: [K + 1] int64,
        of which those after the first that differs mean nothing. `use` comes next."""
        ...

    def use(self, count: int) -> None:
        """The first of the draws of `follow` are kept; the others count as never drawn."""
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

    def heights(self, count: int) -> Tensor:
        """[count] float64 from 0 to below 1: the numbers that draw `count` tokens, one each."""
        heights = self.coming(count)
        self.use(count)
        return heights

    def follow(self, probs: Tensor, ids: Tensor) -> Tensor:
        return drawn_at(probs, self.coming(len(probs)))

    def use(self, count: int) -> None:
        self._next = self._next[count:]

    def coming(self, count: int) -> Tensor:
        """[count] as `heights`, none of them used."""
        while len(self._next) < count:  # by blocks, as a GPU's numbers depend on the size
            self._next = torch.cat([self._next, self._uniform((BLOCK,), torch.float64)])
        return self._next[:count]

    def accept(self, probability: Tensor) -> Tensor:
        return self._uniform(probability.shape, probability.dtype) < probability

    def _uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        device = self._generator.device
        return torch.rand(shape, dtype=dtype, device=device, generator=self._generator)


def drawn_at(probs: Tensor, heights: Tensor) -> Tensor:
    """Tokens [n] of probabilities [n, V], each by its number of heights [n], from 0 to below 1."""
    if probs.device.type == "cpu" and ON_CPU.draw is not None:
        return ON_CPU.draw(probs, heights)
    width = next((width for width in WIDTHS if probs.shape[-1] % width == 0), None)
    return _drawn(probs, heights) if width is None else _drawn_by_parts(probs, heights, width)


def _drawn(probs: Tensor, heights: Tensor) -> Tensor:
    """Draw by inversion, which needs no host read, unlike multinomial: probs [n, V] and heights [n]
    from 0 to 1 -> [n]."""
    below = probs.double().cumsum(-1)
    return _first_above(below, heights.unsqueeze(1) * below[:, -1:]).squeeze(1)


def _drawn_by_parts(probs: Tensor, heights: Tensor, width: int) -> Tensor:
    """The same: first which `width` of tokens, then which of them. On a CPU the sums of all tokens
    are too many for its caches (nine rows of 49152: 2.3 ms -> 0.3), on a GPU one block of threads
    would make all of a row's."""
    parts = probs.reshape(len(probs), probs.shape[-1] // width, width)
    below = parts.sum(-1, dtype=torch.float64).cumsum(-1)
    height = heights.unsqueeze(1) * below[:, -1:]
    which = _first_above(below, height)  # [n, 1]
    own = parts.gather(1, which.unsqueeze(2).expand(-1, 1, width)).squeeze(1)
    before = torch.where(which > 0, below.gather(1, (which - 1).clamp(min=0)), 0.0)
    inside = _first_above(own.double().cumsum(-1), (height - before).clamp(min=0))
    return (which * width + inside).squeeze(1)


def _first_above(below: Tensor, height: Tensor) -> Tensor:
    """[n, 1] where the sums [n, N] first exceed [n, 1]; where they end below it, by rounding, the
    first of the greatest, as nothing else can be drawn there."""
    most = torch.nextafter(below[:, -1:], torch.zeros_like(height))
    found = torch.searchsorted(below, torch.minimum(height, most), right=True)
    return found.clamp(max=below.shape[-1] - 1)  # where all are 0: nobody asks for it
