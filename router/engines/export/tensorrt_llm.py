"""`trtllm-serve`: `DecodingBaseConfig` and its kinds in tensorrt_llm/llmapi/llm_args.py, as of
TensorRT-LLM 1.4; `draft_len_schedule` as in pull request 10860."""

from __future__ import annotations

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

COMMAND = ("trtllm-serve", MODEL)
FILE = "speculation.yaml"


def exported(arm: ArmRecipe) -> Exported:
    """Raises NoCounterpart."""
    return _written(arm, {})


def by_load(arm: ArmRecipe, ranges: Ranges) -> Exported:
    """As `draft_len_schedule`, from the most requests of a range to its length; above the last one
    nothing is drafted. Raises NoCounterpart."""
    drafting = {most: tokens for _, most, tokens in ranges if tokens}
    one = _written(arm, {"draft_len_schedule": drafting})
    above = f"TensorRT-LLM drafts nothing while more than {max(drafting)} requests run"
    return Exported(one.options, (*one.differs, above), one.file)


def _written(arm: ArmRecipe, more: dict[str, Any]) -> Exported:
    import yaml

    from decoders.methods.eagle3.recipe import Eagle3Recipe
    from decoders.methods.max_gram.recipe import MaxGramRecipe
    from decoders.methods.neural.recipe import NeuralRecipe

    settings: dict[str, Any]
    if type(arm) is MaxGramRecipe:
        settings = {
            "decoding_type": "NGram",
            "max_matching_ngram_size": arm.longest,
            "is_public_pool": False,  # each request copies from itself
        }
        differs = copying(arm)
        if arm.shortest > 1:
            differs += (
                f"TensorRT-LLM copies after a match of any length, the arm after {arm.shortest} "
                "tokens or more",
            )
    elif type(arm) is Eagle3Recipe:
        settings = {"decoding_type": "Eagle3", "speculative_model": arm.drafter}
        differs = chain(arm)
    elif type(arm) is NeuralRecipe:
        settings = {"decoding_type": "Draft_Target", "speculative_model": whole_vocabulary(arm)}
        differs = ()
    else:
        raise NoCounterpart(why_not(arm, "TensorRT-LLM"))
    settings |= {"max_draft_len": arm.length.longest, **more}
    text = yaml.safe_dump({"speculative_config": settings}, sort_keys=False)
    return written(arm, ("--extra_llm_api_options", FILE), differs, file=(FILE, text))
