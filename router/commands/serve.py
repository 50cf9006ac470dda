"""`draftpick serve`: options are read here; the web framework and the model are loaded late."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.options import EngineOptions
from router.commands.listing import Listing
from router.commands.options import engine_options
from router.commands.with_records import with_records

from .router_options import Embedder, LogOptions, answer_request, log_options

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..routing.router import Router
    from ..serve.app import Settings
    from ..serve.scheduler import Scheduler

ENGINES = ("local", "ray")
LOCAL = ("127.0.0.1", "localhost", "::1")
PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "greenlet")  # of the extra `serve`


def mount(app: typer.Typer) -> None:
    app.command(cls=Listing)(serve)


@with_records(log=log_options, options=engine_options)
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]POLICY",
            help="A folder, runs:/ID/policy or models:/NAME@alias instead of the shipped policy. "
            "With NAME=, requests can ask for it by name. Repeatable.",
        ),
    ] = None,
    embedder: Embedder = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPICK_API_KEY",
            metavar="KEY",
            help="Require this key of clients. Prefer the environment variable: command lines are "
            "visible to other users.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Allow browser requests from this origin, such as https://chat.example; * allows "
            "any. Repeatable. The server's own page needs none.",
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Temperature of requests that give none.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024,
    slots: Annotated[
        int,
        typer.Option(min=1, help="Most answers at once; a native backend batches them."),
    ] = 8,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Make every answer independent of the others in its batch; slower under load.",
        ),
    ] = False,
    queue: Annotated[
        int, typer.Option(min=1, help="Most waiting requests; further ones get 429.")
    ] = 64,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds for one request, including its wait.")
    ] = 600.0,
    max_body: Annotated[int, typer.Option(min=1, help="Longest request, in bytes.")] = 2**21,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that answers have to finish after SIGTERM.")
    ] = 30.0,
    warm_up: Annotated[
        bool,
        typer.Option(
            "--warm-up/--no-warm-up", help="Load every arm's drafter before the first request."
        ),
    ] = True,
    learn: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Update the default policy after every answer, and save it here. It must be an "
            "online policy, such as thompson.",
        ),
    ] = None,
    drafter_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory for all drafters, such as 2GB or 512MiB. The least recently used "
            "drafter is unloaded when another does not fit. Default: no limit.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="Where answers are written: local (this process) or ray (replicas on a cluster)."
        ),
    ] = "local",
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --engine ray: replicas. Default: one per GPU, or one per machine."
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --engine ray: a running cluster: auto, or host:port of its head. Default: "
            "start a cluster on this machine, and stop it with the server.",
        ),
    ] = None,
    log: LogOptions,
    options: EngineOptions,
) -> None:
    """Serve OpenAI's API, an arm for every request. A request's model is auto, where the policy
    picks the arm, or the name of an arm. The chat page is at the server's root.

    \b
    Examples:
      draftpick serve
      draftpick serve --policy mine=policy --port 8080 --log log
      draftpick serve --engine ray --ray-address auto
      curl localhost:8000/v1/chat/completions \\
        -H "Content-Type: application/json" \\
        -d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    """
    needed = (*PACKAGES, "httpx") if engine == "ray" else PACKAGES
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise DraftpickError(
            f"serving needs {', '.join(missing)}; install draftpick with them: `pip install "
            "'.[serve]'`"
        )
    from ..serve.app import Settings
    from ..serve.parsing import Limits
    from ..serve.scheduler import DEFAULT
    from ..serve.server import bound
    from ..serve.server import serve as run

    if engine not in ENGINES:
        raise NoSuchName("engine", engine, ENGINES)
    if engine != "ray" and (replicas is not None or ray_address is not None):
        raise DraftpickError("--replicas and --ray-address are of a Ray cluster; add --engine ray")
    if engine == "ray" and learn is not None:
        raise DraftpickError(
            "each replica would learn for itself; serve without --learn and teach the policy from "
            "the logs: draftpick learn"
        )
    usual = answer_request(max_tokens, temperature)
    options = replace(options, drafter_memory=bytes_of(drafter_memory))
    if api_key == "":
        raise DraftpickError("the key is empty; leave --api-key out, or give it characters")
    named = policies_of(policy or [])
    origins = origins_of(allow_origin or [])
    held = bound(host, port)
    limits = Limits(most_tokens=max_tokens, most_answers=queue, usual=usual.sampling)
    settings = Settings(limits, api_key, max_body, timeout, origins=origins)
    if host not in LOCAL and api_key is None:
        print(f"anyone who reaches {host} may ask; --api-key asks them for a key", file=sys.stderr)
    asked = Served(
        options, named, embedder, log, settings, slots, batch_invariant, queue, warm_up, learn
    )
    if engine == "local":
        app, scheduler = asked.make()
        try:
            run(app, scheduler, held, drain)
        finally:
            scheduler.routers[DEFAULT].save_learned()
        return
    from ..serve.replicas.on_ray import OnRay
    from ..serve.replicas.proxy import Proxy
    from ..serve.replicas.replicas import Replicas

    cluster = OnRay(asked.placed().make, ray_address, replicas)
    try:
        several = Replicas(cluster, cluster.n)
        run(Proxy(several, settings), several, held, drain)
    finally:
        cluster.close()


BUSY = (
    "the policy learns from tokens a second, which fall as more answers share a pass: "
    "serve with --slots 1, or train it on --reward saved-passes, which load does not change"
)


@dataclass(frozen=True)
class Served:
    """What a process serves, before anything is loaded; the fields are the command's options."""

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

    def make(self) -> tuple[FastAPI, Scheduler]:
        """Load it: the application, and the scheduler that it answers through."""
        from decoders.continuous_batching import batch_engine
        from decoders.zoo.catalogue import cache_dir

        from ..routing.learning import SPEEDS
        from ..serve.app import make_app
        from ..serve.queue import FairQueue
        from ..serve.scheduler import DEFAULT, Scheduler
        from ..serve.warm_up import warm_up

        routers = load_routers(self.options, self.named, self.embedder, self.log)
        if self.learn is not None:
            routers[DEFAULT] = routers[DEFAULT].learning(self.learn)
            if self.slots > 1 and routers[DEFAULT].learns_from in SPEEDS:
                print(BUSY, file=sys.stderr)
        cache = cache_dir() / "costs"
        room = batch_engine(routers[DEFAULT].engine, self.slots, self.batch_invariant, cache)
        if self.warm_up:
            warm_up(routers, room)
        scheduler = Scheduler(routers, FairQueue(self.queue), room, reuse=not self.batch_invariant)
        return make_app(scheduler, self.settings), scheduler

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


