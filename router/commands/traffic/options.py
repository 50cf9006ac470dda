"""What `draftpick headroom --from-logs` is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError

FromLogs = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Instead of REWARDS: logs with prompts and answers, of any engine. JSON lines "
        "(request and response, batch API, chats), or what vLLM or llama.cpp print. Repeatable.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="With --from-logs: the model's tokenizer, a folder, .gguf file or hub id."),
]
LogTarget = Annotated[
    str | None,
    typer.Option(
        help="With --from-logs: the model; its tokenizer is used, and its passes are timed here."
    ),
]
CostsFile = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="JSON",
        help="With --from-logs: what passes cost, from `draftpick costs`, or the manifest.json of "
        "a collection.",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(help="With --from-logs: also a draft model, by name, folder, file or hub id."),
]
DraftCost = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="With --costs: what a token of the draft model costs, in passes of the target.",
    ),
]
ArmsFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="YAML",
        help="With --from-logs: replay the arms of this file. Default: copies and suffixes of "
        "several lengths.",
    ),
]
Clusters = Annotated[
    int,
    typer.Option(min=1, help="With --from-logs: kinds of work to look for where none is named."),
]
Limit = Annotated[
    int,
    typer.Option(
        min=1, help="With --from-logs: answers to replay, evenly spaced; suffixes see all of them."
    ),
]


@dataclass(frozen=True)
class TrafficOptions:
    """As the options of the command; `files` is empty where a collection is read.

    Raises DraftpickError for options that do not go together.
    """

    files: tuple[Path, ...] = ()
    tokenizer: str | None = None
    target: str | None = None
    costs: Path | None = None
    draft_model: str | None = None
    draft_cost: float | None = None
    config: Path | None = None
    clusters: int = 6
    limit: int = 1000

    def __post_init__(self) -> None:
        if not self.files:
            given = {
                "--tokenizer": self.tokenizer,
                "--target": self.target,
                "--costs": self.costs,
                "--draft-model": self.draft_model,
                "--draft-cost": self.draft_cost,
                "--config": self.config,
            }
            if idle := [name for name, value in given.items() if value is not None]:
                raise DraftpickError(f"{', '.join(idle)} need --from-logs FILE")
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
            raise DraftpickError("--draft-model goes with the arms that --config replaces; name it "
                                 "in the file")  # fmt: skip
        if self.draft_cost is not None:
            if not 0 < self.draft_cost < 10:
                raise DraftpickError(
                    "--draft-cost is a share of a pass of the target, such as 0.1, not "
                    f"{self.draft_cost:g}"
                )
            if self.costs is None:
                raise DraftpickError("--draft-cost goes with --costs FILE")


def traffic_options(
    from_logs: FromLogs = None,
    tokenizer: Tokenizer = None,
    target: LogTarget = None,
    costs: CostsFile = None,
    draft_model: DraftModel = None,
    draft_cost: DraftCost = None,
    config: ArmsFile = None,
    clusters: Clusters = TrafficOptions.clusters,
    limit: Limit = TrafficOptions.limit,
) -> TrafficOptions:
    """Whose traffic is replayed, and by what it is priced."""
    return TrafficOptions(
        tuple(from_logs or ()),
        tokenizer,
        target,
        costs,
        draft_model,
        draft_cost,
        config,
        clusters,
        limit,
    )
