"""The options of `draftpick serve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ..options import Embedder, EngineRecord, LogOptions

MOST_S = 1e8  # three years; no system waits for longer than its clock counts


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `draftpick serve`."""

    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]POLICY",
            help="A folder, runs:/ID/policy or models:/NAME@alias instead of the shipped policy. "
            "With NAME=, requests can ask for it by name. Repeatable.",
        ),
    ] = None
    embedder: Embedder = None
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPICK_API_KEY",
            metavar="KEY",
            help="Require this key of clients. Prefer the environment variable: command lines are "
            "visible to other users.",
        ),
    ] = field(default=None, repr=False)
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Allow browser requests from this origin, such as https://chat.example; * allows "
            "any. Repeatable. The server's own page needs none.",
        ),
    ] = None
    temperature: Annotated[float, typer.Option(help="Temperature of requests that give none.")] = (
        0.0
    )
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024
    slots: Annotated[
        int, typer.Option(min=1, help="Most answers at once; a native backend batches them.")
    ] = 8
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Make every answer independent of the others in its batch; slower under load.",
        ),
    ] = False
    queue: Annotated[
        int, typer.Option(min=1, help="Most waiting requests; further ones get 429.")
    ] = 64
    timeout: Annotated[
        float,
        typer.Option(min=0.001, max=MOST_S, help="Seconds for one request, including its wait."),
    ] = 600.0
    max_body: Annotated[int, typer.Option(min=1, help="Longest request, in bytes.")] = 2**21
    drain: Annotated[
        float,
        typer.Option(min=0, max=MOST_S, help="Seconds that answers have to finish after SIGTERM."),
    ] = 30.0
    warm_up: Annotated[
        bool,
        typer.Option(
            "--warm-up/--no-warm-up", help="Load every arm's drafter before the first request."
        ),
    ] = True
    learn: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Update the default policy after every answer, and save it here. It must be an "
            "online policy, such as thompson.",
        ),
    ] = None
    isolate_by: Annotated[
        str,
        typer.Option(
            metavar="key|none|HEADER",
            help="Who is kept apart: kept prefixes and earlier answers (kind: suffix) are used for "
            "the same API key, for anyone, or for the same value of this header.",
        ),
    ] = "key"
    earlier_tokens: Annotated[
        int,
        typer.Option(
            min=0, max=2**26, help="Most tokens of earlier answers to keep for these arms; 0: none."
        ),
    ] = 2**18
    earlier_age: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=MOST_S,
            metavar="HOURS",
            help="Forget earlier answers after this many hours.",
        ),
    ] = None
    prefix_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Most memory for what was read of prompts, such as 1GB, so that later prompts of "
            "the same user that begin alike are not read again; 0: none, and conversations do not "
            "stay at one endpoint. Default: a 16th of what is free.",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send each request as an OpenTelemetry span to this collector, such as "
            "http://localhost:4318/v1/traces. Default: by OTEL_EXPORTER_OTLP_ENDPOINT, or none.",
        ),
    ] = None
    log: LogOptions
    options: EngineRecord
