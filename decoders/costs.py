"""What a pass costs on this machine: the target at each width, each drafter for each token.

Measured once per engine, medians of several, and used by modelled tokens/s and the replay of
adaptive draft lengths; sizes alone would mislead (methods that batch well verify nearly for free).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .backends.base import Backend, opening
from .backends.sync import synchronize
from .chance import Generator
from .drafters import Drafter, EarlyExitDrafter
from .records import Sampling

WIDEST = 17
CONTEXT = 192  # prompt tokens held while measuring
REPEATS = 9
DRAFTED = 4


@dataclass(frozen=True)
class Costs:
    """verify_s: seconds of one target pass of width i + 1. draft_s: seconds for each drafted token,
    by arm; an arm without a drafter is left out."""

    verify_s: list[float]
    draft_s: dict[str, float]

    def verify(self, width: int) -> float:
        """Seconds of one target pass over `width` tokens."""
        return self.verify_s[min(width, len(self.verify_s)) - 1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(target: Backend, drafters: Mapping[str, Drafter]) -> Costs:
    """Interleaved medians; what the target held is forgotten.

    An early exit spares the target the lower layers of the tokens that it drafted; that saving,
    measured pass beside pass, is taken off its drafting cost, so that drafted * draft_s + verify is
    the round's time.
    """
    prompt = [1 + i % 97 for i in range(CONTEXT)]
    ids = torch.arange(1, WIDEST + 1, device=target.device)
    target.prefill(prompt)
    held = target.length
    widths: list[list[float]] = [[] for _ in range(WIDEST)]
    for _ in range(REPEATS):
        for width in range(1, WIDEST + 1):
            widths[width - 1].append(_extend_s(target, ids[:width]))
            target.truncate(held)
    draft_s = {name: _draft_s(target, drafter, prompt) for name, drafter in drafters.items()}
    return Costs([statistics.median(times) for times in widths], draft_s)


def _draft_s(target: Backend, drafter: Drafter, prompt: list[int]) -> float:
    sampling, chance = Sampling(), Generator(target.device, 0)
    context = [*opening(target, prompt), 5]
    newest = torch.tensor(context[-1:], device=target.device)
    target.prefill(prompt)
    drafter.reset(prompt)
    spent, spared = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        proposal = drafter.propose(context, DRAFTED, sampling, chance)
        synchronize(target.device)
        spent.append((time.perf_counter() - started) / max(1, len(proposal.ids)))
        if isinstance(drafter, EarlyExitDrafter):
            drafted = torch.cat([newest, proposal.ids])
            prepared = _extend_s(target, drafted)
            target.truncate(len(context) - 1)
            spared.append((_extend_s(target, drafted) - prepared) / len(proposal.ids))
        target.truncate(len(context) - 1)
        drafter.commit(context)
    return max(0.0, statistics.median(spent) - (statistics.median(spared) if spared else 0.0))


def _extend_s(target: Backend, ids: torch.Tensor) -> float:
    started = time.perf_counter()
    target.extend(ids)
    synchronize(target.device)
    return time.perf_counter() - started
