"""What `draftpick align` is asked to do: its options and their defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions

from ..options import ChatTemplate, Context, Device, Target, names_in

if TYPE_CHECKING:
    from collect.align.config import AlignConfig
    from collect.align.recipe import Recipe


@dataclass(frozen=True)
class AlignPlan:
    """One alignment run, before a file is read or a model is loaded.

    config: what is trained on what; without `outputs` the target answers first.
    context: most tokens of a prompt with the target's answer, None for the model's own.
    """

    config: AlignConfig
    recipe: Recipe
    context: int | None


def plan(
    *,
    out: Annotated[Path, typer.Option(help="Folder for checkpoints and the finished model/.")],
    kind: Annotated[
        str,
        typer.Option(
            help="What to train. drafter: a small model. exit: an early-exit adapter. recurrent: a "
            "recurrent cell over the target's last states. eagle3: an EAGLE-3 head over its states "
            "after three layers, which vLLM loads too. bigram: Max-Gram's bigram table."
        ),
    ] = "drafter",
    queries: Annotated[
        list[Path] | None, typer.Option(help="Query files (JSON lines). Default: those that ship.")
    ] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            help="The target's answers to them (JSON lines: id, output or ids, ended). Default: "
            "the target answers first, into OUT/outputs.jsonl."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="A drafter folder to fine-tune, or a JSON file with sizes of a Llama."),
    ] = None,
    tasks: Annotated[str, typer.Option(help="Only these tasks, comma-separated.")] = "",
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Size of the draft vocabulary, the most frequent tokens. Default: 8192; "
            "recurrent and eagle3: 6144.",
        ),
    ] = None,
    exit_layer: Annotated[
        int, typer.Option(min=1, help="Decoder layers of the target below the exit.")
    ] = 4,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Trained layers above the exit (default 1; 0 for encoder-decoders), or gated "
            "blocks of a recurrent drafter (default 2).",
        ),
    ] = None,
    width: Annotated[
        int, typer.Option(min=1, help="Width of a recurrent drafter's gated blocks.")
    ] = 1152,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = 4,
    minutes: Annotated[
        float | None, typer.Option(help="Train for this time instead of --epochs.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens per step, padding included.")
    ] = 2048,
    lr: Annotated[
        float, typer.Option(help="Peak learning rate of embeddings and norms (AdamW).")
    ] = 3e-3,
    matrix_lr: Annotated[float, typer.Option(help="Peak learning rate of matrices (Muon).")] = 2e-2,
    max_prompt: Annotated[
        int, typer.Option(min=1, help="Prompt tokens kept, counted from the end.")
    ] = 320,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer of the target, in tokens.")
    ] = 256,
    seed: Annotated[
        int, typer.Option(help="Random seed of the examples' order and the initial weights.")
    ] = 0,
    target: Target = EngineOptions.target,
    device: Device = EngineOptions.device,
    context: Context = EngineOptions.context,
    chat_template: ChatTemplate = EngineOptions.chat_template,
) -> AlignPlan:
    """The plan of the command's options; reads nothing but the names of the shipped queries.

    Raises DraftpickError for numbers out of range.
    """
    from collect.align.config import ON_STATES, AlignConfig
    from collect.align.recipe import Recipe
    from collect.align.write import default_queries

    above = {"--epochs": epochs, "--minutes": minutes, "--lr": lr, "--matrix-lr": matrix_lr}
    for option, value in above.items():
        if value is not None and not 0 < value < math.inf:
            raise DraftpickError(f"{option} must be a number above 0, not {value:g}")
    recurrent = kind == "recurrent"
    if vocab_size is None:
        vocab_size = 6144 if kind in ON_STATES else 8192
    if blocks is None:
        blocks = 2 if recurrent else 1
    config = AlignConfig(
        kind=kind,
        out=out,
        queries=tuple(queries or default_queries()),
        outputs=tuple(outputs or ()),
        target=target,
        device=device,
        start=start,
        tasks=tuple(names_in(tasks)) or None,
        vocab_size=vocab_size,
        max_prompt=max_prompt,
        max_answer=max_new_tokens,
        exit_layer=exit_layer,
        blocks=blocks,
        width=width,
        chat_template=chat_template,
    )
    return AlignPlan(
        config, Recipe(epochs, minutes, batch_tokens, lr, matrix_lr, seed=seed), context
    )
