"""`draftpick align`: train a drafter or an exit adapter on what the target writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decoders.common.errors import DraftpickError
from decoders.common.terminal import progress
from decoders.options import EngineOptions

from ..commands.options import ChatTemplate, Context, Device, Target, names_in
from ..tabulated import Tabulated, show_tables

if TYPE_CHECKING:
    from collect.align.config import AlignConfig
    from collect.align.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class AlignOptions:
    """The options of `draftpick align`."""

    out: Annotated[Path, typer.Option(help="Folder for checkpoints and the finished model/.")]
    kind: Annotated[
        str,
        typer.Option(
            help="What to train. drafter: a small model. exit: an early-exit adapter. recurrent: a "
            "recurrent cell over the target's last states. eagle3: an EAGLE-3 head over its states "
            "after three layers, which vLLM loads too. bigram: Max-Gram's bigram table."
        ),
    ] = "drafter"
    queries: Annotated[
        list[Path] | None, typer.Option(help="Query files (JSON lines). Default: those that ship.")
    ] = None
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            help="The target's answers to them (JSON lines: id, output or ids, ended). Default: "
            "the target answers first, into OUT/outputs.jsonl."
        ),
    ] = None
    start: Annotated[
        Path | None,
        typer.Option(
            help="A drafter to fine-tune, a folder or one that ships, or a JSON file with sizes of "
            "a Llama."
        ),
    ] = None
    tasks: Annotated[str, typer.Option(help="Only these tasks, comma-separated.")] = ""
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Size of the draft vocabulary, the most frequent tokens. Default: 8192; "
            "recurrent and eagle3: 6144.",
        ),
    ] = None
    exit_layer: Annotated[
        int, typer.Option(min=1, help="Decoder layers of the target below the exit.")
    ] = 4
    blocks: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Trained layers above the exit (default 1; 0 for encoder-decoders), or gated "
            "blocks of a recurrent drafter (default 2).",
        ),
    ] = None
    width: Annotated[
        int, typer.Option(min=1, help="Width of a recurrent drafter's gated blocks.")
    ] = 1152
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = 4
    minutes: Annotated[
        float | None, typer.Option(help="Train for this time instead of --epochs.")
    ] = None
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens per step, padding included.")] = (
        2048
    )
    lr: Annotated[
        float, typer.Option(help="Peak learning rate of embeddings and norms (AdamW).")
    ] = 3e-3
    matrix_lr: Annotated[float, typer.Option(help="Peak learning rate of matrices (Muon).")] = 2e-2
    max_prompt: Annotated[
        int, typer.Option(min=1, help="Prompt tokens kept, counted from the end.")
    ] = 320
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest answer of the target, in tokens.")
    ] = 256
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the examples' order and the initial weights.")
    ] = 0
    target: Target = EngineOptions.target
    device: Device = EngineOptions.device
    context: Context = EngineOptions.context
    chat_template: ChatTemplate = EngineOptions.chat_template


def align(options: AlignOptions) -> None:
    """Train a drafter to predict what the target writes. The folder OUT/model can then be an arm's
    drafter; its card gives the acceptance on held-out answers. The same command resumes a run that
    was stopped.

    \b
    Examples:
      draftpick align --out drafts/general --minutes 30
      draftpick align --out drafts/math --start drafts/general/model --tasks math
      draftpick align --out drafts/exit4 --kind exit --exit-layer 4 --minutes 20
      draftpick align --out drafts/cell --kind recurrent --minutes 20
    """
    config, recipe = plan(options)
    acceptance = run(config, recipe, options.context)
    title = "Held-out acceptance (share of the target's tokens predicted)"
    rows = [[name, f"{share:.3f}"] for name, share in acceptance.items()]
    show_tables([Tabulated(title, ["task", "acceptance"], rows)])
    typer.echo(f"model: {options.out / 'model'}")


def plan(asked: AlignOptions) -> tuple[AlignConfig, Recipe]:
    """Plan what the command's options train on what, and how; reads nothing but the names of the
    shipped queries. Without `outputs` the target answers first.

    Raises DraftpickError for numbers out of range.
    """
    from collect.align.config import ON_STATES, AlignConfig
    from collect.align.recipe import Recipe
    from collect.align.write import default_queries
    from decoders.zoo.catalogue import shipped_folders

    above = {
        "--epochs": asked.epochs,
        "--minutes": asked.minutes,
        "--lr": asked.lr,
        "--matrix-lr": asked.matrix_lr,
    }
    for option, value in above.items():
        if value is not None and not 0 < value < math.inf:
            raise DraftpickError(f"{option} must be a number above 0, not {value:g}")
    vocab_size, blocks = asked.vocab_size, asked.blocks
    if vocab_size is None:
        vocab_size = 6144 if asked.kind in ON_STATES else 8192
    if blocks is None:
        blocks = 2 if asked.kind == "recurrent" else 1
    config = AlignConfig(
        kind=asked.kind,
        out=asked.out,
        queries=tuple(asked.queries or default_queries()),
        outputs=tuple(asked.outputs or ()),
        target=asked.target,
        device=asked.device,
        start=asked.start and shipped_folders().get(str(asked.start), asked.start),
        tasks=tuple(names_in(asked.tasks)) or None,
        vocab_size=vocab_size,
        max_prompt=asked.max_prompt,
        max_answer=asked.max_new_tokens,
        exit_layer=asked.exit_layer,
        blocks=blocks,
        width=asked.width,
        chat_template=asked.chat_template,
    )
    recipe = Recipe(
        asked.epochs,
        asked.minutes,
        asked.batch_tokens,
        asked.lr,
        asked.matrix_lr,
        seed=asked.seed,
    )
    return config, recipe


def run(config: AlignConfig, recipe: Recipe, context: int | None) -> dict[str, float]:
    """Let the target answer where no outputs are given, train, and write the model; the held-out
    acceptance by task.

    context: most tokens of a prompt with the target's answer, None for the model's own.
    """
    from collect.align.config import check
    from decoders.common.locks import sole_writer

    check(config)  # before the target writes for hours, and before slow imports
    from collect.align.run import align as train
    from collect.align.write import write_outputs

    with sole_writer(config.out):
        if not config.outputs:
            options = EngineOptions(
                config.target,
                dtype="bfloat16",
                device=config.device,
                context=context,
                chat_template=config.chat_template,
            )
            wanted = config.queries, config.out, options, config.max_answer, config.tasks
            config = replace(config, outputs=(write_outputs(*wanted),))
        with progress("aligning", "%") as tick:
            return train(config, recipe, shown_by(tick))


def shown_by(tick: Callable[..., None]) -> Callable[[dict[str, float]], None]:
    """Shows on a bar what a training reports."""

    def told(now: dict[str, float]) -> None:
        figures = f"loss {now['loss']:.3f}, {now['tokens_per_s']:.0f} tok/s"
        tick(100 * now["progress"], 100, figures)

    return told
