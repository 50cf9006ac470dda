"""Adapters of drafters for collections, by the drafter's class: what each drafts along answers that
are known follows from one pass over many of them.

A package adds its own: ADAPTERS["its.module:ItsDrafter"] = ItsAdapter. Only that very class gets
the adapter, because a subclass may draft otherwise. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoders.common.plugins import watched

if TYPE_CHECKING:
    from decoders.protocols import Drafter

    from .protocols import KnownAnswers, ReplayedLoop
    from .records import Replay, ToWrite, Written


class ReplayAdapter:
    """What a collection asks about a drafter, answered by an adapter in ADAPTERS: many answers at
    once, without the target's passes. The defaults are those of a drafter without one, which is run
    for one query at a time.

    timed: the drafter whose drafts are timed for what a drafted token costs.
    counts_calls: whether its `calls` are the tokens that models drafted, because it drafts others
        that cost nothing.
    """

    drafter: Any
    counts_calls = False

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter

    @property
    def timed(self) -> Drafter:
        drafter: Drafter = self.drafter
        return drafter

    def steps(self, answers: int) -> float:
        """Cost of a drafted token for a number of answers that share passes, over its cost for one
        answer; the default drafts for one answer after the other."""
        return float(answers)

    def write(self, asked: ToWrite) -> Written | None:
        """The drafter's own greedy answers; None where it must be run for one query at a time."""
        return None

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        """The loop along each answer, at its temperature and by its seed; None as in `write`."""
        return None


Adapter = Callable[[Any], ReplayAdapter]


def _ours(module: str, name: str) -> Adapter:
    def adapter(drafter: Any) -> ReplayAdapter:
        kind = getattr(import_module(f".methods.{module}", __package__), name)
        made: ReplayAdapter = kind(drafter)
        return made

    return adapter


ADAPTERS: dict[str, Adapter] = watched(
    "replay adapter",
    {
        "decoders.methods.max_gram.drafter:MaxGramDrafter": _ours("along", "CopiedReplay"),
        "decoders.methods.neural.drafter:NeuralDrafter": _ours("stacked", "NeuralReplay"),
        "decoders.methods.early_exit.drafter:EarlyExitDrafter": _ours("stacked", "EarlyExitReplay"),
        "decoders.methods.recurrent.drafter:RecurrentDrafter": _ours(
            "recurrent", "RecurrentReplay"
        ),
        "decoders.methods.hybrid.drafter:HybridDrafter": _ours("hybrid", "HybridReplay"),
        "decoders.methods.suffix.drafter:SuffixDrafter": _ours("along", "CopiedReplay"),
        "decoders.methods.neural.translated:TranslatedDrafter": _ours("along", "TranslatedReplay"),
        "decoders.methods.tree.widened:WidenedDrafter": _ours("along", "WidenedReplay"),
    },
)


def adapter_of(drafter: Drafter) -> ReplayAdapter:
    """The adapter of the drafter's very class, else ReplayAdapter."""
    kind = type(drafter)
    return ADAPTERS.get(f"{kind.__module__}:{kind.__qualname__}", ReplayAdapter)(drafter)
