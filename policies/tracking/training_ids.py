"""Which queries a policy was trained on, stored with it, so that none of them evaluates it
later."""

from __future__ import annotations

import json
from pathlib import Path

from decoders.common.files import write_atomically
from decoders.common.text import from_json

from ..records import Policy, RewardTable

FILE = "training_ids.json"


def write_training_ids(folder: Path, table: RewardTable) -> None:
    """The ids of the table's queries and of their groups, not their texts, with the table's
    digest."""
    queries = sorted({*table.query_of, *table.groups})
    body = {"table_digest": table.digest, "queries": queries}
    write_atomically(folder / FILE, json.dumps(body, indent=1) + "\n")


def training_ids(folder: Path, policy: Policy) -> set[str] | None:
    """The ids of the queries that the folder's policy was trained on, and of their groups; None if
    the folder has none, or if they belong to another policy."""
    try:
        body = from_json((folder / FILE).read_bytes())
        same = body["table_digest"] == policy.origin.table_digest
        return {str(one) for one in body["queries"]} if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
