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


def engine_rows() -> dict[str, EngineRecipe]:
    """Each engine's own settings where it has some, and shorter drafts, which small batches of a
    dense model bear better; names are ENGINE-KIND-LENGTH."""
    made = [_vllm("vllm-ngram", 2, 5, k) for k in (2, 4, 8)]
    made += [_vllm("vllm-ngram8", 8, 16, k) for k in (8, 16)]
    suffix = {"method": "suffix", "num_speculative_tokens": 24}
    made.append(_row("vllm-suffix-24", "suffix", (24,), 24, *_json(suffix)))
    made += [_mapped("simple", n, m) for n, m in ((4, 8), (8, 16), (12, 48))]
    made += [_mapped("map-k", n, m) for n, m in ((4, 8), (12, 48))]
    made += [_mod(16, 2, 16), _mod(24, 48, 64)]
    return {each.name: each for each in made}


def _vllm(kind: str, shortest: int, longest: int, k: int) -> EngineRecipe:
    settings = {
        "method": "ngram",
        "num_speculative_tokens": k,
        "prompt_lookup_max": longest,
        "prompt_lookup_min": shortest,
    }
    return _row(f"{kind}-{k}", "ngram", (shortest, longest, k), k, *_json(settings))


def _json(settings: dict[str, Any]) -> tuple[str, str]:
    return "--speculative-config", json.dumps(settings)


def _mapped(kind: str, n: int, m: int) -> EngineRecipe:
    rule = f"ngram-{kind}"
    sizes = f"--spec-{rule}-size-n", str(n), f"--spec-{rule}-size-m", str(m)
    return _row(f"llama-{kind}-{m}", rule, (n, m), m, "--spec-type", rule, *sizes)


def _mod(match: int, least: int, most: int) -> EngineRecipe:
    rule = "ngram-mod"
    sizes = {"n-match": match, "n-min": least, "n-max": most}
    options = [word for name, n in sizes.items() for word in (f"--spec-{rule}-{name}", str(n))]
    return _row(
        f"llama-mod-{most}", rule, (match, least, most), most, "--spec-type", rule, *options
    )


def _row(
    name: str, rule: str, settings: tuple[int, ...], longest: int, *options: str
) -> EngineRecipe:
    return EngineRecipe(
        name=name,
        engine="llama.cpp" if name.startswith("llama") else "vllm",
        rule=rule,
        settings=settings,
        longest=longest,
        options=options,
    )
