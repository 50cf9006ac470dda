"""What decoding costs where several answers are written at once, for arms that are replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.continuous_batching import ContinuousBatch
from decoders.costs import passes, under_load
from decoders.costs.measured import Costs
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.protocols import Backend, Drafts

from . import rounds
from .registry import adapter_of

if TYPE_CHECKING:
    from decoders.engine import Engine


def require_shared(target: Backend) -> LlamaBackend:
    """The target; raises DraftpickError where it has no passes to share."""
    if not isinstance(target, LlamaBackend):
        raise DraftpickError(
            "answers that are written at once share the passes of the native backend alone, and "
            f"this target runs by {type(target).__name__}; leave --at-once out"
        )
    return target


def require_room(engine: Engine, most: int) -> None:
    """Raises as `install_shared_costs` does, before minutes are spent."""
    require_shared(engine.target)
    ContinuousBatch(engine, most)


def install_shared_costs(
    engine: Engine, most: int, folder: Path | None, answers: Callable[[], int]
) -> tuple[ContinuousBatch, SharedCosts]:
    """Let the engine's arms draft as they do where this many answers are written at once. Returns a
    batch for them, and what its passes cost.

    most: answers, at most.
    folder: where these costs are kept; None keeps nothing.
    answers: how many there are now.

    Raises DraftpickError as `require_shared` does, OutOfMemory if there is no room for that many.
    """
    target = require_shared(engine.target)
    alone = passes.known(target) or passes.measure(target)
    batch = ContinuousBatch(engine, most)
    shared = under_load.learn(
        batch.passes, engine.target_fingerprint, folder, lambda: batch.running
    )
    passes.assume(target, UnderLoad(alone.verify_s, alone.busy, shared, answers))
    for arm in engine.arm_names:
        engine.forget(arm)  # they ask for costs when they are made
    return batch, shared


def costs_at_once(
    engine: Engine, alone: Costs, batch: ContinuousBatch, shared: SharedCosts, wanted: Sequence[int]
) -> dict[int, Costs]:
    """Costs for each wanted number of answers. alone: those of one answer. batch, shared: as in
    `install_shared_costs`.

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
        greedy, drawn = rounds.at_once(batch, engine, costs, answers)
        made[answers] = replace(costs, round_s=greedy, drawn_round_s=drawn)
    return made
