"""What an engine may be configured to do, as arms: no drafts, copies, suffixes, a draft model, each
at several draft lengths."""

from __future__ import annotations

from collections.abc import Sequence

from decoders.arms import AUTOREGRESSIVE, ArmRecipe, recipe

NGRAM, NGRAM_8, SUFFIX, DRAFT = "ngram", "ngram8", "suffix", "draft"
LENGTHS = (2, 4, 8, 16)  # tokens of a draft


def configurations(
    draft_model: str | None = None, lengths: Sequence[int] = LENGTHS
) -> dict[str, ArmRecipe]:
    """By name, KIND-LENGTH: matches of 2 tokens or more, of 8 or more (as `draftpick export` writes
    them for vLLM), suffix decoding over the conversation and earlier answers, and the draft model
    where one is given."""
    kinds = {
        NGRAM: {"kind": "max_gram", "shortest": 2, "longest": 12},
        NGRAM_8: {"kind": "max_gram", "shortest": 8, "longest": 16},
        SUFFIX: {"kind": "suffix", "by_cost": False},
    }
    if draft_model is not None:
        kinds[DRAFT] = {"kind": "neural", "drafter": draft_model}
    made = {AUTOREGRESSIVE: recipe(kind=AUTOREGRESSIVE, name=AUTOREGRESSIVE)}
    for kind, body in kinds.items():
        for k in lengths:
            name = f"{kind}-{k}"
            made[name] = recipe(**{**body, "name": name, "length": {"k": k}})  # type: ignore[arg-type]
    return made
