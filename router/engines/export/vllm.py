"""`vllm serve`: `SpeculativeConfig` in vllm/config/speculative.py and its page
docs/features/speculative_decoding/, as of November 2026."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .records import (
    MODEL,
    Exported,
    NoCounterpart,
    Ranges,
    chain,
    copying,
    whole_vocabulary,
    why_not,
    written,
)

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe

COMMAND = ("vllm", "serve", MODEL)
OPTION, LENGTH = "--speculative-config", "num_speculative_tokens"
SAFE_MATCH = 8  # tokens of a match


def exported(arm: ArmRecipe) -> Exported:
    """Raises NoCounterpart."""
    from decoders.methods.eagle3.recipe import Eagle3Recipe
    from decoders.methods.max_gram.recipe import MaxGramRecipe
    from decoders.methods.neural.recipe import NeuralRecipe
    from decoders.methods.suffix.recipe import SuffixRecipe

    settings: dict[str, Any]
    if type(arm) is MaxGramRecipe:
        shortest = max(arm.shortest, SAFE_MATCH)
        settings = {
            "method": "ngram",
            LENGTH: arm.length.longest,
            "prompt_lookup_max": max(arm.longest, shortest),
            "prompt_lookup_min": shortest,
        }
        differs = copying(arm)
        if arm.shortest < SAFE_MATCH:
            differs += (
                f"matches have {SAFE_MATCH} tokens or more, the arm's {arm.shortest}: with matches "
                "of 2 vLLM has corrupted tool calls of some models, and with 8 it has not "
                "(vllm-project/vllm#40875)",
            )
    elif type(arm) is SuffixRecipe:
        settings = {"method": "suffix", LENGTH: arm.length.longest}
        differs = _suffixes(arm)
    elif type(arm) is Eagle3Recipe:
        settings = {"method": "eagle3", "model": arm.drafter, LENGTH: arm.length.longest}
        differs = chain(arm)
    elif type(arm) is NeuralRecipe:
        settings = {
            "method": "draft_model",
            "model": whole_vocabulary(arm),
            LENGTH: arm.length.longest,
        }
        differs = ()
    else:
        raise NoCounterpart(why_not(arm, "vLLM"))
    return written(arm, (OPTION, json.dumps(settings)), differs)


def by_load(arm: ArmRecipe, ranges: Ranges) -> Exported:
    """As `num_speculative_tokens_per_batch_size`. Raises NoCounterpart."""
    one = exported(arm)
    settings = json.loads(one.options[1])
    settings[f"{LENGTH}_per_batch_size"] = [list(each) for each in ranges]
    return Exported((OPTION, json.dumps(settings)), one.differs)


def _suffixes(arm: Any) -> tuple[str, ...]:
    lost = ["vLLM drafts from all users' answers; it needs the package arctic-inference"]
    if arm.width > 1:
        lost.append("trees become chains")
    if arm.by_cost:
        lost.append("drafts do not end where their chance of being accepted no longer pays")
    return tuple(lost)
