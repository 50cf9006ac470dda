"""Max-Gram's fallback: the token that most often follows each, in what the target writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from decoders.drafters.max_gram import TABLE

from .calibration import Example


def successors(examples: Sequence[Example], vocab: int) -> np.ndarray:
    """[V] int32: argmax of the bigram counts over answers; -1 where a token never stood before
    another."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for example in examples:
        answer = example.ids[example.start :].tolist()
        for token, after in pairwise(answer):
            counts[token][after] += 1
    table = np.full(vocab, -1, dtype=np.int32)
    for token, after in counts.items():
        table[token] = after.most_common(1)[0][0]
    return table


def acceptance(examples: Sequence[Example], table: np.ndarray) -> dict[str, float]:
    """Share of held-out answer tokens that the table predicts, per task and `overall`."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for example in examples:
        answer = example.ids[example.start :]
        hits = int((table[answer[:-1]] == answer[1:]).sum())
        for name in (example.task, "overall"):
            right[name] += hits
            total[name] += max(0, len(answer) - 1)
    return {name: right[name] / max(1, total[name]) for name in sorted(total)}


def save(table: np.ndarray, folder: Path) -> None:
    save_file({"next": torch.from_numpy(table)}, folder / TABLE)
