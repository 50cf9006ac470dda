"""The options of loading an engine, as one record; the defaults are here and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from .common import plugins
from .zoo.catalogue import TARGET

if TYPE_CHECKING:
    from .arms import ArmRecipe

Arms: TypeAlias = "str | Path | Mapping[str, ArmRecipe] | None"


@dataclass(frozen=True)
class EngineOptions:
    """Which model answers, with which arms, and how it runs.

    target: a known name (`draftpick models`), a hub id, a transformers folder or a .gguf file.
    arms: a YAML file, recipes by name, or None for those that ship: the target's own where it is
        known by name or by what its GGUF file says of itself, else the default target's.
    dtype: auto, bfloat16, float16, float32 (exact), int8 or int4 (of the weights), or file (a GGUF
        file's own blocks). On an x86 CPU auto is file of a GGUF file, and int4 where the model's
        own weights have four bits, as the default target's; else bfloat16.
    device: auto (CUDA where there is one), cpu or cuda.
    backend: one of BACKENDS, such as native, hf, or auto, which takes what fits and is fastest.
    context: the most tokens of a prompt with its answer; None for all that the model holds (of a
        T5, 1024).
    chat_template: a Jinja template or its file, in place of the tokenizer's own. Another one makes
        other prompts, so that it is part of what the target is known by (`target_fingerprint`,
        `embedder`).
    kv_dtype: auto, or int8 for keys and values in 8 bits, on a CPU.
    """

    target: str = TARGET
    arms: Arms = None
    dtype: str = "auto"
    device: str = "auto"
    backend: str = "auto"
    context: int | None = None
    chat_template: str | None = None
    kv_dtype: str = "auto"

    @property
    def made_for(self) -> str | None:
        """The known name of a target whose own arms are taken; None where those are the default
        target's, or of the user's choice."""
        from .arms import arms_made_for

        path = None if self.arms is not None else arms_made_for(self.target)
        return None if path is None else path.stem

    def resolved(self) -> EngineOptions:
        """The same with its arms by name, read once; standard error says so where they are a
        target's own. Raises as `recipes`."""
        if isinstance(self.arms, Mapping):
            return self
        if self.made_for:
            print(f"arms that ship for {self.made_for} (--config names others)", file=sys.stderr)
        return replace(self, arms=self.recipes())

    def recipes(self, only: Sequence[str] | None = None) -> dict[str, ArmRecipe]:
        """The arms by name, or those of `only` in their order; plugins are imported first. Raises
        DraftpickError naming every mistake of a file, and NoSuchName."""
        from .arms import arms_made_for, choose, load_arms

        plugins.load()
        if self.arms is None or isinstance(self.arms, str | Path):
            path = arms_made_for(self.target) if self.arms is None else Path(self.arms)
            declared = load_arms(path)
        else:
            declared = dict(self.arms)
        return choose(declared, list(only) if only else None)
