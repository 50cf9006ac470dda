"""Runs of our own: never somebody else's written over, wherever the command is called from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from decoders.common.secrets import masked
from decoders.common.wording import in_words

from ..errors import PolicyError

if TYPE_CHECKING:
    from mlflow import MlflowClient

OUTER = "MLFLOW_RUN_ID"  # of the environment: the run that a caller has begun, as `mlflow run` does


@contextmanager
def own_run(client: MlflowClient, experiment_id: str, name: str) -> Iterator[Any]:
    """A new run, the active one while the context lasts. It lies below the caller's active run, or
    below the run that MLFLOW_RUN_ID names; what they hold stays as it is.

    Raises PolicyError for an MLFLOW_RUN_ID that this store does not have (`outer_run`).
    """
    import mlflow
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    active = mlflow.active_run()
    parent = outer_run(client) if active is None else None
    named = os.environ.pop(OUTER, None)  # MLflow would go on with that run, and forgets the name
    try:
        with mlflow.start_run(
            experiment_id=experiment_id, run_name=name, nested=True, parent_run_id=parent
        ) as begun:
            if active is not None and not _has(client, active.info.run_id):  # of another store
                client.delete_tag(begun.info.run_id, MLFLOW_PARENT_RUN_ID)
            yield begun
    finally:
        if named is not None:
            os.environ[OUTER] = named


def outer_run(client: MlflowClient) -> str | None:
    """The run that MLFLOW_RUN_ID names, None where it is not set. Raises PolicyError where the
    store has no such run, or has deleted it."""
    from mlflow.exceptions import MlflowException

    named = os.environ.get(OUTER)
    if not named:
        return None
    try:
        if client.get_run(named).info.lifecycle_stage == "active":
            return named
        why = "was deleted"
    except MlflowException as error:
        why = f"is not in that store ({in_words(error)})"
    raise PolicyError(
        f"{OUTER} names the run {masked(named)!r}, which {why}; unset it, or give the store of "
        "that run with --tracking-uri"
    )


def _has(client: MlflowClient, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException:
        return False
    return True
