"""The parts of a serving process, and how they are loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from decoders.common.wording import in_words
from decoders.options import EngineOptions
from decoders.records import Request

from ...protocols import Elsewhere
from ..options import LogOptions

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from decoders import Engine
    from decoders.continuous_batching import BatchEngine

    from ...protocols import RoutingEngine
    from ...routing.router import Router
    from ...serve.app import Settings
    from ...serve.scheduler import Scheduler
    from .options import ServeOptions

SHARE = 16  # of the memory that is free, one part is for kept prefixes

BUSY = (
    "the policy learns from tokens a second, which fall as more answers share a pass: "
    "serve with --slots 1, or train it on --reward saved-passes, which load does not change"
)


@dataclass(frozen=True)
class Served:
    """Models and settings that a process serves, before its address is taken or anything is loaded.

    asked: the command's options.
    named: places of policies.
    earlier: how many tokens of earlier answers are kept for arms that draft from them, and for how
        many seconds; None keeps none.
    prefix_memory: bytes for what was read of prompts, 0 for none; None for a share of what is free.
    """

    asked: ServeOptions
    named: dict[str, str]
    settings: Settings
    earlier: tuple[int, float | None] | None
    prefix_memory: int | None

    def make(self) -> tuple[FastAPI, Scheduler]:
        """Load it: the application, and the scheduler that it answers through."""
        from decoders.continuous_batching import batch_engine
        from decoders.zoo.catalogue import cache_dir

        from ...routing.learning import SPEEDS
        from ...serve.app import make_app
        from ...serve.queue import FairQueue
        from ...serve.scheduler import DEFAULT, Scheduler
        from ...serve.spans import sending

        asked = self.asked
        if asked.learn is not None:
            check_folder(asked.learn, "--learn")
        if self.prefix_memory:
            from decoders.models.targets import device_of

            check_prefix_memory(self.prefix_memory, device_of(asked.options.device))
        routers = load_routers(asked.options, self.named, asked.embedder, asked.log)
        if asked.learn is not None:
            routers[DEFAULT] = routers[DEFAULT].learning(asked.learn)
            if asked.slots > 1 and routers[DEFAULT].learns_from in SPEEDS:
                print(BUSY, file=sys.stderr)
        self.remember(routers[DEFAULT].engine)
        self.keep_prefixes(routers[DEFAULT].engine)
        cache = cache_dir() / "costs"
        room = batch_engine(routers[DEFAULT].engine, asked.slots, asked.batch_invariant, cache)
        if asked.warm_up:
            warm_up(routers, room)
        scheduler = Scheduler(routers, FairQueue(asked.queue), room)
        return make_app(scheduler, self.settings, sending(asked.otlp_traces_endpoint)), scheduler

    def reload(self, scheduler: Scheduler) -> None:
        """Read the arms file and the policies anew once the answers under way have ended; say at
        once where that cannot be."""
        from decoders import Engine

        from ...serve.scheduler import DEFAULT

        if self.asked.learn is None and isinstance(scheduler.routers[DEFAULT].engine, Engine):
            scheduler.exchange(partial(self.again, scheduler.batch))
        else:
            words = "what learns, and arms of endpoints, need a restart"
            print(f"the arms and policies stay as they are: {words}", file=sys.stderr, flush=True)

    def again(self, batch: BatchEngine, routers: Mapping[str, Router]) -> dict[str, Router]:
        """Routers by the arms file and the policies as they are now, over the engine in use, whose
        answers `batch` writes. Raises DraftpickError, and leaves the engine as it is, where they do
        not fit."""
        import policies
        from decoders import Engine

        from ...routing.loading import embedder_of
        from ...routing.router import Router
        from ...serve.scheduler import DEFAULT

        engine, made, asked = routers[DEFAULT].engine, dict(routers), self.asked
        assert isinstance(engine, Engine)
        before = engine.arms
        try:
            if asked.options.arms is not None:
                engine.declare(asked.options.recipes())
            for name, place in self.named.items():
                policy = policies.load(place)
                given = asked.embedder if name == DEFAULT else None
                reader = embedder_of(policy, given, asked.options.device)
                made[name] = Router(engine, policy, reader, routers[name].log)
            if DEFAULT not in self.named:
                kept = routers[DEFAULT]
                made[DEFAULT] = Router(engine, kept.policy, kept.embedder, kept.log)
            self.learn_costs(engine, batch)
        except Exception:
            engine.declare(before)
            raise
        if engine.earlier is None:
            self.remember(engine)
        for slot in batch.slots:
            if slot.engine is not engine:
                slot.engine.declare(engine.arms)
                slot.engine.remember(engine.earlier)
        engine.drafters.wake()
        if asked.warm_up:
            warm_up(made, batch)
        return made

    def learn_costs(self, engine: Engine, batch: BatchEngine) -> None:
        """Learn what passes cost, where an arm goes by it and none did before."""
        from decoders.continuous_batching import ContinuousBatch
        from decoders.costs import passes
        from decoders.zoo.catalogue import cache_dir

        by_cost = any(arm.uses_cost_model for arm in engine.arms.values())
        if not by_cost or passes.known(engine.target) is not None:
            return
        name, cache = engine.target_fingerprint, cache_dir() / "costs"
        passes.learn(engine.target, name, cache)
        if isinstance(batch, ContinuousBatch):
            batch.learn_costs(name, cache)

    def remember(self, engine: RoutingEngine) -> None:
        """Let the arms draft from earlier answers, where any of them does."""
        from decoders import Engine
        from decoders.earlier.answers import EarlierAnswers

        if self.earlier is None or not isinstance(engine, Engine):
            return
        if any(arm.reads_earlier for arm in engine.arms.values()):
            engine.remember(EarlierAnswers(*self.earlier))

    def keep_prefixes(self, engine: RoutingEngine) -> None:
        """Keep what is read of prompts, where the target's positions can be kept; with no memory
        for it, conversations do not stay at an endpoint either. Raises DraftpickError where
        positions cannot be kept but memory for it was asked for, or more than is free."""
        from decoders import Engine
        from decoders.earlier.prefixes import PrefixStore
        from decoders.models.memory import free_bytes
        from decoders.protocols import CopyableBackend

        limit = self.prefix_memory
        if limit == 0 and isinstance(engine, Elsewhere):
            engine.forget_conversations()
        if limit == 0 or (limit is None and not isinstance(engine, Engine)):
            return
        if not isinstance(engine, Engine):
            raise DraftpickError("--prefix-memory is for a target, and endpoints keep their own")
        if limit is not None:
            check_prefix_memory(limit, engine.target.device)
        elif isinstance(engine.target, CopyableBackend):
            limit = (free_bytes(engine.target.device) or 0) // SHARE
            limit = limit if limit >= engine.target.position_bytes else None
        if limit is not None:
            engine.keep_prefixes(PrefixStore(limit))


def check_prefix_memory(limit: int, device: torch.device) -> None:
    """Raises DraftpickError for more than is free."""
    from decoders.models.memory import GIB, free_bytes

    free = free_bytes(device)
    if free is not None and limit > free:
        raise DraftpickError(
            f"--prefix-memory asks for {limit / GIB:.1f} GiB, and {free / GIB:.1f} GiB of {device} "
            "are free; give less, or 0 to keep nothing"
        )


def load_routers(
    options: EngineOptions, named: Mapping[str, str], embedder: str | None, log: LogOptions
) -> dict[str, Router]:
    """A router for every policy, over one engine. embedder: of the default policy."""
    import policies

    from ...routing.loading import embedder_of
    from ...routing.router import Router
    from ...serve.scheduler import DEFAULT

    others = {name: policies.load(place) for name, place in named.items() if name != DEFAULT}
    book = log.open()
    first = Router.from_options(options, named.get(DEFAULT), embedder, book)
    routers = {DEFAULT: first}
    for name, policy in others.items():
        reader = embedder_of(policy, None, options.device)
        routers[name] = Router(first.engine, policy, reader, book)
    return routers


def warm_up(routers: Mapping[str, Router], batch: BatchEngine | None = None) -> None:
    """Answer a few tokens through every arm. An arm that fails is reported on standard error and
    stays.

    batch: will answer the requests; its slots load the arms too.
    """
    from decoders import Engine

    from ...records import AskOptions

    router = next(iter(routers.values())).unlogged()
    slots = batch.slots if batch is not None and isinstance(router.engine, Engine) else []
    for arm in router.engine.arm_names:
        try:
            router.respond("Hello", Request(max_new_tokens=4, user=None), AskOptions(arm))
            for slot in slots:
                slot.engine.strategy(arm)
        except Exception as error:
            print(f"arm {arm} cannot answer: {in_words(error)}", file=sys.stderr)
