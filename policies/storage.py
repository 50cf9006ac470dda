"""A policy on disk: a folder with policy.json and one safetensors file. Nothing is pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import Damaged
from decoders.common.files import within, write_atomically
from decoders.common.text import from_json

from .errors import PolicyError
from .records import Origin

MANIFEST = "policy.json"
FORMAT = 2
NAMED_WITHIN_S = 60.0  # arrays are named by a manifest right after they are written
_NAMED = ("name", "arms", "embedder")  # an origin's fields without a default


@dataclass(frozen=True)
class Stored:
    """The content of a policy's folder.

    path: of its manifest.
    kind: who can make a policy of it.
    """

    path: Path
    kind: str
    origin: Origin
    settings: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def write(
    folder: str | Path,
    kind: str,
    origin: Origin,
    settings: dict[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> Path:
    """Save into the folder (made if missing) and return it.

    The arrays go to a file named after their hash; the manifest that names it is replaced last,
    in one step, so a kill at any moment leaves the old policy or the new one. Older arrays are
    deleted, but for those that another process may be about to name. Raises PolicyError where the
    disk refuses.
    """
    folder = Path(folder)
    blob = _blob(arrays)
    sha = hashlib.sha256(blob).hexdigest()
    weights = f"weights-{sha[:16]}.safetensors"
    body = {
        "format": FORMAT,
        "kind": kind,
        "origin": dataclasses.asdict(origin),
        "settings": settings,
        "weights": {"file": weights, "sha256": sha},
    }
    text = json.dumps(body | {"sha256": _seal(body)}, indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / weights, blob)
        write_atomically(folder / MANIFEST, text.encode())
        now = (folder / MANIFEST).stat().st_mtime
        for old in folder.glob("weights-*.safetensors"):
            with suppress(FileNotFoundError):
                if old.name != weights and old.stat().st_mtime < now - NAMED_WITHIN_S:
                    old.unlink()
    except OSError as error:
        raise PolicyError(
            f"cannot write the policy to {folder}: {error.strerror or error}; free the disk or "
            "choose another folder"
        ) from error
    return folder


def fingerprint(
    kind: str, origin: Origin, settings: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> str:
    """Sixteen hex digits over all that `write` stores: the same before storing and after loading.

    Fields of the origin at their default are left out, so that a later version's new fields leave
    it as it is.
    """
    bare = dataclasses.asdict(Origin(origin.name, origin.arms, origin.embedder))
    named = {k: v for k, v in dataclasses.asdict(origin).items() if k in _NAMED or v != bare[k]}
    weights = hashlib.sha256(_blob(arrays)).hexdigest()
    body = {"kind": kind, "origin": named, "settings": settings, "weights": weights}
    return _seal(body)[:16]


def read_stored(folder: Path) -> Stored:
    """Read what `write` wrote. Raises PolicyError for what is missing or damaged."""
    path = folder / MANIFEST if folder.is_dir() else folder
    if path.name != MANIFEST or not path.is_file():
        raise PolicyError(
            f"no policy at {folder}; give a folder that holds {MANIFEST}, runs:/<id>/policy or "
            "models:/NAME@alias"
        )
    try:
        content = path.read_bytes()
        body = from_json(content)
        seal = body.pop("sha256")
        version = body["format"]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise damaged(path, "it is not a policy manifest") from error
    if version != FORMAT:
        raise PolicyError(
            f"{path} has format {version}, this version reads {FORMAT}; train the policy again "
            "or install the version that wrote it"
        )
    if seal != _seal(body):
        raise damaged(path, "its content does not match its checksum")
    try:
        kind, origin = body["kind"], _origin(body["origin"])
        weights, sha = within(path.parent, body["weights"]["file"]), body["weights"]["sha256"]
        settings = body["settings"]
    except (KeyError, TypeError) as error:
        raise damaged(path, f"it lacks or does not know {error}") from error
    except Damaged as error:
        raise damaged(path, "its weights lie outside of its folder") from error
    try:
        return Stored(path, kind, origin, settings, _arrays(weights, sha))
    except PolicyError:
        if path.read_bytes() == content:
            raise
        return read_stored(path)  # it was saved anew meanwhile


def _blob(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    from safetensors.numpy import save

    return bytes(save({k: np.ascontiguousarray(v) for k, v in arrays.items()}))


def _arrays(path: Path, sha: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load as parse

    try:
        blob = path.read_bytes()
    except OSError as error:
        raise damaged(path, f"it cannot be read ({error.strerror or error})") from error
    if hashlib.sha256(blob).hexdigest() != sha:
        raise damaged(path, "its hash is not the one that the manifest names")
    try:
        return dict(parse(blob))
    except SafetensorError as error:
        raise damaged(path, str(error)) from error


def _origin(fields: dict[str, Any]) -> Origin:
    named = {"arms": tuple(fields["arms"]), "features": tuple(fields.get("features", ()))}
    return Origin(**(fields | named))


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def damaged(path: Path, why: str) -> PolicyError:
    """The error for a manifest that is not what `write` left."""
    return PolicyError(f"the policy file {path} is damaged: {why}; copy or train it again")
