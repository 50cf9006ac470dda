"""Rows of a report that are an engine's own drafting, each with the options that turn it on."""

from __future__ import annotations

import json
from typing import Any, Literal

from decoders.arms import ArmRecipe

from .llama_cpp import MapKey, Mod, Simple
from .rule import Rule
from .vllm import Ngram, Suffix


class EngineRecipe(ArmRecipe):
    """Replayed along texts alone; no loop of ours runs it.

    engine: as `draftpick export` calls it.
    rule: of RULES. settings: its arguments.
    longest: tokens of a draft.
    options: to be added to the server's command line.
    """

    kind: Literal["engine"] = "engine"
    engine: str
    rule: str
    settings: tuple[int, ...]
    longest: int
    options: tuple[str, ...]

    @property
    def lossless(self) -> bool:
        return True

    @property
    def reads_earlier(self) -> bool:
        return self.rule in SHARED

    def made(self) -> Rule:
        """The rule, which has seen nothing yet."""
        made: Rule = RULES[self.rule](*self.settings)
        return made


RULES: dict[str, type[Any]] = {
    "ngram": Ngram,
    "suffix": Suffix,
    "ngram-simple": Simple,
    "ngram-map-k": MapKey,
    "ngram-mod": Mod,
}
SHARED = ("suffix", "ngram-mod")  # that draw on other answers


# Each engine's own settings where it has some, and shorter drafts, which small batches of a dense
# model bear better; the last number is the tokens of a draft.
ROWS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("vllm-ngram-2", "ngram", (2, 5, 2)),
    ("vllm-ngram-4", "ngram", (2, 5, 4)),
    ("vllm-ngram-8", "ngram", (2, 5, 8)),
    ("vllm-ngram8-8", "ngram", (8, 16, 8)),
    ("vllm-ngram8-16", "ngram", (8, 16, 16)),
    ("vllm-suffix-24", "suffix", (24,)),
    ("llama-simple-8", "ngram-simple", (4, 8)),
    ("llama-simple-16", "ngram-simple", (8, 16)),
    ("llama-simple-48", "ngram-simple", (12, 48)),
    ("llama-map-k-8", "ngram-map-k", (4, 8)),
    ("llama-map-k-48", "ngram-map-k", (12, 48)),
    ("llama-mod-16", "ngram-mod", (16, 2, 16)),
    ("llama-mod-64", "ngram-mod", (24, 48, 64)),
)
SETTINGS = {  # what vLLM calls a rule's numbers, and the ends of llama.cpp's options
    "ngram": ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens"),
    "suffix": ("num_speculative_tokens",),
    "ngram-simple": ("size-n", "size-m"),
    "ngram-map-k": ("size-n", "size-m"),
    "ngram-mod": ("n-match", "n-min", "n-max"),
}


def engine_rows() -> dict[str, EngineRecipe]:
    """The recipes of ROWS, by their names: ENGINE-KIND-LENGTH."""
    return {name: _recipe(name, rule, settings) for name, rule, settings in ROWS}


def _recipe(name: str, rule: str, settings: tuple[int, ...]) -> EngineRecipe:
    named = dict(zip(SETTINGS[rule], settings, strict=True))
    if name.startswith("vllm"):
        config = {"method": rule, **dict(reversed(named.items()))}
        engine, options = "vllm", ["--speculative-config", json.dumps(config)]
    else:
        words = [word for end, n in named.items() for word in (f"--spec-{rule}-{end}", str(n))]
        engine, options = "llama.cpp", ["--spec-type", rule, *words]
    return EngineRecipe(
        name=name,
        engine=engine,
        rule=rule,
        settings=settings,
        longest=settings[-1],
        options=tuple(options),
    )
