"""The policy as an MLflow model: embeddings in, one probability column per arm and "arm" out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.pyfunc.model import PythonModel

from .loading import read
from .records import Policy


class PolicyModel(PythonModel):
    """Reads the policy folder that was logged as the artifact "policy"; holds nothing itself."""

    def load_context(self, context: Any) -> None:
        self.policy: Policy = read(Path(context.artifacts["policy"]))

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """model_input: [n, d] embeddings, a DataFrame or, as well, an array.

        MLflow reads the annotation; DataFrame is one that it does not try to turn into a schema.
        """
        return predictions(self.policy, model_input)


def predictions(policy: Policy, x: Any) -> pd.DataFrame:
    """[n, A + 1]: one probability column per arm, and "arm", the most likely one."""
    probs = policy.distribution(np.asarray(x, dtype=np.float32))
    frame = pd.DataFrame(probs, columns=policy.arms)
    frame["arm"] = [policy.arms[i] for i in probs.argmax(axis=1)]
    return frame
