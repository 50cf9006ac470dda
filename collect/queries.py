"""The queries that ship with draftpick, beside the reader of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from decoders.errors import NoSuchName
from decoders.queries import TASKS, Query, first_per_task, read_queries

__all__ = ["SPLITS", "TASKS", "Query", "first_per_task", "read_queries", "shipped"]

SPLITS = ("train", "test")
_FOLDER = Path(__file__).parent / "shipped"


def shipped(split: Literal["train", "test"]) -> list[Query]:
    """The queries of one split, task by task in the order of TASKS; written for this project.

    Raises DraftpickError for a split other than "train" and "test".
    """
    if split not in SPLITS:
        raise NoSuchName("split", split, SPLITS)
    return read_queries([_FOLDER / split / f"{task}.jsonl" for task in TASKS])
