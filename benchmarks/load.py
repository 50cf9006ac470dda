"""Tokens a second and waiting times at several loads: plain, each arm by itself, and routed.

    python benchmarks/load.py --clients 1 2 4 8 16 32 --out load.json

Each client asks, waits for the whole answer and asks its next question, through the scheduler that
`draftpick serve` answers at, without the network. Every arm is asked the same questions with the
same seeds at each load, in turns, `--repeats` times; figures are medians over repeats. `auto` lets
the policy pick. --server NAME=MODEL@URL adds an OpenAI-compatible server, --gguf OpenVINO GenAI's
continuous batching on that file; these answer greedily, so give --temperature 0 beside them. A
server must not keep what it has read, as questions come again (llama-server: --no-cache-prompt). On
an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from load_peers import Answered, Server, openvino
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.embedders import query_text
from collect.queries import first_per_task, read_queries, shipped
from decoders import EngineOptions, Request
from decoders.arms import AUTOREGRESSIVE
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.common.seeds import derived_seed
from decoders.continuous_batching import batch_engine
from decoders.records import Sampling
from decoders.zoo.catalogue import cache_dir
from router import Router
from router.records import RouteChoice, RouteDecision, RoutedResult
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, GenerationRequest, Scheduler

AUTO = "auto"


@dataclass
class Timing:
    """A Callbacks. Seconds since it was asked."""

    asked: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    whole_s: float = 0.0
    tokens: int = 0
    arm: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def began(self, decision: RouteDecision) -> None:
        self.arm = decision.arm

    def wrote(self, ids: list[int], accepted: int, drafted: int, fields: Any = None) -> None:
        self.first_s = self.first_s or time.perf_counter() - self.asked

    def done(self, result: RoutedResult) -> None:
        self.whole_s, self.tokens = time.perf_counter() - self.asked, len(result.result.ids)
        self.over.set()

    def failed(self, error: Exception) -> None:
        self.error = error
        self.over.set()


@dataclass(frozen=True)
class Question:
    """A prompt, what an embedder reads of it, and how it is answered."""

    ids: list[int]
    text: str
    request: Request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--arms", nargs="*", default=[AUTOREGRESSIVE, "max-gram", "hybrid", AUTO])
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=4, help="queries a task")
    parser.add_argument("--least", type=int, default=2, help="questions a client, at least")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--target", default=EngineOptions.target)
    parser.add_argument("--context", type=int, help="as of `draftpick serve`")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--policy", help="default: the one that ships")
    parser.add_argument("--server", nargs="*", default=[], metavar="NAME=MODEL@URL")
    parser.add_argument("--gguf", type=Path, help="the same model's file, for OpenVINO GenAI")
    parser.add_argument("--batch-invariant", action="store_true", help="as of `draftpick serve`")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, default=Path("load.json"))
    given = parser.parse_args()

    kinds = {"dtype": given.dtype, "backend": given.backend, "context": given.context}
    options = EngineOptions(given.target, given.config, **kinds)
    router = Router.from_options(options, given.policy)
    batch = batch_engine(
        router.engine, max(given.clients), given.batch_invariant, cache_dir() / "costs"
    )
    # questions come again: what a slot holds of them is read again
    scheduler = Scheduler({DEFAULT: router}, FairQueue(1024), batch, reuse=False)
    asked = questions(router, given)
    askers: dict[str, Any] = {arm: Own(scheduler, arm) for arm in given.arms}
    for named in given.server:
        name, _, rest = named.partition("=")
        model, _, url = rest.partition("@")
        askers[name] = Server(url, model)
    if given.gguf is not None:
        askers |= openvino(given.gguf, tuple(router.engine.eos_ids))
    for name, asker in askers.items():  # drafters load, and what is measured once is measured
        spread(name, asker, asked[: max(given.clients)], max(given.clients))
    rows: list[dict[str, Any]] = []
    turns = [(n, r) for n in given.clients for r in range(given.repeats)]
    for clients, repeat in track(turns, "loads"):
        least = max(len(asked), clients * given.least)
        todo = (asked * -(-least // len(asked)))[:least]
        names = list(askers)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            rows.append(spread(name, askers[name], todo, clients) | {"repeat": repeat})
        record = {
            "given": {k: str(v) for k, v in vars(given).items()},
            "hardware": hardware(),
            "versions": versions(),
            "rows": rows,
        }
        write_atomically(given.out, json.dumps(record, indent=1))
    scheduler.close()
    show(rows, list(askers), given.clients)


def questions(router: Router, given: argparse.Namespace) -> list[Question]:
    """The queries' first turns, at the temperatures in turn."""
    queries = read_queries(given.queries) if given.queries else shipped("test")
    made = []
    for number, query in enumerate(first_per_task(queries, given.limit)):
        messages = [{"role": "user", "content": query.turns[0]}]
        temperature = given.temperature[number % len(given.temperature)]
        request = Request(given.max_new_tokens, Sampling(temperature), seed=derived_seed(0, number))
        ids = router.engine.encode_chat(messages)
        made.append(Question(ids, query_text(messages), request))
    return made


