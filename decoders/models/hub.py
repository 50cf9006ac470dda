"""Which of a hub model's files are fetched: those that transformers reads, and no other format of
its weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

# Configs, vocabularies, merges, chat templates: `*` stands for folders too, as on the hub.
TEXTS = (
    "*.json", "*.jinja", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes",
    "tokenizer*",
)  # fmt: skip
WEIGHTS = ("*.safetensors",)
OLD_WEIGHTS = ("pytorch_model*.bin",)  # where there are no others


def is_text(name: str) -> bool:
    """Whether a model's file of this name, its folder included, is one of TEXTS and no weights."""
    weights = fnmatch(name, "*.safetensors*") or fnmatch(name, "*.bin*")
    return not weights and any(fnmatch(name, pattern) for pattern in TEXTS)


def snapshot(
    hub_id: str, old_weights: Sequence[str] = OLD_WEIGHTS, ignored: Sequence[str] = ()
) -> Path:
    """The folder that a hub model's files are fetched into. Raises what the hub client raises.

    ignored: what is left out, as patterns.
    """
    from huggingface_hub import snapshot_download

    def bring(*patterns: str) -> Path:
        return Path(
            snapshot_download(hub_id, allow_patterns=[*patterns], ignore_patterns=[*ignored])
        )

    fetched = bring(*TEXTS, *WEIGHTS)
    if not any(fetched.glob("*.safetensors")):
        print(f"{hub_id} has no safetensors; fetching its {old_weights[0]}", file=sys.stderr)
        bring(*old_weights)
    return fetched
