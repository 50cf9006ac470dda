"""Bringing a policy back: from a folder, an MLflow run or its registry."""

from __future__ import annotations

import tempfile
from pathlib import Path

from decoders.common import plugins
from decoders.common.errors import DraftpickError

from .base import BasePolicy
from .errors import PolicyError
from .fixed import ConstantPolicy
from .learners.binned import BinnedPolicy
from .learners.knn import NeighbourPolicy
from .learners.network import NetworkPolicy
from .storage import MANIFEST, damaged, read_stored

KINDS: dict[str, type[BasePolicy]] = {
    cls.kind: cls for cls in (ConstantPolicy, BinnedPolicy, NetworkPolicy, NeighbourPolicy)
}
plugins.watched("policy kind", KINDS)
REMOTE = ("runs:/", "models:/", "mlflow-artifacts:/")


def load(uri: str | Path, tracking_uri: str | None = None) -> BasePolicy:
    """A policy from a folder, ``runs:/<id>/policy`` or ``models:/NAME@alias`` (or ``/VERSION``).

    tracking_uri: for the last two; None takes MLFLOW_TRACKING_URI, then ./mlruns/mlflow.db.
    A folder is read without mlflow. Raises PolicyError for what is missing or damaged, and for a
    kind of policy that nothing loaded here has named in KINDS.
    """
    text = str(uri)
    if not text.startswith(REMOTE):
        return read(Path(text))
    from .mlflow_store import fetch

    with tempfile.TemporaryDirectory(prefix="draftpick-policy-") as scratch:
        found = sorted(fetch(text, Path(scratch), tracking_uri).rglob(MANIFEST))
        if not found:
            raise PolicyError(
                f"{text} holds no {MANIFEST}; name the artifact of a run that draftpick trained, "
                "such as runs:/<id>/policy"
            )
        return read(found[0].parent)


def read(folder: Path) -> BasePolicy:
    """The policy in this folder. Raises PolicyError for what is missing, damaged or unknown."""
    stored = read_stored(folder)
    if stored.kind not in KINDS:
        plugins.load("policies")
    if stored.kind not in KINDS:
        raise PolicyError(
            f"the policy in {folder} is of the kind {stored.kind!r}, which is not registered here "
            f"(known: {', '.join(sorted(KINDS))}); install or import the package that brings it"
        )
    try:
        return KINDS[stored.kind].rebuild(stored.origin, stored.settings, stored.arrays)
    except (DraftpickError, KeyError, TypeError, ValueError) as error:
        raise damaged(stored.path, str(error)) from error
