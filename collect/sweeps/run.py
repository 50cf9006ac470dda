"""The sweep: every arm on every query, resumable after a kill at any moment.

Only the first turn of a chat is collected: later turns depend on the answer that
the model gave, and the arm is chosen once per query, before its first turn.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from collect.queries import Query
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.provenance import provenance
from decoders.records import Request

from ..embedders import Embedder, load_embedder
from ..records import ArmInfo, OutcomeRow, QueryRow
from ..store.collection import Collection
from ..store.manifest import Identity, timed_otherwise
from ..store.tables import read_table
from ..store.writer import Store
from .batch import Prompt, SweepOptions, failed_query
from .executor import ByCosts, Executor, Here
from .progress import Meter, SweepProgress
from .protocols import SweepEngine

if TYPE_CHECKING:
    from ..replay.batch import Batch


@dataclass(frozen=True)
class SweepReport:
    """collected: queries done in this run.
    already: done before.
    errors: error rows of this run.
    rows: outcome rows of this run.
    seconds: wall time.
    embedded: queries that another embedder than the target read in this run.
    embed_s: seconds that took, the loading of its model left out.
    costs_of: what the folder's costs were measured by, where this run decoded otherwise.
    uncounted: by arm, answers of this run whose tokens its endpoint did not count; they have no
        speed.
    """

    collected: int
    already: int
    errors: int
    rows: int
    seconds: float
    embedded: int = 0
    embed_s: float = 0.0
    costs_of: str | None = None
    uncounted: dict[str, int] = field(default_factory=dict)


def sweep(
    engine: SweepEngine,
    batch: Batch | Executor,
    queries: Sequence[Query],
    out: str | Path,
    options: SweepOptions | None = None,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
    embedder: str | Embedder | None = None,
) -> SweepReport:
    """Collect what `out` lacks of queries x arms; call it again to resume.

    Queries are batched by prompt length and batches visited in a seeded random order, so that a
    sweep that is stopped early is a fair sample and its ETA honest. With arms that draft from
    earlier answers they are collected as they come, and before each are the answers to all that the
    folder's rows have before it.

    batch: what decodes many prompts at once, `collect.replay.batch.Batch(engine)`, or an executor
        that collects them elsewhere.
    embedder: what policies are to read, as in `load_embedder`, None for what the folder says (of a
        new one the target's own state). Vectors of another embedder are computed when all queries
        are done.

    Raises DraftpickError for an unknown arm or embedder, no queries, a folder of other settings,
    one that another process writes to, a full disk, or where `one_by_one` does.
    """
    options = options or SweepOptions()
    executor = batch if isinstance(batch, Executor) else Here(engine, batch)
    names = _arm_names(engine, options)
    reader = load_embedder(embedder) if isinstance(embedder, str) else embedder
    if not queries:
        raise DraftpickError("there are no queries to collect; name at least one query file")
    turns = one_by_one(engine, names, executor, options)
    space = None if embedder is None else engine.embedder if reader is None else reader.name
    started = time.perf_counter()
    with Store(out) as store:
        manifest = store.begin(
            _identity(engine, names, options),
            lambda: (_describe_arms(engine, names), executor.costs().of(names)),
            {**provenance(), "timed_by": engine.timed_by},
            space,
        )
        if isinstance(executor, ByCosts):
            executor.go_on_with(manifest.costs)
        pending = _not_stored(queries, store.folder)
        already = len(queries) - len(pending)
        collected = errors = 0
        each = len(names) * len(options.answers) * len(options.at_once)
        meter = Meter(already * each, len(queries) * each, on_progress)
        uncounted = Counter[str]()

        def commit(query_rows: list[QueryRow], outcome_rows: list[OutcomeRow]) -> None:
            nonlocal collected, errors
            store.append(query_rows, outcome_rows)
            collected += len(query_rows)
            errors += sum(row.error is not None for row in outcome_rows)
            meter.stored(outcome_rows)
            timed = [row for row in outcome_rows if row.measured_prefill_s is not None]
            uncounted.update(row.arm for row in timed if row.measured_tokens is None)

        prompts: list[Prompt] = []
        for query in pending:
            try:
                prompts.append(_encode(engine, query, options))
            except Exception as error:  # a prompt the engine refuses is that query's outcome
                nothing = Prompt(query, [])
                failed = failed_query(nothing, manifest.arms, engine.embedder, error, options)
                commit(failed.queries, failed.outcomes)
        if turns is None:
            groups = batches(prompts, options.batch_size, options.seed)
        else:
            size = options.batch_size
            groups = [prompts[at : at + size] for at in range(0, len(prompts), size)]
            keep_stored(turns.batch, store.folder)
        for done in executor.collect(groups, manifest.arms, options, meter.made):
            commit(done.queries, done.outcomes)
            if turns is not None:
                keep_rows(turns.batch, done.queries, done.outcomes)
        found = Collection.open(out).embeddings(reader) if reader is not None else None
    return SweepReport(
        collected,
        already,
        errors,
        collected * each,
        time.perf_counter() - started,
        found.computed if found else 0,
        found.seconds if found else 0.0,
        timed_otherwise(manifest.sessions, manifest.sessions[-1]),
        dict(uncounted),
    )


def batches(prompts: Sequence[Prompt], size: int, seed: int) -> list[list[Prompt]]:
    """Prompts of like length together (little padding), the batches in a seeded random order."""
    by_length = sorted(prompts, key=lambda prompt: (len(prompt.ids), prompt.query.id))
    groups = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    order = np.random.default_rng(seed).permutation(len(groups))
    return [groups[index] for index in order.tolist()]


def _arm_names(engine: SweepEngine, options: SweepOptions) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(options.arms or engine.arm_names))
    for name in names:
        if name not in engine.arms:
            raise NoSuchName("arm", name, tuple(engine.arm_names))
    return names


def _identity(engine: SweepEngine, names: Sequence[str], options: SweepOptions) -> Identity:
    return Identity(
        target=engine.target_fingerprint,
        embedder=engine.embedder,
        arms=tuple(names),
        arms_fingerprint=engine.arms_fingerprint(list(names)),
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        seed=options.seed,
        measured=options.measure,
        similarity=options.similarity,
        temperatures=options.temperatures,
        at_once=options.at_once,
        draws=options.draws,
    )


def _describe_arms(engine: SweepEngine, names: Sequence[str]) -> tuple[ArmInfo, ...]:
    return tuple(
        ArmInfo(
            name=name,
            kind=engine.arms[name].kind,
            parameters=int(engine.arm_parameters(name)),
            lossless=bool(engine.arms[name].lossless),
            recipe=engine.arms[name].model_dump(mode="json"),
        )
        for name in names
    )


def _not_stored(queries: Sequence[Query], folder: Path) -> list[Query]:
    """The queries that the folder lacks; an id that it holds must mean the same question."""
    prompts = ["prompt_ids"] if any(query.prompt_ids for query in queries) else []
    columns = ["query_id", "task", "turns", "group", *prompts]
    stored = {row["query_id"]: row for row in read_table(folder, "queries", columns).to_pylist()}
    pending: dict[str, Query] = {}
    for query in queries:
        if query.id in stored and not _same(query, stored[query.id]):
            raise DraftpickError(
                f"the query {query.id!r} is in {folder} with another text, task, group or prompt; "
                "use another --out, or give the changed query an id of its own"
            )
        if query.id in pending:
            raise DraftpickError(f"the query id {query.id!r} occurs twice; ids must be unique")
        if query.id not in stored:
            pending[query.id] = query
    return list(pending.values())


def _same(query: Query, row: dict[str, Any]) -> bool:
    """Whether a stored row is of this query. One that was refused has no prompt there."""
    if (query.task, [*query.turns], query.group) != (row["task"], row["turns"], row["group"]):
        return False
    return not query.prompt_ids or row["prompt_ids"] in ([], [*query.prompt_ids])


def _encode(engine: SweepEngine, query: Query, options: SweepOptions) -> Prompt:
    ids = query.prompt(engine.encode_chat)
    engine.check(ids, Request(max_new_tokens=options.max_new_tokens))
    return Prompt(query, ids)


def one_by_one(
    engine: SweepEngine, names: Sequence[str], executor: Executor, options: SweepOptions
) -> Here | None:
    """The executor, where one of these arms drafts from earlier answers, else None. Raises
    DraftpickError where the queries could not be collected in their order."""
    found = next((name for name in names if engine.arms[name].reads_earlier), None)
    if found is None:
        return None
    words = f"arm {found!r} drafts from earlier answers, so that the queries' order matters"
    if not isinstance(executor, Here):
        raise DraftpickError(f"{words}; leave --engine ray out, or that arm")
    if options.measure:
        raise DraftpickError(f"{words}, and --measure times them in another; leave one of them out")
    return executor


def keep_stored(batch: Batch, folder: Path) -> None:
    """Tell the batch what a folder holds already, in the order of its rows."""
    columns = ("query_id", "temperature", "running", "draw", "target_ids")
    keep_rows(
        batch,
        _stored(folder, "queries", ("query_id", "prompt_ids")),
        _stored(folder, "outcomes", columns),
    )


def _stored(folder: Path, table: str, columns: Sequence[str]) -> list[Any]:
    return [SimpleNamespace(**row) for row in read_table(folder, table, columns).to_pylist()]


def keep_rows(batch: Batch, queries: Sequence[QueryRow], outcomes: Sequence[OutcomeRow]) -> None:
    """The same for rows that are stored now."""
    prompts = {row.query_id: list(row.prompt_ids) for row in queries}
    told = set[tuple[str, float]]()
    for row in outcomes:
        key = row.query_id, row.temperature
        first = not row.running and not row.draw  # each query was asked once, for the arms
        if first and row.target_ids and key not in told:
            told.add(key)
            batch.keep(prompts[row.query_id], list(row.target_ids), row.temperature)
