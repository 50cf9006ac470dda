"""MLflow's registry of models: one name, its versions, and the aliases that say who serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PolicyError
from .mlflow_store import one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.types import Schema

CHAMPION = "champion"  # who serves
CHALLENGER = "challenger"  # the version that was registered last


def check_name(name: str) -> None:
    """Raise PolicyError for a name that the registry does not take."""
    if not name.strip() or set(name) & set("/:"):
        raise PolicyError(
            f"a registered name has no '/' and no ':', and is not empty: not {name!r}"
        )


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """Newest first; empty where there is no such name."""
    check_name(name)
    quoted = name.replace("'", "''")
    found = client.search_model_versions(f"name='{quoted}'")
    return sorted(found, key=lambda one: int(one.version), reverse=True)


def holder(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version that has the alias, None where none has."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException:
        return None


def check_inputs(client: MlflowClient, name: str, inputs: Schema) -> None:
    """Raise PolicyError where the name's newest version takes other inputs than these."""
    import mlflow
    from mlflow.exceptions import MlflowException

    newest = next(iter(versions_of(client, name)), None)
    if newest is None:
        return
    try:
        signature = mlflow.models.get_model_info(f"models:/{name}/{newest.version}").signature
    except (MlflowException, OSError) as error:
        raise PolicyError(
            f"the signature of the registered model {name!r}, version {newest.version}, cannot be "
            f"read ({one_line(error)}); register under another name"
        ) from error
    theirs = None if signature is None else signature.inputs
    if theirs != inputs:
        raise PolicyError(
            f"the registered model {name!r}, version {newest.version}, takes {_words(theirs)}, but "
            f"this policy takes {_words(inputs)}: who calls the one could not call the other; "
            "register under another name"
        )


def _words(schema: Schema | None) -> str:
    if schema is None:
        return "inputs without a signature"
    return ", ".join(" ".join(repr(one).split()) for one in schema.inputs)


def enrol(client: MlflowClient, name: str, info: Any, words: str) -> str:
    """Register a logged model: its version becomes the challenger, and the champion where there is
    none. Returns `models:/NAME/VERSION`.

    info: what `log_model` gave.
    words: the version's description.
    """
    import mlflow

    version = mlflow.register_model(info.model_uri, name, await_registration_for=60)
    number = str(version.version)
    client.update_model_version(name, number, description=words)
    client.set_registered_model_alias(name, CHALLENGER, number)
    if holder(client, name, CHAMPION) is None:
        client.set_registered_model_alias(name, CHAMPION, number)
    return f"models:/{name}/{number}"
