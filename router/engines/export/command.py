"""`draftpick export`: arms in the words of another engine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ...commands.options import AsJson, Config
from .engines import MODEL, Exported, command_line, engine_named, exported


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
        arms = {name: _record(words, one, model) for name, one in found.items()}
        print(json.dumps({"arms": arms, "without": without}, indent=2, ensure_ascii=False))
        return
    for name, one in found.items():
        print(f"# {name}")
        for sentence in one.differs:
            print(f"#   differs: {sentence}")
        print(command_line(words, one, model))
    for name, reason in without.items():
        print(f"# {name}: no counterpart: {reason}")


def _record(words: tuple[str, ...], one: Exported, model: str) -> dict[str, Any]:
    return {
        "command": command_line(words, one, model),
        "options": list(one.options),
        "differs": list(one.differs),
    }
