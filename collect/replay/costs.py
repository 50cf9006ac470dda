"""What decoding costs on this machine: the target at each width, each drafter for each token.

Used by modelled tokens/s and the replay of adaptive draft lengths; sizes alone would mislead
(methods that batch well verify nearly for free).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from decoders.arms import AUTOREGRESSIVE
from decoders.common.sync import synchronize
from decoders.costs.measured import Costs
from decoders.costs.passes import CONTEXT, REPEATS, known, seconds_of
from decoders.costs.passes import measure as measure_passes
from decoders.protocols import Backend, Drafter, DraftRequest, Drafts, ExitBackend, decoder_prefix
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

from .registry import adapter_of

if TYPE_CHECKING:
    from decoders.engine import Engine

DRAFTED = 4
A_TIME = 3  # passes of each width and drafts of each arm, in all but the first


def costs_of(engine: Engine, again: bool = False) -> Costs:
    """`measure` of an engine's target and of all its drafters."""
    strategies = {name: engine.strategy(name) for name in engine.arms if name != AUTOREGRESSIVE}
    drafters = {name: s.drafter for name, s in strategies.items() if isinstance(s, Drafts)}
    return measure(engine.target, drafters, again)


def measure(target: Backend, drafters: Mapping[str, Drafter], again: bool = False) -> Costs:
    """The passes' costs, measured unless they are known; and the drafters'. What the target held is
    forgotten.

    again: known costs are not taken, and each is timed fewer times.

    An early exit spares the target the lower layers of the tokens that it drafted; that saving,
    measured pass next to pass, is taken off its drafting cost, so that drafted * draft_s + verify
    is the round's time. A drafter that chooses is charged for each token as for one of its most
    expensive part, copied or not.
    """
    repeats = A_TIME if again else REPEATS
    passes = (None if again else known(target)) or measure_passes(target, repeats)
    prompt = [1 + i % 97 for i in range(CONTEXT)]
    draft_s = {name: _draft_s(target, each, prompt, repeats) for name, each in drafters.items()}
    return Costs(passes.verify_s, draft_s)


def _draft_s(target: Backend, drafter: Drafter, prompt: list[int], repeats: int) -> float:
    drafter = adapter_of(drafter).timed
    counted = adapter_of(drafter).counts_calls
    sampling, chance = Sampling(), Generator(target.device, 0)
    context = [*decoder_prefix(target, prompt), 5]
    newest = torch.tensor(context[-1:], device=target.device)
    target.prefill(prompt)
    drafter.reset(prompt)
    spent, spared = [], []
    for _ in range(repeats):
        started, calls = time.perf_counter(), drafter.calls
        proposal = drafter.propose(context, DraftRequest(DRAFTED, sampling, chance))
        synchronize(target.device)
        tokens = drafter.calls - calls if counted else len(proposal.ids)
        spent.append((time.perf_counter() - started) / max(1, tokens))
        if isinstance(target, ExitBackend) and target.ahead > target.length:  # by an early exit
            drafted = torch.cat([newest, proposal.ids[: proposal.depth]])  # without siblings
            prepared = seconds_of(target, drafted)
            target.truncate(len(context) - 1)
            spared.append((seconds_of(target, drafted) - prepared) / len(proposal.ids))
        target.truncate(len(context) - 1)
        drafter.commit(context)
    return max(0.0, statistics.median(spent) - (statistics.median(spared) if spared else 0.0))
