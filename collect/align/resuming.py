"""Guards of a run that goes on: its answers and states are of the same target, its weights of the
same texts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.models import targets
from decoders.sampling.draft_vocab import DraftVocab

from .tokens import Tokens

TARGET = "target.json"


def require_same_target(out: Path, folder: Path, tokenizer: Any) -> None:
    """Note in OUT whose answers, states and drafters it is to hold. Raises DraftpickError where it
    holds those of another target: of other weights, or with another chat template."""
    template = str(tokenizer.chat_template).encode()
    told = {
        "weights": targets.fingerprint(folder),
        "chat_template": hashlib.sha256(template).hexdigest()[:8],
    }
    path, text = out / TARGET, json.dumps(told)
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        raise DraftpickError(
            f"{out} holds what a target with other weights or another chat template wrote than "
            f"{folder.name} has now; name another --out"
        )
    write_atomically(path, text)


def content_of(tokens: Tokens, vocab: DraftVocab, start: Path | None, *more: object) -> str:
    """Digest what decides a run besides its recipe and its target: the texts, the draft vocabulary
    and what it begins with.

    start: a drafter's folder, or a file of sizes.
    more: whatever else decides it: numbers and words.
    """
    begun = None
    if start is not None:
        begun = start.read_bytes() if start.is_file() else targets.fingerprint(start)
    whole = hashlib.sha256(repr((begun, *more)).encode())
    for array in (tokens.ids, tokens.starts, tokens.answer, vocab.to_target.cpu().numpy()):
        whole.update(array.tobytes())
    return whole.hexdigest()[:16]
