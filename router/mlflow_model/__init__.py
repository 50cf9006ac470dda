"""The model that MLflow serves for a policy, texts in and an arm out: a plugin. `draftpick train`
logs it with the code that answers a text."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collect.embedders import OWN, SENTENCE, kind_of
from policies import Policy
from policies.tracking.run_log import MODEL_LOGGERS

HERE = Path(__file__).parent
PACKAGES = [HERE.parents[1] / name for name in ("decoders", "policies", "collect", "router")]
DATA = {"__pycache__", "shipped", "default_policy", "model_policies", "page"}  # do not travel
NEEDED = (
    "mlflow", "numpy", "pandas", "safetensors", "pydantic", "torch", "transformers", "jinja2",
    "pyyaml", "filelock", "huggingface-hub", "gguf", "accelerate",
)  # fmt: skip


def log_text_model(space: str, max_new_tokens: int, policy: Policy, files: Path) -> Any:
    """Log the policy in the folder `files` into the active run; returns what MLflow says of it.

    space: of the target's own embeddings in the collection, which names the target.
    max_new_tokens: of an answer, where a text does not say.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    # Of any type: a table whose rows lack some of the numbers has fractions, which MLflow refuses
    # for whole numbers; the model looks at them itself.
    optional = ("temperature", "max_new_tokens", "running")
    read = [ColSpec("string", "text")]
    anything = AnyType()  # type: ignore[no-untyped-call]
    read += [ColSpec(anything, name, required=False) for name in optional]
    chances = [ColSpec("double", f"p_{arm}") for arm in policy.arms]
    needed = [*NEEDED]
    if kind_of(policy.embedder) == SENTENCE:
        needed.append("sentence-transformers")
    with TemporaryDirectory(prefix="draftpick-code-") as scratch:
        return mlflow.pyfunc.log_model(
            name="model",
            python_model=str(HERE / "model.py"),
            artifacts={"policy": files.as_uri()},
            code_paths=copies_of_code(Path(scratch)),
            signature=ModelSignature(Schema([*read]), Schema([ColSpec("string", "arm"), *chances])),
            input_example=pd.DataFrame({"text": ["Why is the sky blue?"], "temperature": [0.0]}),
            model_config={
                "target": space.removeprefix(f"{OWN}:").rpartition("@")[0],
                "space": space,
                "max_new_tokens": max_new_tokens,
            },
            # without a build's own mark (`+cpu`)
            pip_requirements=[f"{n}=={metadata.version(n).partition('+')[0]}" for n in needed],
        )


def copies_of_code(folder: Path) -> list[str]:
    """Copies of the packages for MLflow to log. All that code reads goes along, such as sources
    that are compiled where they run; weights, queries and pages do not."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        weights = Path(folder).parent.name == "zoo"
        return [name for name in names if weights or name in DATA]

    return [shutil.copytree(one, str(folder / one.name), ignore=left_out) for one in PACKAGES]


MODEL_LOGGERS["text"] = log_text_model
