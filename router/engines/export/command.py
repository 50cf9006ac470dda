"""`draftpick export`: arms in the words of another engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ...commands.options import AsJson, Config
from ...tabulated import print_json
from .engines import MODEL, command_line, engine_named, exported


def export(
    engine: Annotated[str, typer.Argument(help="vllm, sglang or llama.cpp.")],
    config: Config = None,
    model: Annotated[
        str, typer.Option(help="The target in the engine's words: a hub id, folder or file.")
    ] = MODEL,
    as_json: AsJson = False,
) -> None:
    """Write the arms as options of vLLM, SGLang or llama.cpp: a command that starts a
    server for each, or why there is none.

    \b
    Examples:
      draftpick export vllm
      draftpick export sglang --config arms.yaml --model Qwen/Qwen3-8B
      draftpick export llama.cpp --config arms.yaml --model qwen3-8b.gguf --json
    """
    from decoders.arms import arms_made_for, load_arms

    words = engine_named(engine).command
    arms_file = arms_made_for(model) if config is None else config
    found, without = exported(engine, load_arms(arms_file))
    if as_json:
        arms = {
            name: {"command": command_line(words, one, model)} | asdict(one)
            for name, one in found.items()
        }
        print_json({"arms": arms, "without": without})
        return
    for name, one in found.items():
        print(f"# {name}")
        for sentence in one.differs:
            print(f"#   differs: {sentence}")
        print(command_line(words, one, model))
    for name, reason in without.items():
        print(f"# {name}: no counterpart: {reason}")
