"""What a token of a draft model costs, in passes of the target over one token."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from ..protocols import Backend, Drafter, ModelDrafter
from .passes import known, seconds_of

ON_STATES = 0.06  # a cell or the target's first layers; the default target's, measured
HELD = 32  # tokens read before
REPEATS = 9

_STEPS: WeakKeyDictionary[Backend, float] = WeakKeyDictionary()


def in_turn(drafter: Drafter, target: Backend) -> bool:
    """Whether it has a model of its own, which reads for one answer after the other."""
    return _own_model(drafter, target) is not None


def _own_model(drafter: Drafter, target: Backend) -> Backend | None:
    if not isinstance(drafter, ModelDrafter) or drafter.backend is target:
        return None
    return drafter.backend


def draft_cost(drafter: Drafter, target: Backend) -> float:
    """The least of REPEATS passes of the drafter's own model over the target's pass, where that is
    known, else their share of parameters. ON_STATES for a drafter without a model of its own.

    What the model held is forgotten.
    """
    model = _own_model(drafter, target)
    if model is None:
        return ON_STATES
    passes = known(target)
    if passes is None:
        return min(1.0, float(model.parameters / target.parameters))
    if model not in _STEPS:
        _STEPS[model] = _step_s(model)
    return _STEPS[model] / passes(1)


@torch.inference_mode()
def _step_s(model: Backend) -> float:
    model.prefill([1 + i % min(97, model.vocab_size - 1) for i in range(HELD)])
    start, token, times = model.length, torch.zeros(1, dtype=torch.int64, device=model.device), []
    for _ in range(REPEATS):
        times.append(seconds_of(model, token))
        model.truncate(start)
    return min(times)
