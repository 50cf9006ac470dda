"""Randomness, passed in: the two questions that sampling ever asks.

A test may answer them by walking every outcome, which turns the shipped loop into an exact law.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import torch
from torch import Tensor


class Chance(Protocol):
    """Draws tokens and settles acceptances, without waiting for the device."""

    def draw(self, probs: Tensor) -> Tensor:
        """[V] probabilities (need not sum to 1) -> [] int64."""
        ...

    def accept(self, probability: Tensor) -> Tensor:
        """[K] probabilities, values above 1 meaning 1 -> [K] bool."""
        ...


class Generator:
    """A seeded torch generator on the model's device."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed(secrets.randbits(63) if seed is None else seed)

    def draw(self, probs: Tensor) -> Tensor:
        race = torch.empty_like(probs).exponential_(1.0, generator=self._generator)
        return (probs / race).argmax(-1)  # an exponential race: no host read, unlike multinomial

    def accept(self, probability: Tensor) -> Tensor:
        uniform = torch.rand(
            probability.shape,
            dtype=probability.dtype,
            device=probability.device,
            generator=self._generator,
        )
        return uniform < probability
