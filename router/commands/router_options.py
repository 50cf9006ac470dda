"""Options that only the router's commands share; the others are in `router/commands/options.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collect.table_options import TableOptions
from decoders.common.errors import DraftpickError
from decoders.records import Request, Sampling

from .options import at_once_in, names_in, temperatures_in

if TYPE_CHECKING:
    from ..logs.writer import DecisionLog

Policy = Annotated[
    str | None,
    typer.Option(
        help="A folder, runs:/ID/policy or models:/NAME@alias. Default: the shipped policy."
    ),
]
Embedder = Annotated[
    str | None,
    typer.Option(help="Folder or hub id of the policy's embedder, if it has moved since training."),
]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow store. Default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."),
]


@dataclass(frozen=True)
class LogOptions:
    """Where decisions are logged, and what is kept besides the numbers.

    folder: None logs nothing.
    """

    folder: Path | None = None
    embeddings: bool = False
    text: bool = False

    def __post_init__(self) -> None:
        if self.folder is None and (self.embeddings or self.text):
            raise DraftpickError("--log-embeddings and --log-text need --log FOLDER")

    def open(self) -> DecisionLog | None:
        """Raises DraftpickError where the folder cannot be one."""
        from ..logs.writer import DecisionLog

        if self.folder is None:
            return None
        return DecisionLog(self.folder, embeddings=self.embeddings, text=self.text)


def log_options(
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Log every decision here, for `draftpick evaluate` and `learn`."
        ),
    ] = None,
    log_embeddings: Annotated[
        bool,
        typer.Option(
            "--log-embeddings",
            help="Also log embeddings, which evaluating and learning need. A prompt can be guessed "
            "from its embedding.",
        ),
    ] = False,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Also log the last user message and the answer.")
    ] = False,
) -> LogOptions:
    """The log of decisions, checked before a model is loaded."""
    return LogOptions(log, log_embeddings, log_text)


def answer_request(
    max_new_tokens: MaxNewTokens = Request.max_new_tokens,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 is greedy.")
    ] = Sampling.temperature,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: mass of the kept tokens; 1 keeps all.")
    ] = Sampling.top_p,
    top_k: Annotated[
        int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")
    ] = Sampling.top_k,
) -> Request:
    """How long an answer may be and how its tokens are chosen, checked before a model is loaded."""
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    return Request(max_new_tokens, sampling)


def table_options(
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What embeds the queries, as in `draftpick collect`. Default: the collection's "
            "own embedder. Missing embeddings are computed once and stored there.",
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Only these arms. Default: all collected."),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(
            metavar="T,T",
            help="Only these temperatures. Default: all collected. Rewards of similarity or "
            "measured time exist at 0 only.",
        ),
    ] = None,
    at_once: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Only these numbers of concurrent answers. Default: all collected. Rewards of "
            "similarity or measured time exist at 1 only.",
        ),
    ] = None,
    repetitive: Annotated[
        str,
        typer.Option(
            help="all, or without: leave out answers that degenerate into repetition, where arms "
            "that copy look too fast."
        ),
    ] = "all",
) -> TableOptions:
    """Which rows of a collection are read, and what embeds its queries."""
    return TableOptions(
        arms=names_in(arms) or None,
        embedder=embedder,
        temperatures=None if temperatures is None else temperatures_in(temperatures),
        at_once=None if at_once is None else at_once_in(at_once),
        repetitive=repetitive,
    )
