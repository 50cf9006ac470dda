"""What the answers of a collection's arms lose against the target's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .dataset import read_manifest
from .table import read_outcomes


def lossless_arms(folder: str | Path) -> list[str]:
    """The collection's arms that do not change the answer, in its order."""
    return [arm.name for arm in read_manifest(folder).arms if arm.lossless]


def losses_of(
    folder: str | Path, query_ids: Sequence[str], arms: Sequence[str]
) -> NDArray[np.float64]:
    """[n, A] in [0, 1]: 1 - ROUGE-L of the arm's own greedy answer to the target's, 0 for a
    lossless arm; nan where the arm failed or was not run."""
    lossless, outcomes = set(lossless_arms(folder)), read_outcomes(folder)
    losses = np.full((len(query_ids), len(arms)), np.nan)
    for row, query in enumerate(query_ids):
        for column, arm in enumerate(arms):
            outcome = outcomes[query].get(arm)
            if outcome is not None and outcome.error is None:
                likeness = 1.0 if arm in lossless else outcome.rouge_l
                losses[row, column] = np.nan if likeness is None else 1 - likeness
    return losses
