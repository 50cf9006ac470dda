"""What `draftpick headroom --from-logs` is given."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError


@dataclass(frozen=True)
class TrafficOptions:
    """Whose traffic is replayed, and by what it is priced: options of the command. Without logs a
    collection is read.

    Raises DraftpickError for options that do not go together.
    """

    from_logs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Instead of REWARDS: logs with prompts and answers: JSON lines with request and "
            "response, or what vLLM or llama.cpp print. Repeatable.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="With --from-logs: the model's tokenizer, a folder, .gguf file or hub id."
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            help="With --from-logs: the model; its tokenizer is used, and its passes are timed "
            "here."
        ),
    ] = None
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="JSON",
            help="With --from-logs: what passes cost, from `draftpick costs`, or the "
            "manifest.json of a collection.",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option(help="With --from-logs: also a draft model, by name, folder, file or hub id."),
    ] = None
    draft_cost: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --costs: what a token of the draft model costs, in passes of the target.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="YAML",
            help="With --from-logs: replay the arms of this file. Default: copies and suffixes, "
            "draftpick's, vLLM's and llama.cpp's, of several lengths.",
        ),
    ] = None
    clusters: Annotated[
        int,
        typer.Option(
            min=1, help="With --from-logs: kinds of work to look for where none is named."
        ),
    ] = 6
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --from-logs: answers to replay, evenly spaced; suffixes see all of them.",
        ),
    ] = 1000

    def __post_init__(self) -> None:
        if not self.from_logs:
            others = [each for each in fields(self) if each.name != "from_logs"]
            idle = [each.name for each in others if getattr(self, each.name) != each.default]
            if idle:
                named = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
                raise DraftpickError(f"{named} need --from-logs FILE")
            return
        if (self.tokenizer is None) == (self.target is None):
            raise DraftpickError(
                "--from-logs needs the tokenizer of the model that answered: give either "
                "--tokenizer FOLDER, or --target MODEL, whose passes are then timed here"
            )
        if self.target is not None and self.costs is not None:
            raise DraftpickError(
                "--target times its passes here, --costs has them from elsewhere; with --costs "
                "give --tokenizer"
            )
        if self.draft_model is not None and not self.draft_model.strip():
            raise DraftpickError("--draft-model is empty; name a model, folder or file")
        if self.draft_model is not None and self.config is not None:
            raise DraftpickError(
                "--draft-model goes with the arms that --config replaces; name it in the file"
            )
        if self.draft_cost is not None:
            if not 0 < self.draft_cost < 10:
                raise DraftpickError(
                    "--draft-cost is a share of a pass of the target, such as 0.1, not "
                    f"{self.draft_cost:g}"
                )
            if self.costs is None:
                raise DraftpickError("--draft-cost goes with --costs FILE")
