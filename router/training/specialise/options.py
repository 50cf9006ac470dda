"""Options of `draftpick specialise`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions

from ...commands.options import ChatTemplate, Device, Target, TrackingUri


@dataclass(frozen=True, kw_only=True)
class SpecialiseOptions:
    """The options of `draftpick specialise`."""

    out: Annotated[Path, typer.Option(help="Folder for all that is made; the command resumes.")]
    from_logs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Logs with prompts and answers, as `draftpick headroom --from-logs` reads them, "
            "or the folder of `draftpick serve --log FOLDER --log-text`. Repeatable.",
        ),
    ] = None
    queries: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Instead: query files, whose tasks are the groups."),
    ] = None
    held_out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="With --queries: the queries to judge by. Default: the last tenth of each "
            "group, 20 to 120 conversations.",
        ),
    ] = None
    minutes: Annotated[
        float,
        typer.Option(help="Minutes of training; six tenths teach all drafters all groups."),
    ] = 30.0
    write_minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes that the target writes answers for. Default: until all is answered."
        ),
    ] = None
    groups: Annotated[int, typer.Option(min=1, help="Most groups with a drafter of their own.")] = 4
    limit: Annotated[int | None, typer.Option(min=1, help="Most queries of a group.")] = None
    max_prompt: Annotated[
        int, typer.Option(min=1, help="Prompt tokens kept, counted from the end.")
    ] = 512
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer of the target, in tokens.")
    ] = 256
    temperatures: Annotated[
        str, typer.Option(metavar="T,T", help="Temperatures to judge at; 0 must be one of them.")
    ] = "0,0.7"
    at_once: Annotated[
        str,
        typer.Option(metavar="N,N", help="Numbers of concurrent answers that the policy learns."),
    ] = "1,8"
    timed: Annotated[
        int, typer.Option(min=0, help="Held-out queries of each group to time at the end.")
    ] = 8
    show_words: Annotated[
        bool,
        typer.Option(
            "--show-words", help="Call groups found in logs by words that stand in their prompts."
        ),
    ] = False
    target: Target = EngineOptions.target
    device: Device = EngineOptions.device
    chat_template: ChatTemplate = EngineOptions.chat_template
    tracking_uri: TrackingUri = None

    def __post_init__(self) -> None:
        if bool(self.from_logs) == bool(self.queries):
            raise DraftpickError("give either --from-logs FILE or --queries FILE")
        if self.held_out and not self.queries:
            raise DraftpickError("--held-out goes with --queries; of logs the last tenth is kept")
        for option, value in ("--minutes", self.minutes), ("--write-minutes", self.write_minutes):
            if value is not None and not 0 < value < math.inf:
                raise DraftpickError(f"{option} must be a number above 0, not {value:g}")

    @property
    def engine(self) -> EngineOptions:
        return EngineOptions(self.target, device=self.device, chat_template=self.chat_template)
