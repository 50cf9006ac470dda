"""How long drafts should be by the number of requests that run, learnt from a collection under the
guard: what vLLM calls `num_speculative_tokens_per_batch_size`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from decoders.common.errors import DraftpickError

if TYPE_CHECKING:
    from policies import Policy
    from policies.records import RewardTable

LOAD = "requests-running"
BY_LOAD = f"binned by {LOAD}"  # as the guard calls it


@dataclass(frozen=True)
class DraftSchedule:
    """ranges: (least, most, tokens of a draft) by requests that run, from 1 on without gaps; one
    range where one length is the best for all that is known.
    arm: the best fixed one.
    verdict: the guard's, with the gain and its bound.
    """

    ranges: tuple[tuple[int, int, int], ...]
    arm: str
    verdict: str

    @property
    def longest(self) -> int:
        return max(tokens for _, _, tokens in self.ranges)


def draft_schedule(table: RewardTable, lengths: Mapping[str, int], seed: int = 0) -> DraftSchedule:
    """table: of arms that differ in their length alone; it has LOAD among its features.
    lengths: arm -> tokens of its drafts, 0 for plain decoding.

    By load only where that is better than the best fixed arm with 95% confidence; else that arm's
    length. Raises DraftpickError where the table is of one load.
    """
    from policies.selection.guard import guarded

    loads = table.features[:, table.feature_names.index(LOAD)]
    if len(np.unique(loads)) < 2:
        raise DraftpickError(
            "draft lengths by load need a collection at several loads; collect with --at-once "
            "1,8,32"
        )
    kept = guarded(table, seed=seed, policy="binned", options={"feature": LOAD})
    most = 1 + round(math.expm1(float(loads.max())))
    if kept.saved == BY_LOAD:
        ranges = _ranges(kept.fitted.policy, lengths, most)
    else:
        ranges = ((1, most, lengths[kept.best_fixed]),)
    return DraftSchedule(ranges, kept.best_fixed, kept.verdict)


def _ranges(
    policy: Policy, lengths: Mapping[str, int], most: int
) -> tuple[tuple[int, int, int], ...]:
    """What the policy takes while 1, 2, ..., `most` requests run."""
    others = np.log1p(np.arange(most, dtype=np.float32))[:, None]  # [most, 1]
    taken = [lengths[policy.arms[at]] for at in policy.distribution(others).argmax(axis=1)]
    ranges: list[tuple[int, int, int]] = []
    for running, tokens in enumerate(taken, 1):
        if ranges and ranges[-1][2] == tokens:
            ranges[-1] = (ranges[-1][0], running, tokens)
        else:
            ranges.append((running, running, tokens))
    return tuple(ranges)
