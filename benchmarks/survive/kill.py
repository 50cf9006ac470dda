"""kill -9 of `collect`, `train` and `serve` at random points: nothing lost, doubled or wrong.

    python benchmarks/survive/kill.py --kills 100

Each is started over and over in a process of its own and killed at a random moment, so often for
each of the three. After every kill what it left on the disk is read back.

- collect: rows that were there before are there still, each is the row of an undisturbed sweep, and
  when the sweep has been gone on with to its end nothing is missing.
- train: the policy's folder holds no policy or a whole one, equal to an undisturbed one; SQLite
  finds its store intact; a run that MLflow calls finished has its metrics and a policy that loads;
  and the same store takes the next run.
- serve: an answer that a client got whole is in the log once, as it was given; no line is doubled
  or mixed with another, and the next server writes on.

Exit status 1 says that something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import random
import re
import socket
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from ending import end
from soak import CHAT, numbers

import policies
from collect import SweepOptions, sweep
from collect.queries import Query
from collect.store.tables import read_table
from decoders.costs.measured import Costs
from policies.mlflow_store import sqlite_uri, using
from policies.tracking.run import Task, train_run
from router.logs.reader import read_log

QUERIES, BATCH = 60, 3
ODD = "%20 50% #1? é [*]"  # of every folder's name
TIMES = ("prefill_s", "decode_s")  # of the machine, not of the answers
TRAINING = {"policy": "knn", "guard": False, "held_out": 0.25}
NEW_STORES = 0.25  # of the trainings
CLIENTS = 4

PRELOADED = [  # a fork server does not look where this file lies, and passes over what is not there
    "collect.sweeps.run", "decoders.testing.toys", "collect.replay.batch",
    "matplotlib.backends.backend_agg", "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store",
    "policies.tracking.run", "rouge_score.rouge_scorer", "router.routing.router",
    "router.serve.app", "router.serve.server", "transformers",
]  # fmt: skip
CONTEXT = multiprocessing.get_context("forkserver")  # imports once, and forks what is killed
CONTEXT.set_forkserver_preload(PRELOADED)


def begun_in(begun: Any, work: Callable[..., None], given: tuple[object, ...]) -> None:
    import toys  # noqa: F401  # for the work; who kills does not need it

    begun.set()
    work(*given)


def started(work: Callable[..., None], *given: object) -> Any:
    """Its process, which has begun to work: no kill is spent on the start of Python."""
    begun = CONTEXT.Event()
    process = CONTEXT.Process(target=begun_in, args=(begun, work, given), daemon=True)
    process.start()
    begun.wait()
    return process


def undisturbed(work: Callable[..., None], *given: object) -> float:
    """Seconds that a whole run takes. Raises SystemExit where it fails."""
    process, began = started(work, *given), time.perf_counter()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{work.__name__} fails without any kill")
    return time.perf_counter() - began


def killed(process: Any, after_s: float) -> bool:
    """kill -9 so many seconds from now; False where it had ended by itself."""
    process.join(after_s)
    process.kill()
    process.join()
    return bool(process.exitcode == -9)


def elsewhere(work: Callable[..., Any], *given: object) -> Any:
    """What it returns, from a process that has imported what it needs. Raises EOFError where it
    fails."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=told_by, args=(there, work, given), daemon=True)
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def told_by(there: Any, work: Callable[..., Any], given: tuple[object, ...]) -> None:
    there.send(work(*given))


# -- collect ---------------------------------------------------------------------------------------


def collecting(folder: Path) -> None:
    from toys import echo_engine

    from collect.replay.batch import Batch

    engine = echo_engine()
    costs = Costs((0.01, 0.011), {"copy": 0.001})
    queries = [
        Query(f"q/{n}", ("math", "qa")[n % 2], (f"Say {n}. " + "So. " * (n % 5),))
        for n in range(QUERIES)
    ]
    options = SweepOptions(max_new_tokens=24, batch_size=BATCH)
    sweep(engine, Batch(engine, costs), queries, folder, options)


def rows(folder: Path) -> Counter[str]:
    """Every stored row but for its times, as text, with how often it is there."""
    told: Counter[str] = Counter()
    for table in ("queries", "outcomes"):
        for row in read_table(folder, table).to_pylist():
            told[json.dumps({k: v for k, v in row.items() if k not in TIMES}, sort_keys=True)] += 1
    return told


