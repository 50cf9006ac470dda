"""What `draftpick serve` is asked to do: its options, and which of them go together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.secrets import secret
from decoders.options import EngineOptions

from ..options import engine_options
from ..router_options import Embedder, LogOptions, answer_request, log_options
from ..with_records import with_records
from .served import Earlier, Served

ENGINES = ("local", "ray")
MOST_S = 1e8  # three years; no system waits for longer than its clock counts
PACKAGES = ("fastapi", "uvicorn", "prometheus_client")  # of the extra `serve`
OF_RAY = ("ray", "grpc")  # of the extra `ray`; collecting needs the first alone


@dataclass(frozen=True)
class ServePlan:
    """A server, before its address is taken or a model is loaded.

    served: what a process serves.
    host, port: where the server listens; port 0 takes a free one.
    drain_s: how long answers may take after SIGTERM.
    on_ray, replicas, ray_address: whether a Ray cluster answers, with how many replicas (None for
        one a device), and where it runs.
    """

    served: Served
    host: str
    port: int
    drain_s: float
    on_ray: bool
    replicas: int | None
    ray_address: str | None


@with_records(log=log_options, options=engine_options)
def plan(
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
        float,
        typer.Option(min=0.001, max=MOST_S, help="Seconds for one request, including its wait."),
    ] = 600.0,
    max_body: Annotated[int, typer.Option(min=1, help="Longest request, in bytes.")] = 2**21,
    drain: Annotated[
        float,
        typer.Option(min=0, max=MOST_S, help="Seconds that answers have to finish after SIGTERM."),
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
    isolate_by: Annotated[
        str,
        typer.Option(
            metavar="key|none|HEADER",
            help="Who is kept apart: kept prefixes and earlier answers (kind: suffix) are used for "
            "the same API key, for anyone, or for the same value of this header.",
        ),
    ] = "key",
    earlier_tokens: Annotated[
        int,
        typer.Option(
            min=0, max=2**26, help="Most tokens of earlier answers to keep for these arms; 0: none."
        ),
    ] = 2**18,
    earlier_age: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=MOST_S,
            metavar="HOURS",
            help="Forget earlier answers after this many hours.",
        ),
    ] = None,
    earlier_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep earlier answers on disk, for when the server starts again."
        ),
    ] = None,
    prefix_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory for what was read of prompts, such as 1GB, so that later prompts of "
            "the same user that begin alike are not read again; 0: none, and conversations do not "
            "stay at one endpoint. Default: a 16th of what is free.",
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
) -> ServePlan:
    """The plan of the command's options; opens no file and no socket, and prints nothing.

    Raises DraftpickError for options that do not go together, numbers out of range and packages
    that are not installed.
    """
    needed = (*PACKAGES, *OF_RAY) if engine == "ray" else PACKAGES
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise DraftpickError(
            f"serving needs {', '.join(missing)}; install draftpick with them: `pip install "
            f"'.[{'serve,ray' if engine == 'ray' else 'serve'}]'`"
        )
    from ...serve.app import Settings
    from ...serve.isolation import checked
    from ...serve.parsing import Limits

    if engine not in ENGINES:
        raise NoSuchName("engine", engine, ENGINES)
    if engine != "ray" and (replicas is not None or ray_address is not None):
        raise DraftpickError("--replicas and --ray-address need a Ray cluster; add --engine ray")
    if engine == "ray" and learn is not None:
        raise DraftpickError(
            "each replica would learn for itself; serve without --learn and teach the policy from "
            "the logs: draftpick learn"
        )
    usual = answer_request(max_tokens, temperature)
    options = replace(options, drafter_memory=bytes_of(drafter_memory, "--drafter-memory"))
    key = None if api_key is None else secret(api_key, "--api-key or DRAFTPICK_API_KEY")
    named = policies_of(policy or [])
    limits = Limits(most_tokens=max_tokens, most_answers=queue, usual=usual.sampling)
    origins = origins_of(allow_origin or [])
    settings = Settings(
        limits, key, max_body, timeout, origins=origins, isolate_by=checked(isolate_by)
    )
    age_s = None if earlier_age is None else 3600 * earlier_age
    if earlier_store is not None and engine == "ray":
        raise DraftpickError(
            "replicas would write over each other's earlier answers; serve without --earlier-store"
        )
    if earlier_store is not None and not earlier_tokens:
        raise DraftpickError("--earlier-tokens 0 keeps nothing; leave --earlier-store out")
    earlier = Earlier(earlier_tokens, age_s, earlier_store) if earlier_tokens else None
    served = Served(
        options, named, embedder, log, settings, slots, batch_invariant, queue, warm_up, learn,
        earlier, bytes_of(prefix_memory, "--prefix-memory"),
    )  # fmt: skip
    return ServePlan(served, host, port, drain, engine == "ray", replicas, ray_address)


def policies_of(given: Sequence[str]) -> dict[str, str]:
    """By name; raises DraftpickError for a name that comes twice."""
    from ...serve.scheduler import DEFAULT

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


def bytes_of(size: str | None, option: str) -> int | None:
    """A size such as 2GB or 512MiB; raises DraftpickError for what is none."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if size is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise DraftpickError(
            f"{option} is a size, for instance 2GB or 512MiB, not {size!r}"
        ) from None
