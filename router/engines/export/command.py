"""`draftpick export`: arms, or draft lengths by load, in the words of another engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoders.common.errors import DraftpickError

from ...commands.options import AsJson, Config
from .engines import MODEL, Exported, command_line, engine_named, exported

if TYPE_CHECKING:
    from .schedules import Scheduled


def export(
    engine: Annotated[str, typer.Argument(help="vllm, sglang, tensorrt-llm or llama.cpp.")],
    config: Config = None,
    model: Annotated[
        str, typer.Option(help="The target in the engine's words: a hub id, folder or file.")
    ] = MODEL,
    rewards: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="In place of the arms: draft lengths by load, learnt from what "
            "`draftpick collect --at-once` wrote.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="Reward of that collection to maximise: {collect.REWARDS}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the arms as options of vLLM, SGLang, TensorRT-LLM or llama.cpp: a command that starts a
    server for each, or why there is none. With --rewards, draft lengths by load are learnt from a
    collection instead.

    \b
    Examples:
      draftpick export vllm
      draftpick export sglang --config arms.yaml --model Qwen/Qwen3-8B
      draftpick export llama.cpp --config arms.yaml --model qwen3-8b.gguf --json
      draftpick export vllm --rewards rewards
    """
    from collect import rewards as known
    from decoders.arms import arms_made_for, load_arms

    from .schedules import scheduled

    words = engine_named(engine).command
    if reward is not None:
        known.get(reward)
        if rewards is None:
            raise DraftpickError("--reward is a collection's; name one with --rewards")
    if rewards is not None:
        if config is not None:
            raise DraftpickError("with --rewards the arms are the collection's; leave --config out")
        _print_schedules(words, scheduled(engine, rewards, reward), model, as_json)
        return
    arms_file = arms_made_for(model) if config is None else config
    found, without = exported(engine, load_arms(arms_file))
    if as_json:
        arms = {name: _record(words, one, model) for name, one in found.items()}
        print(json.dumps({"arms": arms, "without": without}, indent=2, ensure_ascii=False))
        return
    for name, one in found.items():
        print(f"# {name}")
        _print_differing(one)
        print(command_line(words, one, model))
    for name, reason in without.items():
        print(f"# {name}: no counterpart: {reason}")


def _print_schedules(
    words: tuple[str, ...], found: list[Scheduled], model: str, as_json: bool
) -> None:
    if as_json:
        told = [
            {
                "arms": one.arms,
                "ranges": one.found.ranges,
                "reward": one.reward,
                "verdict": one.found.verdict,
                **_record(words, one.options, model),
            }
            for one in found
        ]
        print(json.dumps({"schedules": told}, indent=2, ensure_ascii=False))
        return
    for one in found:
        print(f"# {', '.join(one.arms)}, by requests running, for the reward {one.reward}")
        print(f"#   {one.found.verdict}")
        print("#   By the collection's passes, not the engine's: time it there.")
        _print_differing(one.options)
        print(command_line(words, one.options, model))


def _print_differing(one: Exported) -> None:
    for sentence in one.differs:
        print(f"#   differs: {sentence}")


def _record(words: tuple[str, ...], one: Exported, model: str) -> dict[str, Any]:
    named = {"name": one.file[0], "text": one.file[1]} if one.file else None
    return {
        "command": command_line(words, one, model),
        "options": list(one.options),
        "differs": list(one.differs),
        "file": named,
    }
