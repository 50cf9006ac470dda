"""Costs of decoding on this machine: the target at each width, each drafter for each token, and
both where several answers are written at once.

Used by modelled tokens/s and the replay of adaptive draft lengths; sizes alone would mislead
(methods that batch well verify nearly for free).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from decoders.arms import AUTOREGRESSIVE
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.common.sync import synchronize
from decoders.continuous_batching import ContinuousBatch
from decoders.costs import passes
from decoders.costs.measured import Costs
from decoders.costs.passes import CONTEXT, REPEATS, seconds_of
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.protocols import Backend, Drafter, DraftRequest, Drafts, ExitBackend, decoder_prefix
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

from . import rounds
from .registry import adapter_of

if TYPE_CHECKING:
    from decoders.engine import Engine


DRAFTED = 4
A_TIME = 3  # passes of each width and drafts of each arm, in all but the first


def shapes(engine: Engine) -> dict[str, str]:
    """Arm -> the first of those that differ from it by their drafters' weights alone, and so cost
    the same."""
    first: dict[str, str] = {}
    return {
        name: first.setdefault(f"{_shape(arm.model_dump())}{engine.arm_parameters(name)}", name)
        for name, arm in engine.arms.items()
    }


def _shape(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe without what only names it or its drafter."""
    kept = {k: v for k, v in recipe.items() if k not in ("name", "note", "drafter")}
    return {k: _shape(v) if isinstance(v, Mapping) else v for k, v in kept.items()}


def costs_of(engine: Engine, again: bool = False) -> Costs:
    """Costs of one answer: `measure` of an engine's target and of all its drafters, and rounds."""
    strategies = {name: engine.strategy(name) for name in engine.arms if name != AUTOREGRESSIVE}
    drafters = {name: s.drafter for name, s in strategies.items() if isinstance(s, Drafts)}
    costs = measure(engine.target, drafters, again)
    return _with_rounds(engine, costs, rounds.alone(engine, costs))


def _with_rounds(
    engine: Engine, costs: Costs, seconds: tuple[dict[str, float], dict[str, float]]
) -> Costs:
    """seconds: `Costs.round_s` and `drawn_round_s`."""
    timed = replace(costs, round_s=seconds[0], drawn_round_s=seconds[1])
    return timed.pooled(shapes(engine))


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
    alone = (None if again else passes.known(target)) or passes.measure(target, repeats)
    prompt = [1 + i % min(97, target.vocab_size - 1) for i in range(CONTEXT)]
    draft_s = {name: _draft_s(target, each, prompt, repeats) for name, each in drafters.items()}
    return Costs(alone.verify_s, draft_s)


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


def require_shared(target: Backend) -> LlamaBackend:
    """The target; raises DraftpickError where it has no passes to share."""
    if not isinstance(target, LlamaBackend):
        raise DraftpickError(
            "answers that are written at once share the passes of the native backend alone, and "
            f"this target runs by {type(target).__name__}; leave --at-once out"
        )
    return target


def install_costs(engine: Engine, costs: Costs, answers: Callable[[], int]) -> None:
    """Let the engine's arms draft by these costs, if they go by any. answers: how many are written
    at once now."""
    loads = sorted(costs.at_once)
    if not loads and passes.known(engine.target) is None:
        return
    by_load = [costs.at_once[each].verify_s for each in loads]
    tokens = tuple(range(1, 1 + min(map(len, by_load), default=0)))
    shared = SharedCosts(tuple(loads), tokens, tuple(each[: len(tokens)] for each in by_load), 0)
    known = UnderLoad(costs.verify_s, shared=shared if loads else None, rows=answers)
    passes.assume(engine.target, known)
    for name, arm in engine.arms.items():
        if arm.uses_cost_model:  # asks for costs when it is made
            engine.forget(name)


def costs_at_once(
    engine: Engine, alone: Costs, batch: ContinuousBatch, shared: SharedCosts, wanted: Sequence[int]
) -> dict[int, Costs]:
    """Costs for each wanted number of answers. alone: those of one answer. batch: as many
    places. shared: what its passes cost.

    The steps of a recurrent cell are taken for all answers together, other drafts one after the
    other.
    """
    made = {}
    for answers in wanted:
        draft_s = {}
        for arm, seconds in alone.draft_s.items():
            strategy = engine.strategy(arm)
            steps = adapter_of(strategy.drafter).steps if isinstance(strategy, Drafts) else float
            draft_s[arm] = seconds * steps(answers)
        costs = Costs(shared.of(answers).verify_s, draft_s)
        made[answers] = _with_rounds(engine, costs, rounds.at_once(batch, engine, costs, answers))
    return made
