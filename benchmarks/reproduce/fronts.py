"""Speed and quality of arms over resamples of the questions' sources: which arm is the fastest of
those that are good enough, and how surely.

Quality is BLEU of all answers together. It is no mean over questions, but is computed from sums of
their counts (Papineni et al., 2002), so that a resample needs only those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.evaluation.bootstrap import CONFIDENCE, group_index, group_sums, resample
from policies.records import Float64
from router.specbench.corpus_bleu import SUMS, bleu_of, ngram_counts
from router.specbench.quality import BLEU, measure_of, references_of
from router.specbench.records import BASELINE, Row

from .draws import speedups
from .records import Counts, Interval, Measured


def counts_of(draws: Sequence[Sequence[Row]]) -> Counts:
    """method -> task judged by BLEU -> [questions, 1 + draws * SUMS]: a number of the question as
    in `walls_of`, then the counts of each draw. What a method failed on is left out.

    draws: rows of the same questions.
    """
    by_id = [{row.question_id: row for row in rows} for rows in draws]
    found: dict[str, dict[str, Float64]] = {}
    judged = [
        (number, row)
        for number, row in enumerate(draws[0])
        if measure_of(row.task) == BLEU and row.reference
    ]
    for method in {method: None for _, row in judged for method in row.answers}:
        tables: dict[str, list[list[float]]] = {}
        for number, row in judged:
            answers = [rows[row.question_id].answers[method] for rows in by_id]
            if any(one.error is not None or not one.turns for one in answers):
                continue
            line: list[float] = [number]
            references = references_of(row.reference or "")
            for one in answers:
                line += ngram_counts(one.turns[0].result.text.strip(), references)
            tables.setdefault(row.task, []).append(line)
        found[method] = {task: np.array(lines) for task, lines in tables.items()}
    return found


@dataclass(frozen=True)
class Fronts:
    """Arms on one task, over the same resamples: [1 + B] of each arm, the questions as they are
    first. speed: over plain decoding's. quality: BLEU, 0 to 1, the mean over draws."""

    speed: Mapping[str, Float64]
    quality: Mapping[str, Float64]

    def fastest(self, prefix: str, loss: float = 0.0) -> Float64:
        """The highest speed-up of the arms of a prefix that have the target's own quality, less
        `loss`, or more; -inf where none has."""
        least = self.quality[BASELINE] - loss
        return _best(self.speed, prefix, lambda arm: self.quality[arm] >= least)

    def best(self, prefix: str) -> Float64:
        """The highest quality of those that are no slower than the target alone; -inf where none
        is."""
        return _best(self.quality, prefix, lambda arm: self.speed[arm] >= 1)


def _best(
    of: Mapping[str, Float64], prefix: str, kept: Callable[[str], NDArray[np.bool_]]
) -> Float64:
    arms = [arm for arm in of if arm.startswith(prefix)]
    if not arms:
        raise KeyError(f"no arm of {prefix}")
    return np.asarray(np.max([np.where(kept(arm), of[arm], -np.inf) for arm in arms], axis=0))


def fronts(found: Measured, run: str, task: str) -> Fronts:
    """Of every arm of a run, on the questions that all of them answered. Raises KeyError where
    there are none."""
    counts = {arm: tables[task] for arm, tables in found.counts[run].items()}
    walls = {arm: found.walls[run][arm][task] for arm in counts}
    answered = [set(table[:, 0].tolist()) for table in (*walls.values(), *counts.values())]
    common = sorted(set.intersection(*answered)) if answered else []
    if not common:
        raise KeyError(f"no question of {task} that every arm of {run} answered")
    some = next(iter(walls.values()))
    source = group_index(some[np.isin(some[:, 0], common), 1].tolist())
    many = int(source.max()) + 1
    weights = np.vstack([np.ones(many), resample(many, 0)])

    def sums(table: Float64, first: int) -> Float64:
        kept = table[np.isin(table[:, 0], common), first:]
        return np.asarray(weights @ group_sums(kept, source))

    return Fronts(
        {arm: speedups(sums(table, 2)) for arm, table in walls.items()},
        {arm: _bleu(sums(table, 1)) for arm, table in counts.items()},
    )


def _bleu(sums: Float64) -> Float64:
    """[B, draws * SUMS] to [B]: BLEU of a corpus by its counts, the mean over draws."""
    return np.asarray(bleu_of(sums.reshape(len(sums), -1, SUMS)).mean(axis=1))


def lead(ours: Float64, theirs: Float64) -> Interval:
    """Bounds of ours less theirs, [1 + B] each, each with 95% confidence, where a choice is made
    anew in every resample; one that has nothing to choose from loses to one that has.

    Raises KeyError where there is nothing to choose from among the questions as they are.
    """
    if not np.isfinite([ours[0], theirs[0]]).all():
        raise KeyError("nothing meets the condition")
    with np.errstate(invalid="ignore"):
        drawn = np.nan_to_num(ours - theirs, nan=0.0, posinf=np.inf, neginf=-np.inf)[1:]
    tail = 1 - CONFIDENCE
    low = np.quantile(drawn, tail, method="lower")
    return float(low), float(np.quantile(drawn, 1 - tail, method="higher"))
