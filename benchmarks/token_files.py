"""Token files: texts as ids, many in one `.npz`, so that training at scale reads no text.

A shard holds the arrays of `collect.align.tokens.Tokens` by their names.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from collect.align.tokens import Text, Tokens, narrow, pack
from decoders.common.errors import DraftpickError
from decoders.common.files import replacing

HELD_OUT_PERCENT = 3
_KEYS = ("ids", "starts", "answer", "task", "tasks", "temperature")
_KINDS = {"ids": "u", "starts": "i", "answer": "i", "task": "u", "tasks": "U", "temperature": "f"}


def save(path: Path, texts: Iterable[Text] | Tokens) -> None:
    """Write one shard, whole or not at all. Raises as `pack`."""
    made = texts if isinstance(texts, Tokens) else pack(texts)
    with replacing(Path(path)) as stream:
        np.savez(
            stream,
            ids=made.ids,
            starts=made.starts,
            answer=made.answer,
            task=made.task,
            tasks=np.array(made.tasks, dtype=str),
            temperature=made.temperature,
        )


def load(paths: Iterable[Path]) -> Tokens:
    """All shards in one. Raises DraftpickError for none, and for a file that is missing, cut short
    or not of this format."""
    return join([_shard(Path(path)) for path in paths])


def join(shards: Sequence[Tokens]) -> Tokens:
    """Shards end to end, their tasks by name. Raises DraftpickError for none."""
    if not shards:
        raise DraftpickError("name at least one token file")
    tasks = sorted({name for shard in shards for name in shard.tasks})
    if len(tasks) > 256:
        raise DraftpickError(f"token files together hold at most 256 tasks, not {len(tasks)}")
    index = {name: at for at, name in enumerate(tasks)}
    task = [np.array([index[n] for n in s.tasks], np.uint8)[s.task] for s in shards]
    lengths = np.concatenate([shard.lengths for shard in shards])
    return Tokens(
        np.concatenate([shard.ids for shard in shards]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([shard.answer for shard in shards]),
        np.concatenate(task),
        tuple(tasks),
        np.concatenate([shard.temperature for shard in shards]),
    )


def _shard(path: Path) -> Tokens:
    if not path.is_file():
        raise DraftpickError(f"no such token file: {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in _KEYS}
    except (ValueError, KeyError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DraftpickError(f"{path}: not a token file, or a damaged one ({error})") from error
    for key, array in arrays.items():
        empty = key == "tasks" and array.size == 0  # no names have no letters
        if array.ndim != 1 or (array.dtype.kind != _KINDS[key] and not empty):
            raise DraftpickError(f"{path}: `{key}` is {array.dtype} with {array.ndim} dimensions")
    ids, starts, answer = arrays["ids"], arrays["starts"], arrays["answer"]
    n = len(answer)
    whole = (
        len(starts) == n + 1
        and len(arrays["task"]) == len(arrays["temperature"]) == n
        and starts[0] == 0
        and starts[-1] == len(ids)
        and bool((np.diff(starts) >= 0).all())
        and bool(((answer >= 0) & (answer <= np.diff(starts))).all())
        and (n == 0 or int(arrays["task"].max()) < len(arrays["tasks"]))
        and ids.dtype.itemsize <= 4
    )
    if not whole:
        raise DraftpickError(f"{path}: its arrays do not fit together")
    return Tokens(
        narrow(ids),
        starts.astype(np.int64, copy=False),
        answer.astype(np.int32, copy=False),
        arrays["task"].astype(np.uint8, copy=False),
        tuple(str(name) for name in arrays["tasks"]),
        arrays["temperature"].astype(np.float32, copy=False),
    )


def held_out(tokens: Tokens, percent: int = HELD_OUT_PERCENT) -> np.ndarray:
    """[n] bool: a fixed few percent, by prompt, so that all answers to one prompt fall on the
    same side whichever shard they lie in."""
    prompts = (
        narrow(tokens.text(row)[: tokens.answer[row]]).tobytes() for row in range(len(tokens))
    )
    return np.fromiter((zlib.crc32(p) % 100 < percent for p in prompts), bool, len(tokens))
