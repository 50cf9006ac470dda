"""How `draftpick train` logs a policy: as a model that is asked with texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collect.embedders import OWN, SENTENCE, is_own, kind_of
from policies.tracking.model_form import BASE, LoggedModel

if TYPE_CHECKING:
    from mlflow.types import Schema

    from collect.store.manifest import Manifest
    from policies import Policy, RewardTable

HERE = Path(__file__).parent
PACKAGES = [HERE.parents[1] / name for name in ("decoders", "policies", "collect", "router")]
NEURAL = (
    "torch", "transformers", "jinja2", "pyyaml", "filelock", "huggingface-hub",
    "gguf", "accelerate",  # the default target comes as a GGUF file
)  # fmt: skip
TOKENLESS = {"temperature", "greedy", "log-max-new-tokens", "requests-running"}  # features
EXAMPLE = "Why is the sky blue?"


@dataclass(frozen=True)
class TextForm:
    """A column `text` in, an arm and each arm's probability out (`router.mlflow_model.model`).

    target: its name; space: the one of its own embeddings.
    max_new_tokens: of an answer, where a row does not say.
    """

    target: str
    space: str
    max_new_tokens: int

    @classmethod
    def of(cls, manifest: Manifest) -> TextForm:
        """That of a collection."""
        own = manifest.identity.embedder
        name = own.removeprefix(f"{OWN}:").rpartition("@")[0]
        return cls(name, own, manifest.identity.max_new_tokens)

    def inputs(self) -> Schema:
        from mlflow.types import ColSpec, Schema

        return Schema(
            [
                ColSpec("string", "text"),
                ColSpec("double", "temperature", required=False),
                ColSpec("long", "max_new_tokens", required=False),
                ColSpec("long", "running", required=False),
            ]
        )

    def logged(self, policy: Policy, table: RewardTable) -> LoggedModel:
        import pandas as pd
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

        from policies.tracking.pyfunc import CHANCE

        chances = [ColSpec("double", f"{CHANCE}{arm}") for arm in policy.arms]
        outputs = [ColSpec("string", "arm"), ColSpec("double", "propensity"), *chances]
        params = [ParamSpec("dynamic", "boolean", False), ParamSpec("seed", "long", -1)]
        return LoggedModel(
            entry=HERE / "entry.py",
            packages=PACKAGES,
            requirements=requirements(policy),
            example=pd.DataFrame({"text": [EXAMPLE], "temperature": [0.0]}),
            signature=ModelSignature(self.inputs(), Schema([*outputs]), ParamSchema(params)),
            config=asdict(self),
        )


def requirements(policy: Policy) -> list[str]:
    """The distributions that answering a text needs, torch only where a model or a tokenizer
    reads it."""
    sentence = kind_of(policy.embedder) == SENTENCE
    tokens = not TOKENLESS.issuperset(policy.origin.features)
    found = [*BASE, "pydantic"]
    found += NEURAL if is_own(policy.embedder) or tokens or sentence else ()
    return [*found, "sentence-transformers"] if sentence else found
