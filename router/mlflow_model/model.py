"""The policy as an MLflow model that is asked with texts: an arm and each arm's probability."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.model import PythonModel

from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.common.seeds import draw_of
from decoders.options import EngineOptions
from policies.errors import PolicyError
from policies.loading import read
from policies.tracking.pyfunc import predictions

from .inputs import CHAT_TEMPLATE, TARGET, TextReader, TextRow

if TYPE_CHECKING:
    from policies import Policy


class TextModel(PythonModel):
    """Reads the policy folder that was logged as the artifact "policy".

    The environment may name a target (DRAFTPICK_TARGET) and a chat template
    (DRAFTPICK_CHAT_TEMPLATE); else the target is the collection's. The model_config says which that
    is (`target`, `space`), and how many tokens an answer may have where a row does not say
    (`max_new_tokens`).
    """

    def load_context(self, context: Any) -> None:
        plugins.load()
        config = dict(context.model_config or {})
        policy: Policy = read(Path(context.artifacts["policy"]))
        target = os.environ.get(TARGET) or config.get("target") or EngineOptions.target
        options = EngineOptions(target, chat_template=os.environ.get(CHAT_TEMPLATE))
        self._policy = policy
        self._answer = int(config.get("max_new_tokens", 128))
        self._reader = TextReader(policy, options, config.get("space", ""))
        self._alone = threading.Lock()  # a target reads one prompt at a time

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """One row a row: "arm", "propensity", and "p_ARM" for every arm.

        model_input: a column `text`, and where wanted `temperature` (0), `max_new_tokens` and
            `running` (0: other requests being decoded).
        params: `dynamic` draws the arms instead of taking the most likely; `seed` makes that
            repeatable, the draws of different rows being independent.

        Raises MlflowException, which a server answers with code 400.
        """
        given = params or {}
        seed = given.get("seed")
        seed = None if seed is None or seed < 0 else int(seed)
        try:
            asked = [self._asked(number, row) for number, row in enumerate(_rows(model_input), 1)]
            with self._alone:
                x = self._reader.inputs(asked)
            rngs = _draws(asked, seed) if given.get("dynamic") else None
            return predictions(self._policy, x, rngs)
        except (DraftpickError, PolicyError) as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error

    def _asked(self, number: int, row: dict[str, Any]) -> TextRow:
        text = row.get("text")
        if not isinstance(text, str):
            raise DraftpickError(f"row {number} has no text; every row needs one")
        try:
            return TextRow.of(
                text,
                int(_or(row.get("max_new_tokens"), self._answer)),
                float(_or(row.get("temperature"), 0.0)),
                int(_or(row.get("running"), 0)),
            )
        except DraftpickError as error:
            raise DraftpickError(f"row {number}: {error}") from error


def _draws(asked: Sequence[TextRow], seed: int | None) -> list[np.random.Generator]:
    """One for each row, by its text and how often the text came before."""
    seen = Counter[str]()
    made = []
    for row in asked:
        made.append(draw_of(seed, (row.text, seen[row.text])))
        seen[row.text] += 1
    return made


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]


def _or(value: Any, default: float) -> float:
    """The default for a cell that is missing or empty."""
    return default if value is None or value != value else value
