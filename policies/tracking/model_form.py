"""How a policy is logged as an MLflow model: the file that makes it, its code and its signature."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..records import Policy, RewardTable

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

BASE = ("mlflow", "numpy", "pandas", "safetensors")
DATA = (  # these do not travel
    "__pycache__", "zoo/*/*", "shipped", "default_policy", "model_policies", "page",
)  # fmt: skip


@dataclass(frozen=True)
class LoggedModel:
    """What `mlflow.pyfunc.log_model` is given.

    entry: the file that MLflow runs to make the model ("models from code"; nothing is pickled).
    packages: folders of the code that it needs.
    requirements: further distributions, in the versions that are installed here.
    example: an input.
    config: what the model reads as `context.model_config`.
    """

    entry: Path
    packages: Sequence[Path]
    requirements: Sequence[str]
    example: Any
    signature: ModelSignature
    config: dict[str, Any] = field(default_factory=dict)


class ModelForm(Protocol):
    """How a policy becomes a model that MLflow serves: `router.mlflow_model.form` has one."""

    def inputs(self) -> Schema:
        """The input's schema."""
        ...

    def logged(self, policy: Policy, table: RewardTable) -> LoggedModel:
        """The model of a policy that was trained on this table."""
        ...


def copy_code(packages: Sequence[Path], folder: Path) -> list[str]:
    """Copies of the packages for MLflow to log; their paths. All that code reads goes along, such
    as sources that are compiled where they run; weights, queries and pages do not."""
    copies = []
    for package in packages:
        left = {path for pattern in DATA for path in package.rglob(pattern)}
        for path in package.rglob("*"):
            if path.is_file() and not left & {path, *path.parents}:
                copy = folder / package.name / path.relative_to(package)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
        copies.append(str(folder / package.name))
    return copies


def pinned(requirements: Sequence[str]) -> list[str]:
    """`NAME==VERSION` of what is installed, else the name; a build's own mark (`+cpu`) is no part
    of it."""
    found = []
    for name in requirements:
        try:
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            found.append(name)
    return found
