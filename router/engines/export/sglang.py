"""`sglang.launch_server`: `speculative_*` in python/sglang/srt/server_args.py, its page
docs/advanced_features/speculative_decoding, and for lengths by load
python/sglang/srt/speculative/adaptive_spec_params.py, as of SGLang 0.5.23."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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

COMMAND = ("python3", "-m", "sglang.launch_server", "--model-path", MODEL)
FILE = "adaptive.json"


def exported(arm: ArmRecipe) -> Exported:
    """Raises NoCounterpart."""
    from decoders.methods.eagle3.recipe import Eagle3Recipe
    from decoders.methods.max_gram.recipe import MaxGramRecipe
    from decoders.methods.neural.recipe import NeuralRecipe

    if type(arm) is MaxGramRecipe:
        # The newest token is verified too, and counted among the draft's.
        options = ["--speculative-algorithm", "NGRAM"]
        options += ["--speculative-num-draft-tokens", str(arm.length.longest + 1)]
        options += ["--speculative-ngram-max-bfs-breadth", "1"]  # a chain, not a tree
        differs = (
            *copying(arm),
            f"matches of {arm.shortest} to {arm.longest} tokens are looked for by the arm; SGLang "
            "keeps a tree of what all requests wrote",
        )
    elif type(arm) is NeuralRecipe or type(arm) is Eagle3Recipe:
        head = type(arm) is Eagle3Recipe
        options = ["--speculative-algorithm", "EAGLE3" if head else "STANDALONE"]
        options += ["--speculative-draft-model-path"]
        options += [arm.drafter if head else whole_vocabulary(arm)]
        options += ["--speculative-num-steps", str(arm.length.longest)]
        options += ["--speculative-eagle-topk", "1"]
        options += ["--speculative-num-draft-tokens", str(arm.length.longest + 1)]
        differs = chain(arm) if head else ()
    else:
        raise NoCounterpart(why_not(arm, "SGLang"))
    return written(arm, options, differs)


def by_load(arm: ArmRecipe, ranges: Ranges) -> Exported:
    """As candidate steps of the adaptive configuration, one for each range, which SGLang then
    keeps. Raises NoCounterpart."""
    one = exported(arm)
    if "EAGLE3" not in one.options:
        raise NoCounterpart("SGLang changes draft lengths by load for EAGLE heads alone")
    entries = {str(least): {"candidate_steps": [tokens]} for least, _, tokens in ranges}
    options = (*one.options, "--speculative-adaptive", "--speculative-adaptive-config", FILE)
    return Exported(options, one.differs, (FILE, json.dumps(entries)))