def collect_kills(scratch: Path, kills: int, chance: random.Random, wrong: list[str]) -> Any:
    whole_s = undisturbed(collecting, scratch / "whole")
    must = rows(scratch / "whole")
    if max(must.values()) > 1:
        wrong.append("collect: the undisturbed sweep has a row twice")
    hit, sweeps, amid = 0, 0, 0
    folder, before = scratch / "sweep-0", Counter[str]()
    while hit < kills:
        was_killed = killed(started(collecting, folder), chance.uniform(0, whole_s))
        hit += was_killed
        held = rows(folder)
        amid += was_killed and 0 < sum(held.values()) < sum(must.values())
        for what, lot in (("lost", before - held), ("doubled or wrong", held - must)):
            if lot:
                wrong.append(f"collect, kill {hit}: {what}: {next(iter(lot))[:200]}")
        before = held
        if not was_killed:
            if held != must:
                wrong.append(
                    f"collect: a sweep that ended lacks {sum((must - held).values())} rows"
                )
            sweeps += 1
            folder, before = scratch / f"sweep-{sweeps}", Counter()
    undisturbed(collecting, folder)
    if rows(folder) != must:
        wrong.append("collect: the last sweep, gone on with, is not the undisturbed one")
    if leftovers := list(scratch.rglob("*.tmp")):
        wrong.append(f"collect: {len(leftovers)} half-written files are left, as {leftovers[0]}")
    return {
        "collect: kills": hit,
        "collect: kills that left some of the rows": amid,
        "collect: sweeps brought to their end": sweeps + 1,
        "collect: rows of a sweep": sum(must.values()),
    }


# -- train -----------------------------------------------------------------------------------------