def _absolute(place: str) -> str:
    """A path that is there; what is none stays."""
    try:
        return str(Path(place).absolute()) if Path(place).exists() else place
    except OSError:  # a template's text, too long for a name
        return place


def policies_of(given: Sequence[str]) -> dict[str, str]:
    """By name; raises DraftpickError for a name that comes twice."""
    from ..serve.scheduler import DEFAULT

    named: dict[str, str] = {}
    for each in given:
        found = re.fullmatch(r"([\w.-]+)=(.+)", each)
        name, place = (found[1], found[2]) if found else (DEFAULT, each)
        if name in named:
            raise DraftpickError(
                f"--policy gives two policies called {name}; name the others: --policy NAME={place}"
            )
        named[name] = place
    return named


def origins_of(given: Sequence[str]) -> tuple[str, ...]:
    """As browsers spell them; raises DraftpickError for what is none."""
    for each in given:
        if each != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", each.lower()):
            raise DraftpickError(
                "--allow-origin is a scheme and a host, with the port where it is not the usual "
                f"one and nothing behind it, for instance https://chat.example, not {each!r}"
            )
    return tuple(each.lower() for each in given)


def load_routers(
    options: EngineOptions, named: Mapping[str, str], embedder: str | None, log: LogOptions
) -> dict[str, Router]:
    """A router for every policy, over one engine. embedder: of the default policy."""
    import policies

    from ..routing.loading import embedder_of
    from ..routing.router import Router
    from ..serve.scheduler import DEFAULT

    others = {name: policies.load(place) for name, place in named.items() if name != DEFAULT}
    book = log.open()
    first = Router.from_options(options, named.get(DEFAULT), embedder, book)
    routers = {DEFAULT: first}
    for name, policy in others.items():
        reader = embedder_of(policy, None, options.device)
        routers[name] = Router(first.engine, policy, reader, book)
    return routers


def bytes_of(size: str | None) -> int | None:
    """A size such as 2GB or 512MiB; raises DraftpickError for what is none."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if size is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise DraftpickError(
            f"--drafter-memory is a size, for instance 2GB or 512MiB, not {size!r}"
        ) from None
