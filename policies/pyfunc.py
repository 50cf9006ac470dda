"""The policy as an MLflow model: embeddings in, one probability column per arm and "arm" out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mlflow.pyfunc.model import PythonModel

from .records import Policy
from .storage import read

if TYPE_CHECKING:
    from pandas import DataFrame


class PolicyModel(PythonModel):
    """Reads the policy folder that was logged as the artifact "policy"; holds nothing itself."""

    def load_context(self, context: Any) -> None:
        self.policy: Policy = read(Path(context.artifacts["policy"]))

    def predict(self, context: Any, model_input: Any, params: Any = None) -> DataFrame:
        """model_input: [n, d] array or DataFrame of embeddings."""
        return predictions(self.policy, model_input)


def predictions(policy: Policy, x: Any) -> DataFrame:
    """[n, A + 1]: one probability column per arm, and "arm", the most likely one."""
    import pandas

    probs = policy.distribution(np.asarray(x, dtype=np.float32))
    frame = pandas.DataFrame(probs, columns=policy.arms)
    frame["arm"] = [policy.arms[i] for i in probs.argmax(axis=1)]
    return frame
