"""Carry out a plan of `draftpick align`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from collect.align.config import check
from decoders.options import EngineOptions

from .plan import AlignPlan


def run(plan: AlignPlan, progress: AbstractContextManager[Callable[..., None]]) -> dict[str, float]:
    """Let the target answer where no outputs are given, train, and write the model; the held-out
    acceptance by task.

    progress: as of `decoders.common.terminal.progress`; entered when training begins.
    """
    config = plan.config
    check(config)  # before the target writes for hours, and before slow imports
    from collect.align.run import align
    from collect.align.write import write_outputs

    if not config.outputs:
        options = EngineOptions(
            config.target,
            dtype="bfloat16",
            device=config.device,
            context=plan.context,
            chat_template=config.chat_template,
        )
        made = write_outputs(config.queries, config.out, options, config.max_answer, config.tasks)
        config = replace(config, outputs=(made,))
    with progress as tick:

        def show(now: dict[str, float]) -> None:
            figures = f"loss {now['loss']:.3f}, {now['tokens_per_s']:.0f} tok/s"
            tick(100 * now["progress"], 100, figures)

        return align(config, plan.recipe, show)
