"""MLflow's registry of models: one name, its versions, and the aliases that say who serves."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoders.common.files import write_atomically
from decoders.common.text import from_json

from ..base import BasePolicy
from ..errors import PolicyError
from ..loading import read
from ..mlflow_store import fetch
from ..records import Policy, RewardTable
from ..storage import MANIFEST

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"  # who serves
CHALLENGER = "challenger"  # the version that was registered last
TRAINING_IDS = "training_ids.json"  # in the policy's folder: queries that cannot evaluate it
LOOKS = "draftpick.looks"  # tag of a registered model: a word for each comparison that there was


def check_name(name: str) -> None:
    """Raise PolicyError for a name that the registry does not take."""
    if not name.strip() or set(name) & set("/:"):
        raise PolicyError(
            f"a registered name has no '/' and no ':', and is not empty: not {name!r}"
        )


def check_alias(alias: str) -> None:
    """Raise PolicyError for an alias that the registry does not take."""
    if not re.fullmatch(r"[\w-]+", alias) or re.fullmatch(r"(?i)latest|v\d+", alias):
        raise PolicyError(
            f"an alias has letters, digits, - and _ alone, and is neither 'latest' nor v1, v2 and "
            f"so on: not {alias!r}"
        )


def version_of(client: MlflowClient, name: str, asked: int | None) -> str:
    """A version's number, the newest one's unless one is asked for. Raises PolicyError where there
    is none."""
    known = [str(one.version) for one in versions_of(client, name)]
    if not known:
        raise PolicyError(
            f"there is no registered model {name!r}; register one with `draftpick train "
            f"--register {name}`, or give its store with --tracking-uri"
        )
    if asked is not None and str(asked) not in known:
        raise PolicyError(
            f"the registered model {name!r} has no version {asked}; it has {', '.join(known)}"
        )
    return known[0] if asked is None else str(asked)


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Newest first; empty where there is no such name."""
    check_name(name)
    quoted = name.replace("'", "''")
    found = client.search_model_versions(f"name='{quoted}'")
    return sorted(found, key=lambda one: int(one.version), reverse=True)


def holder(client: MlflowClient, name: str, alias: str) -> str | None:
    """The number of the version that has the alias, None where none has."""
    if not versions_of(client, name):  # an error of the store is not "none"
        return None
    found = client.get_registered_model(name).aliases.get(alias)
    return None if found is None else str(found)


def look_at(client: MlflowClient, name: str, compared: Sequence[object]) -> tuple[int, str]:
    """(the how-manieth comparison of this model that is, its word for `note_look`).

    compared: what the result depends on; a comparison that was made before keeps its number.
    """
    word = hashlib.sha256(json.dumps([str(one) for one in compared]).encode()).hexdigest()[:12]
    known = str(client.get_registered_model(name).tags.get(LOOKS, "")).split()
    return (known.index(word) if word in known else len(known)) + 1, word


def note_look(client: MlflowClient, name: str, word: str) -> None:
    """Keep a comparison's word with the model, once its result is known and before it is told."""
    known = str(client.get_registered_model(name).tags.get(LOOKS, "")).split()
    if word not in known:
        client.set_registered_model_tag(name, LOOKS, " ".join([*known, word]))


def enrol(client: MlflowClient, name: str, info: Any, words: str) -> str:
    """Register a logged model: its version becomes the challenger, and the champion where there is
    none. Returns `models:/NAME/VERSION`.

    info: what `log_model` gave.
    words: the version's description.
    """
    import mlflow

    with redirect_stderr(StringIO()):  # two lines of what the caller says itself
        version = mlflow.register_model(info.model_uri, name, await_registration_for=60)
    number = str(version.version)
    client.update_model_version(name, number, description=words)
    client.set_registered_model_alias(name, CHALLENGER, number)
    if holder(client, name, CHAMPION) is None:
        client.set_registered_model_alias(name, CHAMPION, number)
    return f"models:/{name}/{number}"


@dataclass(frozen=True, eq=False)
class Registered:
    """A version of a registered model, fetched.

    queries: ids of those that it was trained on, and of their groups; None if unknown.
    """

    name: str
    version: int
    policy: BasePolicy
    queries: set[str] | None

    @property
    def words(self) -> str:
        return f"version {self.version}"


def fetched(name: str, version: str, tracking_uri: str | None) -> Registered:
    """Raises PolicyError where the version holds no policy, or cannot be fetched."""
    uri = f"models:/{name}/{version}"
    with tempfile.TemporaryDirectory(prefix="draftpick-policy-") as scratch:
        found = sorted(fetch(f"{uri}/artifacts", Path(scratch), tracking_uri).rglob(MANIFEST))
        if not found:
            raise PolicyError(f"{uri} holds no {MANIFEST}: it is no policy of draftpick's")
        policy = read(found[0].parent)
        return Registered(name, int(version), policy, training_ids(found[0].parent, policy))


def write_training_ids(folder: Path, table: RewardTable) -> None:
    """The ids of the table's queries and of their groups, and their texts' digests, not the texts,
    with the table's digest."""
    queries = sorted(set().union(table.query_of, *table.known_by.values()))
    body = {"table_digest": table.digest, "queries": queries}
    write_atomically(folder / TRAINING_IDS, json.dumps(body, indent=1) + "\n")


def training_ids(folder: Path, policy: Policy) -> set[str] | None:
    """The ids of the queries that the folder's policy was trained on, those of their groups, and
    their texts' digests; None if the folder has none, or if they belong to another policy."""
    try:
        body = from_json((folder / TRAINING_IDS).read_bytes())
        same = body["table_digest"] == policy.origin.table_digest
        return {str(one) for one in body["queries"]} if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
