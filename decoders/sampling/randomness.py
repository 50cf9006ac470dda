"""Randomness, passed in: the few questions that sampling ever asks.

A test may answer them by walking every outcome, which gives the shipped loop's exact distribution.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..records import Request
from . import race


class RandomSource(Protocol):
    """Draws tokens, without waiting for the device: by the clocks of their place, or in turn."""

    def pick(
        self,
        logits: Tensor,
        temperature: float,
        places: int | Tensor,
        names: Tensor | None = None,
        count: int = 1,
        after: Tensor | None = None,
    ) -> Tensor:
        """[T, N] logits -> [T, count] int64, as `race.pick`: the same to the same scores at the
        same place, whoever asks and how often.

        after: int64 [T - 1], the chain that the rows follow: those behind the first of them that is
            not picked mean nothing, so that a source may leave them out.
        """

    def draw(self, probs: Tensor) -> Tensor:
        """[V] probabilities (need not sum to 1) -> [] int64, independent of all other draws."""

    def accept(self, probability: Tensor) -> Tensor:
        """[K] probabilities, values above 1 meaning 1 -> [K] bool, likewise."""


def fresh_seed() -> int:
    """A seed for an answer that came without one; every reader of JSON holds it exactly."""
    return secrets.randbits(53)


def seeded(request: Request) -> Request:
    """The request with a seed, where it draws and has none."""
    if request.seed is not None or request.sampling.greedy:
        return request
    return replace(request, seed=fresh_seed())


class Generator:
    """The clocks of one seed, and a torch generator of it on the model's device.

    key: of the clocks.
    """

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self._device, self._seed = device, fresh_seed() if seed is None else seed
        self.key = race.key_of(self._seed)
        self._in_turn: torch.Generator | None = None

    def pick(
        self,
        logits: Tensor,
        temperature: float,
        places: int | Tensor,
        names: Tensor | None = None,
        count: int = 1,
        after: Tensor | None = None,
    ) -> Tensor:
        return race.pick(logits, temperature, self.key, places, names, count)

    def draw(self, probs: Tensor) -> Tensor:
        """Draw by inversion, which needs no host read, unlike multinomial."""
        below = probs.double().cumsum(-1)
        height = self._uniform(1, torch.float64) * below[-1:]
        # where the sums end below it, by rounding, nothing but the last of them can be drawn
        height = torch.minimum(height, torch.nextafter(below[-1:], torch.zeros_like(height)))
        found = torch.searchsorted(below, height, right=True)
        return found.clamp(max=len(below) - 1)[0]  # where all are 0: nobody asks for it

    def accept(self, probability: Tensor) -> Tensor:
        return self._uniform(len(probability), probability.dtype) < probability

    def _uniform(self, count: int, dtype: torch.dtype) -> Tensor:
        if self._in_turn is None:
            self._in_turn = torch.Generator(self._device)
            self._in_turn.manual_seed(self._seed % 2**64)
        return torch.rand(count, dtype=dtype, device=self._device, generator=self._in_turn)


@dataclass(frozen=True)
class Apart:
    """Chance of a second answer to the same prompt, which shall not depend on the first: places are
    shifted to where that had none."""

    chance: RandomSource
    shift: int

    def pick(self, logits: Tensor, temperature: float, places: Any, *others: Any) -> Tensor:
        return self.chance.pick(logits, temperature, places + self.shift, *others)

    def draw(self, probs: Tensor) -> Tensor:
        return self.chance.draw(probs)

    def accept(self, probability: Tensor) -> Tensor:
        return self.chance.accept(probability)
