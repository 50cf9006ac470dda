"""Every arm answers once before the first request, so that its drafter is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from decoders.common.errors import DraftpickError
from decoders.records import Request

from ..records import AskOptions

if TYPE_CHECKING:
    from decoders.continuous_batching import BatchEngine

    from ..routing.router import Router

QUERIES = 2  # of each task, to see which arms the policy picks


def warm_up(routers: Mapping[str, Router], batch: BatchEngine | None = None) -> None:
    """Answer a few tokens through every arm. An arm that fails is reported on standard error and
    stays.

    batch: will answer the requests; its slots load the arms too.

    If drafters' memory is bounded, the arms that the policy picks most come first; those that do
    not fit load when they are first used.
    """
    from decoders.models.drafter_memory import DrafterMemory, NoRoom

    router = next(iter(routers.values())).unlogged()
    drafters = getattr(router.engine, "drafters", None)
    bounded = isinstance(drafters, DrafterMemory) and drafters.limit is not None
    arms = likely_first(router) if bounded else list(router.engine.arm_names)
    slots: list[Any] = [] if batch is None else batch.slots
    later = list[str]()
    with ExitStack() as kept:
        for arm in arms:
            try:
                router.respond("Hello", Request(max_new_tokens=4, user=None), AskOptions(arm))
                if isinstance(drafters, DrafterMemory):
                    kept.enter_context(drafters.at_work(arm))
                    for slot in slots:
                        slot.engine.strategy(arm)
            except NoRoom:
                later.append(arm)
            except DraftpickError as error:
                print(f"arm {arm} cannot answer: {error}", file=sys.stderr)
    if isinstance(drafters, DrafterMemory):
        for arm in reversed(arms):
            drafters.touch(arm)
        if later:
            print(
                f"drafters take {drafters.bytes / 1e6:.1f} MB; {', '.join(later)} did not fit "
                "and will load when first used",
                file=sys.stderr,
            )


def likely_first(router: Router) -> list[str]:
    """The engine's arms, ordered by how often the policy picks them for the shipped queries."""
    from collect.queries import first_per_task, shipped

    arms = list(router.engine.arm_names)
    if router.policy is None:
        return arms
    queries = [query.turns[0] for query in first_per_task(shipped("test"), QUERIES)]
    picks = [router.pick(query) for query in queries]
    return sorted(arms, key=lambda arm: -picks.count(arm))
