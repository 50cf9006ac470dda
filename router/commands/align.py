"""`draftpick align`: train a drafter or an exit adapter on what the target writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from decoders.options import EngineOptions

from .options import ChatTemplate, Context, Device, Target, names_in


def align(
    out: Annotated[Path, typer.Option(help="Folder for checkpoints and the finished model/.")],
    kind: Annotated[
        str,
        typer.Option(
            help="drafter: a small model. exit: an adapter on the target's layers. recurrent: a "
            "cell over the target's last states. bigram: Max-Gram's table."
        ),
    ] = "drafter",
    queries: Annotated[
        list[Path] | None, typer.Option(help="Query files (JSON lines); default: those that ship.")
    ] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            help="What the target wrote for them (JSON lines: id, output or ids, ended). "
            "Without it the target writes first, into OUT/outputs.jsonl."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="A drafter folder to fine-tune, or a JSON file of Llama sizes."),
    ] = None,
    tasks: Annotated[str, typer.Option(help="Only these tasks, comma-separated.")] = "",
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Draft vocabulary: the commonest tokens; 8192, of a recurrent drafter 6144."
        ),
    ] = None,
    exit_layer: Annotated[int, typer.Option(help="Target (decoder) layers below the exit.")] = 4,
    blocks: Annotated[
        int | None,
        typer.Option(
            help="Trained layers above the exit, 1; none with --joint, nor on an encoder-decoder. "
            "Gated blocks of a recurrent drafter, 2."
        ),
    ] = None,
    width: Annotated[int, typer.Option(help="Of a recurrent drafter's gated blocks.")] = 1152,
    joint: Annotated[
        bool,
        typer.Option(
            "--joint",
            help="With --kind exit: train no adapter but all layers of a copy of the target, by "
            "the mean of the exit's and the last layer's losses (as BiLD does). OUT/target is the "
            "copy, a target of its own: drafters that were aligned with the first fit it less.",
        ),
    ] = False,
    every_layer: Annotated[
        bool,
        typer.Option(
            "--every-layer",
            help="With --joint: lower the losses of all layers, the i-th weighed by i, as CALM's "
            "targets are trained, in place of the exit's and the last.",
        ),
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the examples.")] = 4,
    minutes: Annotated[
        float | None, typer.Option(help="Train so long instead; the schedule fits it.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Padded tokens a step.")] = 2048,
    lr: Annotated[
        float | None,
        typer.Option(help="Peak rate for embeddings and norms (AdamW): 3e-3, with --joint 1e-4."),
    ] = None,
    matrix_lr: Annotated[
        float | None, typer.Option(help="Peak rate for matrices (Muon): 2e-2, with --joint 5e-4.")
    ] = None,
    max_prompt: Annotated[int, typer.Option(help="Prompt tokens kept, from the end.")] = 320,
    max_new_tokens: Annotated[int, typer.Option(help="Answer tokens the target writes.")] = 256,
    seed: Annotated[int, typer.Option(help="Order of examples and initial weights.")] = 0,
    target: Target = EngineOptions.target,
    device: Device = EngineOptions.device,
    context: Context = EngineOptions.context,
    chat_template: ChatTemplate = EngineOptions.chat_template,
) -> None:
    """Train a drafter to predict what the target writes (prediction alignment).

    Re-run the same command to resume a run that was stopped. The finished model is OUT/model, with
    a card that says how well it predicts held-out answers: name that folder as the drafter of an
    arm. Examples:

    \b
      draftpick align --out drafts/general --minutes 30
      draftpick align --out drafts/math --start drafts/general/model --tasks math --minutes 10
      draftpick align --out drafts/exit4 --kind exit --exit-layer 4 --minutes 20
      draftpick align --out drafts/cell --kind recurrent --minutes 20
      draftpick align --out drafts/joint --kind exit --exit-layer 8 --joint --epochs 1
      draftpick align --out drafts/calm --kind exit --exit-layer 8 --joint --every-layer --epochs 1
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from collect.align.run import AlignConfig, check
    from collect.align.run import align as run
    from collect.align.trainer import Recipe
    from collect.align.write import default_queries, write_outputs
    from decoders.common.errors import DraftpickError
    from decoders.common.terminal import Lines

    recurrent = kind == "recurrent"
    if vocab_size is None:
        vocab_size = 6144 if recurrent else 8192
    if blocks is None:
        blocks = 2 if recurrent else 1
    files = tuple(queries or default_queries())
    chosen = tuple(names_in(tasks)) or None
    if epochs < 1 or (minutes is not None and minutes <= 0):
        raise DraftpickError("--epochs must be at least 1 and --minutes above 0")
    if start is not None and not start.exists():
        raise DraftpickError(f"no such drafter folder or sizes file: {start}")
    config = AlignConfig(
        kind=kind,
        out=out,
        queries=files,
        outputs=tuple(outputs or ()),
        target=target,
        device=device,
        start=start,
        tasks=chosen,
        vocab_size=vocab_size,
        max_prompt=max_prompt,
        max_answer=max_new_tokens,
        exit_layer=exit_layer,
        blocks=blocks,
        joint=joint,
        every_layer=every_layer,
        width=width,
        chat_template=chat_template,
    )
    check(config)  # before the target writes for hours
    if not outputs:
        options = EngineOptions(
            target, dtype="bfloat16", device=device, context=context, chat_template=chat_template
        )
        made = write_outputs(files, out, options, max_new_tokens, chosen)
        config = replace(config, outputs=(made,))
    rates = (1e-4, 5e-4) if joint else (Recipe.lr, Recipe.matrix_lr)  # a copy is not begun anew
    lr = rates[0] if lr is None else lr
    matrix_lr = rates[1] if matrix_lr is None else matrix_lr
    recipe = Recipe(epochs, minutes, batch_tokens, lr, matrix_lr, seed=seed)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, {task.fields[speed]:.0f} tok/s"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    lines = Lines(console, "aligning", "%")
    with bar:
        task = bar.add_task("aligning", total=1.0, loss=0.0, speed=0.0)

        def report(now: dict[str, float]) -> None:
            bar.update(task, completed=now["progress"], loss=now["loss"], speed=now["tokens_per_s"])
            if not console.is_terminal:
                figures = " ".join(f"{k}={v:.4g}" for k, v in now.items())
                lines(100 * now["progress"], 100, figures)

        acceptance = run(config, recipe, report)
    table = Table(title="held-out acceptance (share of the target's tokens predicted)")
    table.add_column("task")
    table.add_column("acceptance", justify="right")
    for name, share in acceptance.items():
        table.add_row(name, f"{share:.3f}")
    Console().print(table)
    typer.echo(f"model: {out / 'model'}" + (f"\ntarget: {out / 'target'}" if joint else ""))
