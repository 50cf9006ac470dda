"""The policy as an MLflow model: texts in, an arm and each arm's probability out.

MLflow runs this file to build the model ("models from code"), so that nothing is pickled.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import mlflow.models
import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.model import PythonModel
from numpy.typing import NDArray

from collect.embedders import is_own, query_text
from collect.features import RequestContext, feature_vector
from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.options import EngineOptions
from decoders.records import Request, Sampling
from policies.loading import read
from router.protocols import RoutingEngine
from router.routing.loading import embedder_of, load_engine, require_features
from router.routing.messages import as_messages

TARGET, CHAT_TEMPLATE = "DRAFTPICK_TARGET", "DRAFTPICK_CHAT_TEMPLATE"  # of the environment
PLUGINS = ("policies.online", "policies.risk_control")  # entry points do not travel with code
TOKENLESS = {"temperature", "greedy", "log-max-new-tokens", "requests-running"}  # features


class TextModel(PythonModel):
    """Reads the policy folder that was logged as the artifact "policy".

    The environment may name a target (DRAFTPICK_TARGET) and a chat template
    (DRAFTPICK_CHAT_TEMPLATE); else the target is the collection's. The model_config says which that
    is (`target`, and `space`, that of its own embeddings), and how many tokens an answer may have
    where a row does not say (`max_new_tokens`). The target is loaded when a text first needs it.
    """

    def load_context(self, context: Any) -> None:
        plugins.load("policies")
        for module in PLUGINS:
            import_module(module)
        self._config: dict[str, Any] = dict(context.model_config)
        self._policy = read(Path(context.artifacts["policy"]))
        require_features(self._policy)
        self._embedder = embedder_of(self._policy)
        self._alone = threading.Lock()  # a target reads one prompt at a time

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """One row a row: "arm", the most likely one, and "p_ARM" for every arm.

        model_input: a column `text`, and where wanted `temperature` (0), `max_new_tokens` and
            `running` (0: other requests being decoded).

        Raises MlflowException, which a server answers with code 400.
        """
        x = []
        for number, row in enumerate(model_input.to_dict("records"), 1):
            try:
                x.append(self._input({str(k): v for k, v in row.items() if not pd.isna(v)}))
            except DraftpickError as error:
                raise MlflowException.invalid_parameter_value(f"row {number}: {error}") from error
        chances = self._policy.distribution(np.stack(x))  # [n, A]
        arms = self._policy.arms
        columns = {f"p_{arm}": chances[:, i] for i, arm in enumerate(arms)}
        return pd.DataFrame({"arm": [arms[i] for i in chances.argmax(axis=1)], **columns})

    def _input(self, row: dict[str, Any]) -> NDArray[np.float32]:
        """[d + f], what the policy reads of a row: the embedding, then the features."""
        messages = as_messages(str(row.get("text", "")))
        request = Request(
            _whole(row, "max_new_tokens", self._config["max_new_tokens"]),
            Sampling(temperature=_number(row, "temperature", 0.0)),
        )
        running, origin = _whole(row, "running", 0), self._policy.origin
        if running < 0:
            raise DraftpickError(f"running must be 0 or more, not {running}")
        own = self._embedder is None and is_own(origin.embedder)
        ids: list[int] = []
        parts = []
        with self._alone:
            if own or not TOKENLESS.issuperset(origin.features):
                ids = self._engine.encode_chat(messages)
                self._engine.check(ids, request)
            if self._embedder is not None:
                parts.append(self._embedder.embed([query_text(messages)])[0])
            elif own:
                parts.append(self._engine.prefill(ids).embedding.detach().float().cpu().numpy())
        if origin.features:
            asked = RequestContext(
                ids, request.max_new_tokens, request.sampling.temperature, running
            )
            parts.append(feature_vector(origin.features, asked))
        return np.concatenate(parts or [np.zeros(1)]).astype(np.float32)

    @cached_property
    def _engine(self) -> RoutingEngine:
        from decoders.arms import AUTOREGRESSIVE

        target, space = os.environ.get(TARGET) or self._config["target"], self._config["space"]
        options = EngineOptions(target, chat_template=os.environ.get(CHAT_TEMPLATE))
        engine = load_engine(options, [AUTOREGRESSIVE])
        if engine.embedder.rpartition("@")[2] != space.rpartition("@")[2]:  # a name may be a folder
            raise DraftpickError(
                f"the policy was trained with the target {space}, but the one here is "
                f"{engine.embedder}; name that target in {TARGET}, and its chat template, where it "
                f"was another than the tokenizer's own, in {CHAT_TEMPLATE}"
            )
        return engine


def _number(row: Mapping[str, Any], name: str, usual: float) -> float:
    found = row.get(name, usual)
    if isinstance(found, bool | np.bool_) or not isinstance(found, int | float | np.number):
        raise DraftpickError(f"{name} must be a number, not {found!r}")
    return float(found)


def _whole(row: Mapping[str, Any], name: str, usual: int) -> int:
    found = _number(row, name, usual)
    if not found.is_integer():
        raise DraftpickError(f"{name} must be a whole number, not {found:g}")
    return int(found)


mlflow.models.set_model(TextModel())
