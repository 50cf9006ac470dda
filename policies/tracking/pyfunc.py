"""What a policy that is served by MLflow answers: an arm and each arm's probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..records import Policy

CHANCE = "p_"  # before an arm's name, the column with its probability


def predictions(
    policy: Policy, x: Any, dynamic: bool = False, rng: np.random.Generator | None = None
) -> pd.DataFrame:
    """[n, A + 2]: "arm", its "propensity", and "p_ARM", each arm's probability.

    x: [n, d + f], what the policy reads.
    dynamic: draw the arms, with rng, instead of taking the most likely, whose propensity is 1.
    """
    probs = policy.distribution(np.asarray(x, dtype=np.float32))  # [n, A]
    taken, propensity = probs.argmax(axis=1), np.ones(len(probs))
    if dynamic:
        rng = rng or np.random.default_rng()
        taken = np.array([rng.choice(probs.shape[1], p=row) for row in probs], dtype=np.intp)
        propensity = probs[np.arange(len(probs)), taken]
    frame = pd.DataFrame(
        {"arm": [policy.arms[i] for i in taken], "propensity": propensity.astype(np.float64)}
    )
    return frame.assign(**{f"{CHANCE}{arm}": probs[:, i] for i, arm in enumerate(policy.arms)})
