"""What passes cost that several answers share (L6): measured once, kept in the cache.

A drafted token costs next to nothing where the weights are read for one answer alone, and more the
more answers are read together. Drafters that go by costs ask for those of the moment, so that they
draft less under load and nothing where it does not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ..common.machine import look, others
from ..common.text import from_json
from ..protocols import Backend
from . import passes
from .pass_costs import PassCosts
from .passes import CostKey

CONTEXT = 192  # positions that each answer is given while measuring
ROWS = (1, 2, 4, 8, 16, 32, 64)
TOKENS = (1, 2, 4, 8)
TOTALS = (4, 6, 8, 12, 16, 24, 32, 48, 64)  # tokens at which the two ways to multiply are compared
REPEATS = 3
QUIET = 0.25  # cores that others may keep busy meanwhile


class SlotsModel(Backend, Protocol):
    @property
    def narrow(self) -> int:
        """Tokens of a pass up to which rounded weights are ever multiplied by as they are."""

    @property
    def products(self) -> str: ...


class Slots(Protocol):
    """Sequences of one model that share its passes, as BatchSlots in backends/batched/slots.py."""

    narrow: int
    batch_invariant: bool

    @property
    def like(self) -> SlotsModel: ...

    @property
    def all(self) -> Sequence[Backend]: ...

    @property
    def passes(self) -> str: ...

    def seconds(self, rows: int, tokens: int, context: int, repeats: int) -> float:
        """The least of so many passes over `tokens` tokens of each of the first `rows`, which hold
        `context` positions, or as many as they may. What they held is forgotten."""


@dataclass(frozen=True)
class SharedCosts:
    """seconds: of a pass for rows[i] answers over tokens[j] tokens of each.
    narrow: as in BatchSlots.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    narrow: int

    def of(self, rows: int) -> PassCosts:
        """Pass costs for a number of answers at once, interpolated between measured points."""
        at = [np.interp(rows, self.rows, seconds) for seconds in zip(*self.seconds, strict=True)]
        widths = range(1, self.tokens[-1] + 1)
        return PassCosts(tuple(np.interp(widths, self.tokens, at).tolist()))


@dataclass(frozen=True)
class UnderLoad(PassCosts):
    """The target's own pass costs while one answer runs, the shared ones while several do.

    rows: how many are written now.
    """

    shared: SharedCosts | None = None
    rows: Callable[[], int] = lambda: 1

    def __call__(self, width: float) -> float:
        return self._now()(width)

    def turns(self) -> float:
        rows = self.rows()
        if rows <= 1 or self.shared is None:
            return 1.0
        return rows * self.verify_s[0] / _of(self.shared, rows)(1)

    def ratios(self, longest: int) -> tuple[float, ...]:
        return self._now().ratios(longest)

    def _now(self) -> PassCosts:
        rows = self.rows()
        if rows <= 1 or self.shared is None:
            return PassCosts(self.verify_s, self.busy)
        return _of(self.shared, rows)


@lru_cache(256)
def _of(shared: SharedCosts, rows: int) -> PassCosts:
    return shared.of(rows)


def learn(
    slots: Slots, fingerprint: str, folder: Path | None, running: Callable[[], int]
) -> SharedCosts:
    """Read the costs from `folder`, or measure and write them, which takes a few seconds; every
    slot's `passes.known` follows them from now on. What was measured while other processes kept
    cores busy is used, and not kept.

    fingerprint: the target's.
    folder: None keeps nothing.
    """
    how = ", ".join(filter(None, [slots.passes, slots.like.products]))
    key = CostKey.of(slots.all[0], fingerprint)
    place = replace(key, backend=f"{len(slots.all)} slots, {how}")
    path = None if folder is None else folder / place.file
    costs = None if path is None else _read(path)
    if costs is None or slots.batch_invariant:
        before = look()
        costs = measure(slots)
        after = look()
        company = others(before, after) if before and after else 0.0
        if path is not None and not slots.batch_invariant and company < QUIET:
            passes.write(path, place, costs)
    slots.narrow = costs.narrow
    for slot in slots.all:
        alone = passes.known(slots.like)
        if alone is None:
            alone = costs.of(1)
        passes.assume(slot, UnderLoad(alone.verify_s, alone.busy, costs, running))
    return costs


@torch.inference_mode()
def measure(slots: Slots) -> SharedCosts:
    """What the slots held is forgotten."""
    narrow = slots.narrow = _crossover(slots)
    most = len(slots.all)
    return timed(slots, sorted({most, *(n for n in ROWS if n < most)}), narrow)


@torch.inference_mode()
def timed(slots: Slots, rows: Sequence[int], narrow: int) -> SharedCosts:
    """Time passes for these numbers of answers, as the slots multiply now. What they held is
    forgotten."""
    times = tuple(tuple(_seconds(slots, n, t) for t in TOKENS) for n in rows)
    return SharedCosts(tuple(rows), TOKENS, times, narrow)


def _crossover(slots: Slots) -> int:
    """Tokens up to which rounded weights are multiplied by faster as they are."""
    most = slots.like.narrow
    if slots.batch_invariant or len(slots.all) < 2:
        return most
    for total in TOTALS:
        if total > most:
            break
        slots.narrow = most
        rounded = _seconds(slots, 2, total // 2)
        slots.narrow = 0
        if _seconds(slots, 2, total // 2) < rounded:
            return total - 1
    return most


def _seconds(slots: Slots, rows: int, tokens: int) -> float:
    return slots.seconds(rows, tokens, CONTEXT, REPEATS)


def _read(path: Path) -> SharedCosts | None:
    try:
        record = from_json(path.read_text(encoding="utf-8"))
        seconds = tuple(tuple(map(float, each)) for each in record["seconds"])
        costs = SharedCosts(
            tuple(record["rows"]), tuple(record["tokens"]), seconds, int(record["narrow"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = len(seconds) == len(costs.rows) and all(len(s) == len(costs.tokens) for s in seconds)
    return costs if whole and costs.rows and min(map(min, seconds)) > 0 else None
