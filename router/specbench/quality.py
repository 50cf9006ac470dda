"""How good the answers are, by each task's usual measure, as a share between 0 and 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

MEASURES = {
    "summarization": "rouge_l",
    "rag": "rouge_l",
    "qa": "rouge_l",
    "translation": "bleu",
    "math": "exact_match",
}

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def references_of(reference: str) -> list[str]:
    """The accepted answers of a reference, which joins them with ` | `."""
    return [part.strip() for part in reference.split(" | ") if part.strip()]


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L F-measure against the accepted answer that fits best."""
    scorer = _rouge_scorer()
    return max(
        (float(scorer.score(part, text)["rougeL"].fmeasure) for part in references_of(reference)),
        default=0.0,
    )


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU as sacrebleu computes it, divided by 100."""
    import sacrebleu

    return float(sacrebleu.corpus_bleu(list(texts), [list(references)]).score) / 100


def final_number(text: str) -> str | None:
    """The number after the last `####`, or else the last number; written plainly."""
    marked = _NUMBER.findall(text.rpartition("####")[2]) if "####" in text else []
    found = marked[:1] or _NUMBER.findall(text)[-1:]
    if not found:
        return None
    plain: str = found[0].replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def exact_match(text: str, reference: str) -> float:
    """1.0 where the final numbers are the same."""
    wanted = final_number(reference)
    return float(wanted is not None and final_number(text) == wanted)


def quality(task: str, texts: Sequence[str], references: Sequence[str]) -> float | None:
    """A task's measure over answers with a reference; None where there is no measure or answer."""
    measure = MEASURES.get(task)
    if measure is None or not texts:
        return None
    if measure == "bleu":
        return bleu(texts, references)
    score = rouge_l if measure == "rouge_l" else exact_match
    pairs = zip(texts, references, strict=True)
    return sum(score(text, reference) for text, reference in pairs) / len(texts)


@cache
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)
