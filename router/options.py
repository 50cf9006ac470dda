"""Options that only the router's commands share; the others are in `collect/options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decoders.records import Request, Sampling

Policy = Annotated[
    str | None,
    typer.Option(help="A folder, runs:/ID/policy or models:/NAME@alias. Default: the shipped one."),
]
Embedder = Annotated[
    str | None,
    typer.Option(
        help="The policy's embedder where it lies now: a folder or hub id. Default: where it lay "
        "when the policy was trained."
    ),
]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus sampling; 1 keeps all.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")]
Questions = Annotated[
    list[Path] | None,
    typer.Option(help="Spec-Bench's question.jsonl or query files. Default: the shipped test."),
]
Limit = Annotated[int | None, typer.Option(help="Questions a task, evenly chosen.")]
Tasks = Annotated[list[str] | None, typer.Option(help="Only these tasks: a,b,c or repeated.")]
Seed = Annotated[int, typer.Option(help="For the choice and order of questions and arms.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow store. Default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."),
]
Experiment = Annotated[str, typer.Option(help="MLflow experiment to log into.")]


def answer_request(
    max_new_tokens: MaxNewTokens = Request.max_new_tokens,
    temperature: Temperature = Sampling.temperature,
    top_p: TopP = Sampling.top_p,
    top_k: TopK = Sampling.top_k,
) -> Request:
    """How long an answer may be and how its tokens are chosen, checked before a model is loaded."""
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
    return Request(max_new_tokens, sampling)
