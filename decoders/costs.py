"""What a pass costs on this machine: the target at each width, each drafter for each token.

Measured once per engine, medians of several, and used by modelled tokens/s and the replay of
adaptive draft lengths; sizes alone would mislead (methods that batch well verify nearly for free).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .backends.base import Backend
from .backends.sync import synchronize
from .chance import Generator
from .loop import Method
from .records import Sampling

WIDEST = 17
CONTEXT = 192  # prompt tokens held while measuring
REPEATS = 7
DRAFTED = 4


@dataclass(frozen=True)
class Costs:
    """verify_s: seconds of one target pass of width i + 1. draft_s: seconds for each drafted token,
    by arm."""

    verify_s: list[float]
    draft_s: dict[str, float]

    def verify(self, width: int) -> float:
        """Seconds of one target pass over `width` tokens."""
        return self.verify_s[min(width, len(self.verify_s)) - 1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(target: Backend, methods: dict[str, Method]) -> Costs:
    """Interleaved medians; what the target held is forgotten.

    An early exit spares the target the lower layers of the tokens that it drafted; that saving is
    taken off its drafting cost, so that drafted * draft_s + verify is the round's time.
    """
    prompt = [1 + i % 97 for i in range(CONTEXT)]
    ids = torch.arange(1, WIDEST + 1, device=target.device)
    sampling, chance = Sampling(), Generator(target.device, 0)
    target.prefill(prompt)
    widths: list[list[float]] = [[] for _ in range(WIDEST)]
    for _ in range(REPEATS):
        for width in range(1, WIDEST + 1):
            widths[width - 1].append(_extend_s(target, ids[:width]))
            target.truncate(CONTEXT)
    verify_s = [statistics.median(times) for times in widths]
    draft_s = {}
    for name, method in methods.items():
        target.prefill(prompt)
        method.drafter.reset(prompt)
        context = [*prompt, 5]
        per_token = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            proposal = method.drafter.propose(context, DRAFTED, sampling, chance)
            synchronize(target.device)
            drafted = time.perf_counter() - started
            newest = torch.tensor(context[-1:], device=target.device)
            verified = _extend_s(target, torch.cat([newest, proposal.ids]))
            count = len(proposal.ids)
            if count:
                per_token.append((drafted + verified - verify_s[count]) / count)
            target.truncate(CONTEXT)
            method.drafter.commit(context)
        draft_s[name] = max(statistics.median(per_token), 0.0) if per_token else 0.0
    return Costs(verify_s, draft_s)


def _extend_s(target: Backend, ids: torch.Tensor) -> float:
    started = time.perf_counter()
    target.extend(ids)
    synchronize(target.device)
    return time.perf_counter() - started