def training(folder: Path, store: Path) -> None:
    chance = np.random.default_rng(0)
    n, arms = 64, ["autoregressive", "copy", "other"]
    table = policies.RewardTable(
        query_ids=[f"q{i}" for i in range(n)],
        tasks=["math", "qa"] * (n // 2),
        embeddings=chance.normal(size=(n, 6)).astype(np.float32),
        arms=arms,
        rewards=chance.random((n, len(arms))),
        reward_name="toy/1",
        embedder="toy/6",
        arms_fingerprint="arms-1",
    )
    task = Task(table, out=folder, **TRAINING)  # type: ignore[arg-type]
    train_run(task, tracking_uri=sqlite_uri(store))


def train_kills(scratch: Path, kills: int, chance: random.Random, wrong: list[str]) -> Any:
    held = scratch / "mlflow.db"
    new_s = undisturbed(training, scratch / "first", held)  # makes the tables of a store
    whole_s = undisturbed(training, scratch / "whole", held)
    must = policies.load(scratch / "whole").fingerprint
    hit, ended, whole = 0, 2, 0
    while hit < kills:
        folder = scratch / f"policy-{hit % 10}"  # most are written over an older one
        had = (folder / "policy.json").exists()
        new = chance.random() < NEW_STORES
        store = scratch / f"new-{hit}.db" if new else held
        process = started(training, folder, store)
        was_killed = killed(process, chance.uniform(0, new_s if new else whole_s))
        hit += was_killed
        ended += not was_killed and not new
        whole += (folder / "policy.json").exists()
        if had or (folder / "policy.json").exists():
            try:
                if policies.load(folder).fingerprint != must:
                    wrong.append(f"train, kill {hit}: another policy than the undisturbed one")
            except policies.PolicyError as error:
                wrong.append(f"train, kill {hit}: {error}")
        if store.exists():
            with contextlib.closing(sqlite3.connect(store)) as database:
                found = database.execute("PRAGMA integrity_check").fetchone()[0]
                if found != "ok":
                    wrong.append(f"train, kill {hit}: SQLite says {found}")
    left = sorted(scratch.glob("new-*.db"))
    for store in (held, *left[:3]):
        undisturbed(training, scratch / "last", store)
    finished, running, faults = elsewhere(runs_of, held, must)
    wrong += faults
    if finished < ended + 1:
        wrong.append(f"train: {ended + 1} runs ended, {finished} are called finished")
    return {
        "train: kills": hit,
        "train: kills after which a policy lay there": whole,
        "train: new stores that a kill left, whole": len(left),
        "train: runs finished": finished,
        "train: runs that MLflow still calls running": running,
    }


def runs_of(store: Path, must: str) -> tuple[int, int, list[str]]:
    """How many MLflow calls finished and running, and what is wrong with those that are finished.

    must: the fingerprint of their policy.
    """
    import mlflow

    finished, running, wrong = 0, 0, list[str]()
    with using(sqlite_uri(store)) as uri:
        client = mlflow.MlflowClient()
        experiments = client.search_experiments(filter_string="name = 'draftpick'")
        if len(experiments) != 1:
            wrong.append(f"train: {len(experiments)} experiments of one name")
        runs = client.search_runs([each.experiment_id for each in experiments], max_results=5000)
        for run in runs:
            running += run.info.status == "RUNNING"
            if run.info.status != "FINISHED":
                continue
            finished += 1
            if not run.data.metrics:
                wrong.append(f"train: the finished run {run.info.run_id} has no metrics")
            try:
                if policies.load(f"runs:/{run.info.run_id}/policy", uri).fingerprint != must:
                    wrong.append(f"train: the finished run {run.info.run_id} has another policy")
            except policies.PolicyError as error:
                wrong.append(f"train: the finished run {run.info.run_id}: {error}")
    return finished, running, wrong


# -- serve -----------------------------------------------------------------------------------------


def answering(port: int, log: Path) -> None:
    from toys import echo_engine, serving

    from router.serve.server import bound

    serving(echo_engine(0.0005), bound("127.0.0.1", port), log)


def asking(client: int, url: str, got: dict[str, str], turns: Any, until: threading.Event) -> None:
    """Asks for number after number; keeps those answers that came whole."""
    with httpx.Client(base_url=url, timeout=30) as http:
        while not until.is_set():
            asked = numbers(client, next(turns))
            body = {"messages": [{"role": "user", "content": asked.text}], "max_tokens": 64}
            try:
                made = http.post(CHAT, json=body)
            except httpx.HTTPError:
                time.sleep(0.02)
                continue
            if made.status_code == 200:
                got[asked.text] = made.json()["choices"][0]["message"]["content"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def serve_kills(scratch: Path, kills: int, chance: random.Random, wrong: list[str]) -> Any:
    log, got, over = scratch / "log", dict[str, str](), threading.Event()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    clients = [
        threading.Thread(target=asking, args=(each, url, got, itertools.count(), over), daemon=True)
        for each in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    for _ in range(kills):
        process, had = started(answering, port, log), len(got)
        until = time.monotonic() + 60
        while len(got) == had:  # it answers again
            if time.monotonic() > until:
                raise SystemExit("the server did not come back")
            time.sleep(0.005)
        if not killed(process, chance.uniform(0, 0.3)):
            wrong.append("serve: it went by itself")
    over.set()
    for client in clients:
        client.join()
    held = read_log(log)
    asked = Counter(each.text.prompt for each in held.decisions if each.text is not None)
    given = {each.text.prompt: each.text.answer for each in held.decisions if each.text is not None}
    for text, answer in got.items():
        if asked[text] != 1:
            wrong.append(f"serve: {text!r} was answered and is in the log {asked[text]} times")
        elif given[text] != answer:
            wrong.append(f"serve: {text!r} got {answer!r} and the log says {given[text]!r}")
        (number,) = re.findall(r"\d+", text)
        if answer != numbers(int(number[:-6]) - 1, int(number[-6:])).answer:
            wrong.append(f"serve: {text!r} got {answer!r}")
    for text, times in asked.items():
        if times > 1:
            wrong.append(f"serve: {text!r} is in the log {times} times")
    if len(asked) > len(got) + kills * CLIENTS:
        wrong.append(f"serve: {len(asked)} lines for {len(got)} answers")
    return {
        "serve: kills": kills,
        "serve: answers that clients got": len(got),
        "serve: lines of the log": len(held.decisions),
        "serve: lines cut short": held.broken,
    }


WORKS = {"collect": collect_kills, "train": train_kills, "serve": serve_kills}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="of each; default 100")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments; printed")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    given = parser.parse_args()

    figures, wrong = dict[str, Any](seed=given.seed), list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.only:
            folder = Path(scratch) / f"{name} {ODD}"
            folder.mkdir()
            chance = random.Random(f"{given.seed} {name}")
            figures |= WORKS[name](folder, given.kills, chance, wrong)
    end(figures, wrong, given.out)


if __name__ == "__main__":
    main()
