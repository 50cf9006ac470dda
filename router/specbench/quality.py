"""How good the answers are, by each task's usual measure, as a share between 0 and 1.

A task of one's own is judged by ROUGE-L; MEASURES["my-task"] = "my_measure" names another, and
SCORES["my_measure"] = function(text, reference) is one of one's own.

ROUGE is that of `collect.rouge`, by its own words, not stemmed; papers on summaries often stem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from collect import rouge
from decoders.common.errors import NoSuchName
from decoders.common.plugins import watched

MEASURES: dict[str, str] = {
    "summarization": "rouge_l",
    "rag": "rouge_l",
    "qa": "rouge_l",
    "translation": "bleu",
    "math": "exact_match",
}

USUAL = "rouge_l"
BLEU = "bleu"  # of all answers together, the others of each
UNJUDGED = ("mt_bench",)  # chats: a reference is one good answer of many

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def references_of(reference: str) -> list[str]:
    """The accepted answers of a reference, which joins them with ` | `."""
    return [part.strip() for part in reference.split(" | ") if part.strip()]


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L F-measure against the accepted answer that fits best."""
    return _rouge("rougeL", text, reference)


def rouge_2(text: str, reference: str) -> float:
    """ROUGE-2 F-measure against the accepted answer that fits best."""
    return _rouge("rouge2", text, reference)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU as sacrebleu computes it, divided by 100."""
    import numpy as np

    from .corpus_bleu import bleu_of, ngram_counts

    counts = [*map(ngram_counts, texts, map(references_of, references))]
    return float(bleu_of(np.sum(counts, axis=0, dtype=np.float64)))


def final_number(text: str) -> str | None:
    """The number after the last `####`, or else the last number; written plainly."""
    marked = _NUMBER.findall(text.rpartition("####")[2]) if "####" in text else []
    found = marked[:1] or _NUMBER.findall(text)[-1:]
    if not found:
        return None
    plain: str = found[0].replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def exact_match(text: str, reference: str) -> float:
    """1.0 where the final number is that of an accepted answer."""
    wanted = {final_number(each) for each in references_of(reference)} - {None}
    return float(final_number(text) in wanted)


SCORES: dict[str, Callable[[str, str], float]] = {
    "rouge_l": rouge_l, "rouge_2": rouge_2, "exact_match": exact_match
}  # fmt: skip
watched("task's measure", MEASURES)
watched("measure", SCORES)


def measure_of(task: str) -> str | None:
    """The measure of its answers, None where there is none."""
    return MEASURES.get(task, None if task in UNJUDGED else USUAL)


def check_measures(task: str) -> None:
    """Raises NoSuchName where the task is to be judged by a measure that there is not."""
    measure = measure_of(task)
    if measure is not None and measure not in (BLEU, *SCORES):
        raise NoSuchName(f"measure of the task {task!r}:", measure, [BLEU, *SCORES])


def score(measure: str, texts: Sequence[str], references: Sequence[str]) -> float:
    """One measure over answers and their references, at least one of each."""
    if measure == BLEU:
        return bleu(texts, references)
    pairs = zip(texts, references, strict=True)
    return sum(SCORES[measure](text, reference) for text, reference in pairs) / len(texts)


def quality(task: str, texts: Sequence[str], references: Sequence[str]) -> float | None:
    """A task's measure over answers with a reference; None where there is no measure or answer."""
    measure = measure_of(task)
    return None if measure is None or not texts else score(measure, texts, references)


def _rouge(kind: str, text: str, reference: str) -> float:
    return max(
        (rouge.scores((kind,), part, text)[kind] for part in references_of(reference)), default=0.0
    )
