"""Options that several commands share, each declared once, and the records that they make."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions

Target = Annotated[
    str,
    typer.Option(help="Target model: a known name, hub id, folder or .gguf file."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="YAML", help="File that declares the arms. Default: those that ship for the target."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most tokens of a prompt and its answer. Fewer save memory. Default: the model's own; "
        "T5: 1024.",
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|TEXT", help="Jinja chat template, or its file. Default: the tokenizer's."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def engine_options(
    target: Target = EngineOptions.target,
    dtype: Annotated[
        str,
        typer.Option(
            help="Weights: bfloat16, float32, int8, int4, file or auto. file: a GGUF file's own "
            "blocks. On a CPU, auto is file of a GGUF file, and int4 if the model's own weights "
            "have 4 bits; else bfloat16."
        ),
    ] = EngineOptions.dtype,
    device: Device = EngineOptions.device,
    backend: Annotated[
        str,
        typer.Option(
            help="{decoders.BACKENDS}. auto: the fastest that runs the model. hf: transformers. "
            "compiled: native with C++ kernels, on a CPU. graphs, fused: native with CUDA graphs, "
            "of PyTorch's or of fused kernels."
        ),
    ] = EngineOptions.backend,
    context: Context = EngineOptions.context,
    chat_template: ChatTemplate = EngineOptions.chat_template,
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Keys and values of the target: auto, or int8 on the native backend on a CPU, "
            "which take about half the memory and change answers a little."
        ),
    ] = EngineOptions.kv_dtype,
    config: Config = None,
) -> EngineOptions:
    """Which model answers, and how it runs."""
    return EngineOptions(
        target=target,
        arms=config,
        dtype=dtype,
        device=device,
        backend=backend,
        context=context,
        chat_template=chat_template,
        kv_dtype=kv_dtype,
    )


def temperatures_in(listed: str) -> tuple[float, ...]:
    """Temperatures given as `0,0.7`; raises DraftpickError for what is no number."""
    try:
        found = tuple(float(each) for each in names_in(listed))
    except ValueError:
        found = ()
    if not found:
        raise DraftpickError(
            f"temperatures are numbers with commas between, for instance 0,0.7,1, not {listed!r}"
        )
    return found


def at_once_in(listed: str) -> tuple[int, ...]:
    """Numbers of answers given as `1,8`; raises DraftpickError for what is none."""
    named = names_in(listed)
    if not named or not all(each.isdecimal() and int(each) for each in named):
        raise DraftpickError(
            "answers at once are whole numbers from 1 on with commas between, for instance 1,8,32, "
            f"not {listed!r}"
        )
    return tuple(map(int, named))


def names_in(listed: str | Iterable[str] | None) -> list[str]:
    """Names given as `a,b` or by repeating the option."""
    parts = [listed] if isinstance(listed, str) else listed or ()
    return [name.strip() for part in parts for name in part.split(",") if name.strip()]
