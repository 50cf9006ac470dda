"""A policy on disk: a folder with policy.json and one safetensors file. Nothing is pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import BasePolicy
from .errors import PolicyError
from .fixed import ConstantPolicy
from .knn import NeighbourPolicy
from .network import NetworkPolicy
from .records import Origin

MANIFEST = "policy.json"
FORMAT = 1
KINDS: dict[str, type[BasePolicy]] = {
    cls.kind: cls for cls in (ConstantPolicy, NetworkPolicy, NeighbourPolicy)
}
REMOTE = ("runs:/", "models:/", "mlflow-artifacts:/")


def write(policy: BasePolicy, folder: str | Path) -> Path:
    """Save into the folder (made if missing) and return it.

    The arrays go to a file named after their hash; the manifest that names it is replaced last,
    in one step, so a kill at any moment leaves the old policy or the new one. Raises PolicyError
    where the disk refuses.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    blob = save({k: np.ascontiguousarray(v) for k, v in policy.arrays().items()})
    sha = hashlib.sha256(blob).hexdigest()
    weights = f"weights-{sha[:16]}.safetensors"
    body = {
        "format": FORMAT,
        "kind": policy.kind,
        "origin": dataclasses.asdict(policy.origin),
        "settings": policy.settings(),
        "weights": {"file": weights, "sha256": sha},
    }
    text = json.dumps(body | {"sha256": _seal(body)}, indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / weights, blob)
        _replace(folder / MANIFEST, text.encode())
        for old in folder.glob("weights-*.safetensors"):
            if old.name != weights:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise PolicyError(
            f"cannot write the policy to {folder}: {error.strerror or error}; free the disk or "
            "choose another folder"
        ) from error
    return folder


def load(uri: str | Path, tracking_uri: str | None = None) -> BasePolicy:
    """A policy from a folder, ``runs:/<id>/policy`` or ``models:/NAME@alias`` (or ``/VERSION``).

    tracking_uri: for the last two; None takes MLFLOW_TRACKING_URI, then ./mlruns/mlflow.db.
    A folder is read without mlflow. Raises PolicyError for what is missing or damaged.
    """
    text = str(uri)
    if not text.startswith(REMOTE):
        return read(Path(text))
    from .tracking import fetch

    with tempfile.TemporaryDirectory(prefix="draftpick-policy-") as scratch:
        found = sorted(fetch(text, Path(scratch), tracking_uri).rglob(MANIFEST))
        if not found:
            raise PolicyError(
                f"{text} holds no {MANIFEST}; name the artifact of a run that draftpick trained, "
                "such as runs:/<id>/policy"
            )
        return read(found[0].parent)


def read(folder: Path) -> BasePolicy:
    """The policy in this folder. Raises PolicyError for what is missing or damaged."""
    path = folder / MANIFEST if folder.is_dir() else folder
    if path.name != MANIFEST or not path.is_file():
        raise PolicyError(
            f"no policy at {folder}; give a folder that holds {MANIFEST}, runs:/<id>/policy or "
            "models:/NAME@alias"
        )
    try:
        body = json.loads(path.read_bytes())
        seal = body.pop("sha256")
        version = body["format"]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _damaged(path, "it is not a policy manifest") from error
    if version != FORMAT:
        raise PolicyError(
            f"{path} has format {version}, this version reads {FORMAT}; train the policy again "
            "or install the version that wrote it"
        )
    if seal != _seal(body):
        raise _damaged(path, "its content does not match its checksum")
    try:
        cls, origin = KINDS[body["kind"]], _origin(body["origin"])
        weights, sha = path.parent / body["weights"]["file"], body["weights"]["sha256"]
        settings = body["settings"]
    except (KeyError, TypeError) as error:
        raise _damaged(path, f"it lacks or does not know {error}") from error
    arrays = _arrays(weights, sha)
    try:
        return cls.rebuild(origin, settings, arrays)
    except (PolicyError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _arrays(path: Path, sha: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    try:
        blob = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"it cannot be read ({error.strerror or error})") from error
    if hashlib.sha256(blob).hexdigest() != sha:
        raise _damaged(path, "its hash is not the one that the manifest names")
    try:
        return dict(parse(blob))
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error


def _origin(fields: dict[str, Any]) -> Origin:
    return Origin(**(fields | {"arms": tuple(fields["arms"])}))


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, why: str) -> PolicyError:
    return PolicyError(f"the policy file {path} is damaged: {why}; copy or train it again")


def _replace(path: Path, content: bytes) -> None:
    """Write beside the file, flush to the disk, then take its place in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
