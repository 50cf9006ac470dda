"""BLEU of all answers together, to the numbers of sacrebleu 2.6 as it is by default: tokens of
mteval-v13a, n-grams of one to four of them, exponential smoothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np

from policies.records import Float64

ORDERS = 4  # of n-grams
SUMS = 2 * ORDERS + 2  # numbers of an answer
_MEANT = {"<skipped>": "", "-\n": "", "\n": " ",
          "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}  # fmt: skip
_SPACED = [
    (re.compile(pattern), spaced)
    for pattern, spaced in (
        (r"([{-~[-` -&(-+:-@/])", r" \1 "),
        (r"([^0-9])([.,])", r"\1 \2 "),
        (r"([.,])([^0-9])", r" \1 \2"),
        (r"([0-9])(-)", r"\1 \2 "),
    )
]


def tokens_of(text: str) -> list[str]:
    """Words, numbers and marks."""
    text = text.rstrip()
    for written, meant in _MEANT.items():
        text = text.replace(written, meant)
    text = f" {text} "
    for pattern, spaced in _SPACED:
        text = pattern.sub(spaced, text)
    return text.split()


def ngram_counts(text: str, references: Sequence[str]) -> list[int]:
    """[SUMS]: n-grams that a reference has too, n-grams, each of one to four tokens, and the tokens
    of text and of the reference of the nearest length, of two the shorter. Those of a corpus are
    the sums over its texts."""
    ours, theirs = tokens_of(text), [tokens_of(each) for each in references or [""]]
    matching, many = list[int](), list[int]()
    for n in range(1, ORDERS + 1):
        mine = _ngrams(ours, n)
        known = reduce(or_, (_ngrams(each, n) for each in theirs))
        matching.append((mine & known).total())
        many.append(mine.total())
    nearest = min(map(len, theirs), key=lambda size: (abs(size - len(ours)), size))
    return [*matching, *many, len(ours), nearest]


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(n)), strict=False))


def bleu_of(sums: Float64) -> Float64:
    """[..., SUMS] to [...]: BLEU of corpora by their counts, 0 to 1."""
    matches, ngrams = sums[..., :ORDERS], sums[..., ORDERS:-2]
    ours, theirs = sums[..., -2], sums[..., -1]
    missed = matches == 0
    known = (ngrams > 0).all(axis=-1) & ~missed.all(axis=-1)
    smoothed = np.where(missed, 0.5 ** missed.cumsum(axis=-1), matches)
    logs = np.log(smoothed / np.maximum(ngrams, 1)).mean(axis=-1)
    short = np.minimum(0.0, 1 - theirs / np.maximum(ours, 1))  # the brevity penalty's logarithm
    return np.asarray(np.where(known, np.exp(logs + short), 0.0))
