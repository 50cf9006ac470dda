"""The commands that the package cannot do without."""

from __future__ import annotations

from collections.abc import Callable

from decoders.common.plugins import watched

from .arms import arms
from .collect.command import collect
from .evaluate import evaluate
from .generate.command import generate
from .headroom import headroom
from .models import models
from .promote import promote
from .serve.command import serve
from .train.command import train

COMMANDS: dict[str, Callable[..., None]] = watched(
    "command",
    {
        "generate": generate,
        "serve": serve,
        "arms": arms,
        "models": models,
        "collect": collect,
        "headroom": headroom,
        "train": train,
        "evaluate": evaluate,
        "promote": promote,
    },
)
"""Name -> a function whose parameters are options, as Typer reads them. A parameter whose type is a
dataclass stands for its fields (`with_records`)."""
