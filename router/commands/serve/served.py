"""What a serving process answers with, and how it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from decoders.options import EngineOptions

from ...protocols import Elsewhere
from ..options import LogOptions

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from ...protocols import RoutingEngine
    from ...routing.router import Router
    from ...serve.app import Settings
    from ...serve.scheduler import Scheduler

SHARE = 16  # of the memory that is free, one part is for kept prefixes

BUSY = (
    "the policy learns from tokens a second, which fall as more answers share a pass: "
    "serve with --slots 1, or train it on --reward saved-passes, which load does not change"
)


@dataclass(frozen=True)
class Earlier:
    """What is kept of earlier answers, for arms that draft from them; as of EarlierAnswers.

    folder: where they are kept on disk; None keeps them in memory alone.
    """

    tokens: int
    age_s: float | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Served:
    """What a process serves, before anything is loaded; the fields are the command's options.

    earlier: None keeps none.
    prefix_memory: bytes for what was read of prompts, 0 for none; None for a share of what is free.
    """

    options: EngineOptions
    named: dict[str, str]
    embedder: str | None
    log: LogOptions
    settings: Settings
    slots: int
    batch_invariant: bool
    queue: int
    warm_up: bool
    learn: Path | None = None
    earlier: Earlier | None = None
    prefix_memory: int | None = None

    def make(self) -> tuple[FastAPI, Scheduler]:
        """Load it: the application, and the scheduler that it answers through."""
        from decoders.continuous_batching import batch_engine
        from decoders.zoo.catalogue import cache_dir

        from ...routing.learning import SPEEDS
        from ...serve.app import make_app
        from ...serve.queue import FairQueue
        from ...serve.scheduler import DEFAULT, Scheduler
        from ...serve.warm_up import warm_up

        if self.learn is not None:
            check_folder(self.learn, "--learn")
        if self.earlier is not None and self.earlier.folder is not None:
            check_folder(self.earlier.folder, "--earlier-store")
        if self.prefix_memory:
            from decoders.models.targets import device_of

            check_prefix_memory(self.prefix_memory, device_of(self.options.device))
        routers = load_routers(self.options, self.named, self.embedder, self.log)
        if self.learn is not None:
            routers[DEFAULT] = routers[DEFAULT].learning(self.learn)
            if self.slots > 1 and routers[DEFAULT].learns_from in SPEEDS:
                print(BUSY, file=sys.stderr)
        self.remember(routers[DEFAULT].engine)
        self.keep_prefixes(routers[DEFAULT].engine)
        cache = cache_dir() / "costs"
        room = batch_engine(routers[DEFAULT].engine, self.slots, self.batch_invariant, cache)
        if self.warm_up:
            warm_up(routers, room)
        scheduler = Scheduler(routers, FairQueue(self.queue), room)
        return make_app(scheduler, self.settings), scheduler

    def again(self, routers: Mapping[str, Router]) -> dict[str, Router]:
        """Routers by the arms file and the policies as they are now, over the engine in use. Raises
        DraftpickError, and leaves the engine as it is, where they do not fit."""
        import policies
        from decoders import Engine

        from ...routing.loading import embedder_of
        from ...routing.router import Router
        from ...serve.scheduler import DEFAULT

        engine, made = routers[DEFAULT].engine, dict(routers)
        if self.learn is not None or not isinstance(engine, Engine):
            raise DraftpickError("what learns, and arms of endpoints, need a restart")
        before = engine.arms
        if self.options.arms is not None:
            engine.declare(self.options.recipes())
        try:
            for name, place in self.named.items():
                policy = policies.load(place)
                given = self.embedder if name == DEFAULT else None
                reader = embedder_of(policy, given, self.options.device)
                made[name] = Router(engine, policy, reader, routers[name].log)
            if DEFAULT not in self.named:
                kept = routers[DEFAULT]
                made[DEFAULT] = Router(engine, kept.policy, kept.embedder, kept.log)
        except Exception:
            engine.declare(before)
            raise
        return made

    def remember(self, engine: RoutingEngine) -> None:
        """Let the arms draft from earlier answers, where any of them does."""
        from decoders import Engine
        from decoders.earlier.answers import EarlierAnswers
        from decoders.earlier.stored import StoredAnswers

        if self.earlier is None or not isinstance(engine, Engine):
            return
        if any(arm.reads_earlier for arm in engine.arms.values()):
            kept = self.earlier
            if kept.folder is None:
                engine.remember(EarlierAnswers(kept.tokens, kept.age_s))
            else:
                target = engine.target_fingerprint
                engine.remember(StoredAnswers(kept.folder, target, kept.tokens, kept.age_s))

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

    def placed(self) -> Served:
        """The same for a process with another working directory: paths become absolute ones."""
        arms = self.options.arms
        target, template = self.options.target, self.options.chat_template
        options = replace(
            self.options,
            target=_absolute(target),
            chat_template=None if template is None else _absolute(template),
        )
        if isinstance(arms, str | Path):
            options = replace(options, arms=Path(arms).absolute())
        log = self.log
        if log.folder is not None:
            log = replace(log, folder=log.folder.absolute())
        named = {name: _absolute(place) for name, place in self.named.items()}
        embedder = None if self.embedder is None else _absolute(self.embedder)
        return replace(self, options=options, named=named, embedder=embedder, log=log)


def check_prefix_memory(limit: int, device: torch.device) -> None:
    """Raises DraftpickError for more than is free."""
    from decoders.models.memory import GIB, free_bytes

    free = free_bytes(device)
    if free is not None and limit > free:
        raise DraftpickError(
            f"--prefix-memory asks for {limit / GIB:.1f} GiB, and {free / GIB:.1f} GiB of {device} "
            "are free; give less, or 0 to keep nothing"
        )


def save_earlier(engine: RoutingEngine) -> None:
    """Write earlier answers that are kept on disk; what goes wrong is told on standard error."""
    from decoders.earlier.stored import StoredAnswers

    earlier = getattr(engine, "earlier", None)
    if isinstance(earlier, StoredAnswers):
        try:
            earlier.close()
        except OSError as error:
            print(f"earlier answers could not be written: {error}", file=sys.stderr)


def _absolute(place: str) -> str:
    """A path that is there; what is none stays."""
    try:
        return str(Path(place).absolute()) if Path(place).exists() else place
    except OSError:  # a template's text, too long for a name
        return place


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
