"""What a policy that is served by MLflow answers: an arm and each arm's probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..records import Policy

CHANCE = "p_"  # before an arm's name, the column with its probability


def predictions(
    policy: Policy, x: Any, rngs: Sequence[np.random.Generator] | None = None
) -> pd.DataFrame:
    """[n, A + 2]: "arm", its "propensity", and "p_ARM", each arm's probability.

    x: [n, d + f], what the policy reads.
    rngs: draw each row's arm, with the generator at its place, instead of taking the most likely,
        whose propensity is 1.
    """
    probs = policy.distribution(np.asarray(x, dtype=np.float32))  # [n, A]
    taken, propensity = probs.argmax(axis=1), np.ones(len(probs))
    if rngs is not None:
        drawn = [rng.choice(len(row), p=row) for rng, row in zip(rngs, probs, strict=True)]
        taken = np.array(drawn, dtype=np.intp)
        propensity = probs[np.arange(len(probs)), taken]
    frame = pd.DataFrame(
        {"arm": [policy.arms[i] for i in taken], "propensity": propensity.astype(np.float64)}
    )
    return frame.assign(**{f"{CHANCE}{arm}": probs[:, i] for i, arm in enumerate(policy.arms)})
