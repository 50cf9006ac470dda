"""`llama-server`: common/arg.cpp and docs/speculative.md of llama.cpp since pull request 22397,
which renamed `--draft-max` and its like; `--spec-type` takes several kinds, joined by commas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .records import (
    MODEL,
    Exported,
    NoCounterpart,
    Ranges,
    copying,
    whole_vocabulary,
    why_not,
    written,
)

if TYPE_CHECKING:
    from decoders.arms import ArmRecipe

COMMAND = ("llama-server", "--model", MODEL)
COPIES, MODELS = "ngram-simple", "draft-simple"


def exported(arm: ArmRecipe) -> Exported:
    """Raises NoCounterpart."""
    from decoders.methods.hybrid.recipe import HybridRecipe
    from decoders.methods.max_gram.recipe import MaxGramRecipe
    from decoders.methods.neural.recipe import NeuralRecipe

    stops, differs = False, tuple[str, ...]()
    if type(arm) is MaxGramRecipe:
        options = ["--spec-type", COPIES, *_copies(arm)]
        differs = copying(arm)
        if arm.longest > arm.shortest:
            differs += (_matches(arm),)
    elif type(arm) is NeuralRecipe:
        stops = bool(arm.length.min_confidence)
        options = ["--spec-type", MODELS, *_model(arm, arm)]
    elif type(arm) is HybridRecipe and not arm.suffix and arm.model.kind == "neural":
        options = ["--spec-type", f"{MODELS},{COPIES}", *_model(arm.model, arm), *_copies(arm)]
        differs = (
            _matches(arm),
            "llama.cpp copies wherever something matches and asks the model elsewhere; the arm "
            "takes what promises more",
        )
    else:
        raise NoCounterpart(why_not(arm, "llama.cpp"))
    return written(arm, options, differs, stops)


def by_load(arm: ArmRecipe, ranges: Ranges) -> Exported:
    """Raises NoCounterpart."""
    raise NoCounterpart("llama.cpp has one draft length for all loads")


def _copies(arm: Any) -> list[str]:
    options = ["--spec-ngram-simple-size-n", str(arm.shortest)]
    return [*options, "--spec-ngram-simple-size-m", str(arm.length.longest)]


def _model(model: Any, arm: Any) -> list[str]:
    """model: the recipe that names it. arm: whose length bounds its drafts."""
    file = whole_vocabulary(model)
    if not file.endswith(".gguf"):
        raise NoCounterpart(
            f"llama.cpp reads GGUF files; convert {file} with its convert_hf_to_gguf.py and name "
            "the file as `drafter`"
        )
    options = ["--spec-draft-model", file, "--spec-draft-n-max", str(arm.length.longest)]
    if arm.length.min_confidence:
        options += ["--spec-draft-p-min", f"{arm.length.min_confidence:g}"]
    return options


def _matches(arm: Any) -> str:
    return (
        f"llama.cpp looks for matches of {arm.shortest} tokens alone, the arm for the longest one "
        f"up to {arm.longest}"
    )
