"""The embeddings of a collection, in any space: stored with it, or computed from its turns.

    DIR/embeddings/sentence-1a2b3c4d5e6f.parquet   one space: a vector a query

The outcomes do not depend on what a policy reads, so that another embedder needs no new
collection. Such a file may be deleted; it is made anew when next asked for.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError

from ..embedders import Embedder, hash_of, is_own, kind_of, load_embedder, query_text
from .dataset import read_manifest, read_table, write_file

CHUNK = 512  # texts between two looks at the clock

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


def embeddings_of(
    folder: str | Path,
    embedder: str | Embedder | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Embeddings:
    """The vectors of every query of a collection; what is missing is computed and kept.

    embedder: as in `load_embedder`, or one that is loaded; None for the one that the collection was
        made with.
    on_progress: called with (done, total) as vectors are computed.

    Raises DraftpickError for an unknown embedder, for another target's own, and where the disk
    refuses.
    """
    folder, manifest = Path(folder), read_manifest(folder)
    own = manifest.identity.embedder
    if embedder is None:
        embedder = manifest.reads
    if isinstance(embedder, str):
        if embedder in ("target", own):
            return Embeddings(own, _stored(folder))
        if is_own(embedder):
            raise DraftpickError(
                f"{folder} was collected with {own}, and {embedder} is another target's own; "
                "collect with that target, or take `--embedder target`"
            )
        texts = _texts(folder)
        kept = _kept(folder, embedder, texts)
        if kept.keys() >= texts.keys():  # no model is needed
            return Embeddings(embedder, kept)
        loaded = load_embedder(embedder)
        assert loaded is not None  # only the target's own is
        embedder = loaded
    return _completed(folder, embedder, on_progress)


def _completed(
    folder: Path, embedder: Embedder, on_progress: Callable[[int, int], None]
) -> Embeddings:
    texts = _texts(folder)
    vectors = _kept(folder, embedder.name, texts)
    missing = [query_id for query_id in texts if query_id not in vectors]
    if not missing:
        return Embeddings(embedder.name, vectors)
    width = embedder.dimension  # the model is loaded before the clock starts
    missing.sort(key=lambda query_id: len(texts[query_id]))  # little padding
    seconds: dict[str, float] = {}
    try:
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            began = time.perf_counter()
            found = np.asarray(embedder.embed([texts[query_id] for query_id in part]), np.float32)
            took = time.perf_counter() - began
            if found.shape != (len(part), width) or not np.isfinite(found).all():
                raise DraftpickError(
                    f"the embedder {embedder.name} gave an array of shape {found.shape} for "
                    f"{len(part)} texts, or nan; it says that its width is {width}"
                )
            vectors |= dict(zip(part, found, strict=True))
            seconds |= dict.fromkeys(part, took / len(part))
            on_progress(len(seconds), len(missing))
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


def _stored(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The target's own."""
    rows = read_table(folder, "queries", ("query_id", "embedding")).to_pylist()
    return {
        row["query_id"]: np.array(row["embedding"], dtype=np.float32)
        for row in rows
        if row["embedding"] is not None
    }


def _texts(folder: Path) -> dict[str, str]:
    """What is embedded of every query: its first turn, as of a chat that consists of it."""
    rows = read_table(folder, "queries", ("query_id", "turns")).to_pylist()
    return {
        row["query_id"]: query_text([{"role": "user", "content": row["turns"][0]}]) for row in rows
    }


def _kept(folder: Path, name: str, texts: dict[str, str]) -> dict[str, NDArray[np.float32]]:
    """The vectors of these texts that were computed before."""
    return {
        row["query_id"]: np.array(row["embedding"], dtype=np.float32)
        for row in _rows(folder, name).to_pylist()
        if row["text_sha256"] == _sha256(texts.get(row["query_id"], ""))
    }


def _add(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Put rows into a space's file, in the place of those of the same queries."""
    added = {row["query_id"] for row in rows}
    others = [row for row in _rows(folder, name).to_pylist() if row["query_id"] not in added]
    table = pa.Table.from_pylist([*others, *rows], schema=SCHEMA)
    write_file(_file(folder, name), partial(pq.write_table, table))


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
