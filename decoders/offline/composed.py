"""Drafters that choose among copies and recurrent drafters, along answers that are known: what the
recurrent ones would draft is known beforehand, everything else runs as it does live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..drafters import (
    HybridDrafter,
    MaxGramDrafter,
    NullDrafter,
    RecurrentDrafter,
)
from ..protocols import Backend, Drafter, DraftRequest, opening
from ..records import Sampling
from ..sampling.randomness import Generator
from .expected import Draft


def models_of(drafter: Drafter) -> list[RecurrentDrafter] | None:
    """The recurrent drafters that it is made of; None where anything else but copies is in it."""
    if type(drafter) is RecurrentDrafter:
        return [drafter]
    if type(drafter) in (MaxGramDrafter, NullDrafter):
        return []
    if type(drafter) is HybridDrafter:
        return models_of(drafter.model)
    return None


def over(drafter: Drafter, known: Callable[[RecurrentDrafter], Any]) -> Drafter:
    """The same drafter over what `known` gives for each of `models_of`. Copies are shared with the
    original: use one at a time."""
    if type(drafter) is HybridDrafter:
        return drafter.over(over(drafter.model, known))
    return known(drafter) if type(drafter) is RecurrentDrafter else drafter


def along(
    drafter: Drafter,
    target: Backend,
    prompt: list[int],
    answer: list[int],
    temperature: float = 0.0,
) -> Draft:
    """(at, k) -> the draft of k tokens to follow answer[:at], `at` growing.

    A drafter that draws what it does has seed 0.
    """
    drafter.reset(prompt)
    start, chance = opening(target, prompt), Generator(target.device, 0)
    sampling = Sampling(temperature)

    def draft(at: int, k: int) -> list[int]:
        context = start + answer[:at]
        if at > 1:
            drafter.commit(context)
        ids: list[int] = drafter.propose(context, DraftRequest(k, sampling, chance)).ids.tolist()
        return ids

    return Draft(draft, lambda: drafter.calls)
