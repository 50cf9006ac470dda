"""Arms in the words of other engines, a module each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from decoders.common.errors import NoSuchName

from . import llama_cpp, sglang, tensorrt_llm, vllm
from .records import PLAIN, Engine, Exported, NoCounterpart, command_line

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe

ENGINES: dict[str, Engine] = {
    "vllm": vllm,
    "sglang": sglang,
    "tensorrt-llm": tensorrt_llm,
    "llama.cpp": llama_cpp,
}

__all__ = [
    "ENGINES",
    "Engine",
    "Exported",
    "NoCounterpart",
    "command_line",
    "engine_named",
    "exported",
]


def engine_named(name: str) -> Engine:
    """Raises NoSuchName for one that is not in ENGINES."""
    if name not in ENGINES:
        raise NoSuchName("engine", name, list(ENGINES))
    return ENGINES[name]


def exported(
    engine: str, arms: Mapping[str, ArmRecipe]
) -> tuple[dict[str, Exported], dict[str, str]]:
    """The arms that the engine has a counterpart for, and why each of the others has none.

    Raises NoSuchName for an engine that is not in ENGINES.
    """
    of_engine = engine_named(engine)
    found, without = dict[str, Exported](), dict[str, str]()
    for name, arm in arms.items():
        try:
            found[name] = PLAIN if arm.kind == "autoregressive" else of_engine.exported(arm)
        except NoCounterpart as reason:
            without[name] = str(reason)
    return found, without