class Own:
    """The scheduler, asked for one arm."""

    def __init__(self, scheduler: Scheduler, arm: str) -> None:
        self._scheduler, self._arm = scheduler, None if arm == AUTO else arm

    def ask(self, question: Question, name: str, client: str) -> Answered:
        timing = Timing()
        generation = GenerationRequest(
            question.ids, question.request, question.text, RouteChoice(self._arm), name, client
        )
        self._scheduler.submit(generation, timing)
        timing.over.wait()
        if timing.error is not None:
            raise timing.error
        return Answered(timing.whole_s, timing.tokens, timing.first_s)


def spread(name: str, asker: Any, todo: Sequence[Question], clients: int) -> dict[str, Any]:
    """All questions by so many clients, each of which asks one at a time; what it took."""
    left, lock = iter(enumerate(todo)), threading.Lock()
    made, failed = list[Answered](), list[Exception]()

    def ask(client: int) -> None:
        while True:
            with lock:
                number, question = next(left, (0, None))
            if question is None:
                return
            try:
                if isinstance(asker, Own):
                    made.append(asker.ask(question, f"{client}-{number}", str(client)))
                else:
                    made.append(asker.ask(question.ids, question.request.max_new_tokens))
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if failed:
        raise SystemExit(f"{name}: {len(failed)} questions failed, the first by {failed[0]!r}")
    return {
        "arm": name,
        "clients": clients,
        "questions": len(todo),
        "tokens": sum(one.tokens for one in made),
        "seconds": seconds,
        "tokens_per_s": sum(one.tokens for one in made) / seconds,
        "median_first_s": statistics.median(one.first_s for one in made),
        "median_whole_s": statistics.median(one.whole_s for one in made),
        "slowest_s": max(one.whole_s for one in made),
    }


def show(rows: Sequence[dict[str, Any]], arms: Sequence[str], clients: Sequence[int]) -> None:
    table = Table(title="Tokens a second (median seconds of a whole answer)")
    table.add_column("clients", justify="right")
    for arm in arms:
        table.add_column(arm, justify="right")
    speeds: dict[str, list[float]] = {arm: [] for arm in arms}
    for n in clients:
        cells = []
        for arm in arms:
            own = [row for row in rows if row["arm"] == arm and row["clients"] == n]
            speed, whole = (
                statistics.median(row[key] for row in own)
                for key in ("tokens_per_s", "median_whole_s")
            )
            cells.append(f"{speed:.0f} ({whole:.2f})")
            speeds[arm].append(speed)
        table.add_row(str(n), *cells)
    if len(clients) > 1:
        table.add_section()
        # An arithmetic mean weighs by seconds, so that the fastest load decides.
        for name, mean in (("equal seconds", fmean), ("equal tokens", harmonic_mean)):
            table.add_row(name, *(f"{mean(speeds[arm]):.0f}" for arm in arms))
    Console().print(table)


if __name__ == "__main__":
    main()
