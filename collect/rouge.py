"""ROUGE, by one convention for rewards, benchmarks and scripts: F-measures in [0, 1].

The scores are those of the `rouge_score` package (Lin, 2004). What differs is what counts as a
word: its own tokenizer knows a-z and 0-9 alone, so that identical Chinese or Russian texts score 0
and German words are split at their umlauts. For ASCII text `words` gives exactly what it gives.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import regex

WORDS = "unicode-1"  # the tokenizer in use, with its version: stored with the scores
# As the package splits text on its own: for a number that a paper reports so. Stemmed: by Porter's
# rules for English, as summaries are usually scored.
ASCII, ASCII_STEMMED = "ascii", "ascii-stemmed"

# Scripts that are written without spaces: each letter, with its marks, counts as a word.
_UNSPACED = (
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U00020000-\U0003ffff"
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"  # Hiragana, Katakana
    "]"
)
_LETTER = r"[\p{L}\p{N}]\p{M}*+"
_WORD = regex.compile(rf"(?={_UNSPACED}){_LETTER}|(?:(?!{_UNSPACED}){_LETTER})+")
_INVISIBLE = regex.compile(r"(?!\u200b)\p{Cf}")  # but the space of no width, which parts words


def words(text: str) -> list[str]:
    """Runs of letters and digits with their combining marks, case folded; letters of scripts
    without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar) one by one.

    Canonically equivalent texts give the same words. Invisible format characters, as the joiners
    within Persian and Indic words, are left out.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    found: list[str] = _WORD.findall(_INVISIBLE.sub("", folded))
    return found


def rouge_l(target: str, text: str) -> float:
    """ROUGE-L F-measure (Huang et al., section 3.1): words in common and in order."""
    return scores(("rougeL",), target, text)["rougeL"]


def scores(
    kinds: Sequence[str], target: str, text: str, tokenizer: str = WORDS
) -> dict[str, float]:
    """F-measure of each kind, as `rouge_score` names them ("rouge2", "rougeL").

    tokenizer: WORDS, or for a paper's number ASCII or ASCII_STEMMED.
    """
    found = _scorer(tuple(kinds), tokenizer).score(target, text)
    return {kind: float(found[kind].fmeasure) for kind in kinds}


@lru_cache
def _scorer(kinds: tuple[str, ...], tokenizer: str) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    if tokenizer == WORDS:
        return RougeScorer(list(kinds), tokenizer=SimpleNamespace(tokenize=words))
    if tokenizer not in (ASCII, ASCII_STEMMED):
        raise ValueError(f"no tokenizer {tokenizer!r}; known: {WORDS}, {ASCII}, {ASCII_STEMMED}")
    return RougeScorer(list(kinds), use_stemmer=tokenizer == ASCII_STEMMED)
