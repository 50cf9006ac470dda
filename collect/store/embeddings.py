"""The embeddings of a collection, in any space: stored with it, or computed from its turns.

    DIR/embeddings/sentence-1a2b3c4d5e6f.parquet   one space: a vector a query

The outcomes do not depend on what a policy reads, so that another embedder needs no new
collection. A deleted file is made again when it is next needed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError
from decoders.common.locks import LOCK

from ..embedders import Embedder, hash_of, kind_of, load_embedder
from .writer import explained, write_file

CHUNK = 512  # texts embedded at once

SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("text_sha256", pa.string()),
        ("embedding", pa.list_(pa.float32())),
        ("embed_s", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Embeddings:
    """The queries of a collection in one space.

    embedder: the space's name.
    vectors: [d] float32 by query id; a query that the target failed on has none in its own space.
    computed: how many were computed just now.
    seconds: what that took, the loading of the model left out.
    """

    embedder: str
    vectors: dict[str, NDArray[np.float32]]
    computed: int = 0
    seconds: float = 0.0


def embedded(folder: Path, texts: Mapping[str, str], embedder: str | Embedder) -> Embeddings:
    """The vectors of texts by query id, in a space that is not the target's own.

    embedder: as in `load_embedder`, or one that is loaded. A named one is loaded only where vectors
        are missing.

    Raises DraftpickError for an unknown embedder, and where the disk refuses.
    """
    name = embedder if isinstance(embedder, str) else embedder.name
    kept = _kept(folder, name, texts)
    if kept.keys() >= texts.keys():
        return Embeddings(name, kept)
    if isinstance(embedder, str):
        loaded = load_embedder(embedder)
        assert loaded is not None  # only the target's own is
        if loaded.name != name:
            return embedded(folder, texts, loaded)
        embedder = loaded
    return _completed(folder, embedder, texts, kept)


def _completed(
    folder: Path,
    embedder: Embedder,
    texts: Mapping[str, str],
    kept: Mapping[str, NDArray[np.float32]],
) -> Embeddings:
    vectors = dict(kept)
    missing = [query_id for query_id in texts if query_id not in vectors]
    width = embedder.dimension  # the model is loaded before the clock starts
    missing.sort(key=lambda query_id: len(texts[query_id]))  # little padding
    seconds: dict[str, float] = {}
    try:
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            began = time.perf_counter()
            found = np.asarray(embedder.embed([texts[query_id] for query_id in part]), np.float32)
            took = time.perf_counter() - began
            if found.shape != (len(part), width):
                raise DraftpickError(
                    f"the embedder {embedder.name} gave an array of shape {found.shape} for "
                    f"{len(part)} texts; it says that its width is {width}"
                )
            pairs = zip(part, found, strict=True)
            kept_now = {one: row for one, row in pairs if np.isfinite(row).all()}
            vectors |= kept_now  # the others have no vector, as queries that failed
            seconds |= dict.fromkeys(kept_now, took / len(part))
    finally:  # what is done is kept, whatever stopped the rest
        if seconds:
            rows = [
                {
                    "query_id": query_id,
                    "text_sha256": _sha256(texts[query_id]),
                    "embedding": vectors[query_id].tolist(),
                    "embed_s": taken,
                }
                for query_id, taken in seconds.items()
            ]
            _add(folder, embedder.name, rows)
    return Embeddings(embedder.name, vectors, len(missing), sum(seconds.values()))


def _kept(folder: Path, name: str, texts: Mapping[str, str]) -> dict[str, NDArray[np.float32]]:
    """The vectors of these texts that were computed before."""
    return {
        row["query_id"]: np.array(row["embedding"], dtype=np.float32)
        for row in _rows(folder, name).to_pylist()
        if row["text_sha256"] == _sha256(texts.get(row["query_id"], ""))
    }


def _add(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Put rows into a space's file, in the place of those of the same queries. One process at a
    time."""
    added, path = {row["query_id"] for row in rows}, _file(folder, name)
    with explained(path):
        path.parent.mkdir(exist_ok=True)
        with FileLock(path.parent / LOCK):
            for leftover in path.parent.glob("*.tmp"):  # of a process that was killed
                leftover.unlink()
            held = _rows(folder, name).to_pylist()
            others = [row for row in held if row["query_id"] not in added]
            table = pa.Table.from_pylist([*others, *rows], schema=SCHEMA)
            write_file(path, partial(pq.write_table, table))


def _rows(folder: Path, name: str) -> pa.Table:
    """What a space's file holds; nothing where it is missing or damaged, as it is made again."""
    try:
        return pq.read_table(_file(folder, name), columns=SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, OSError, ValueError):
        return SCHEMA.empty_table()


def _file(folder: Path, name: str) -> Path:
    """One file a space: the same content in another place is the same space."""
    digest = hash_of(name) or _sha256(name)[:12]
    return folder / "embeddings" / f"{kind_of(name)}-{digest}.parquet"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
