"""The policy as an MLflow model: embeddings in, an arm and each arm's probability out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from ..loading import read
from ..records import Policy

CHANCE = "p_"  # before an arm's name, the column with its probability


class PolicyModel(PythonModel):
    """Reads the policy folder that was logged as the artifact "policy"; holds nothing itself."""

    def load_context(self, context: Any) -> None:
        self.policy: Policy = read(Path(context.artifacts["policy"]))

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """model_input: [n, d] embeddings, a DataFrame or, as well, an array.

        MLflow reads the annotation; DataFrame is one that it does not try to turn into a schema.
        """
        return predictions(self.policy, model_input)


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
