"""Seconds that answers take through `draftpick serve` over endpoints: each deployment by itself,
and routed by the policy.

    python benchmarks/proxy.py http://localhost:8000 --ways auto plain ngram --clients 1 4 8 \\
        --queries dev.jsonl --repeats 3 --out proxy.json

For each number of clients the ways take turns, every query once each. A client asks its next query
when it has an answer, and until the last answer of a pass has come those without a query ask one
again, which does not count. Ratios are of the sums of seconds a token over queries (a query's
median over repeats), with 95% intervals by resampling sources of queries. On an otherwise idle
machine only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from ratios import faster
from rich.progress import track

from collect.endpoints.executor import Turns
from collect.queries import Query, read_queries
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions


def ask(client: httpx.Client, url: str, way: str, query: Query, most: int) -> tuple[float, int]:
    """Seconds and tokens of one answer."""
    body = {
        "model": way,
        "messages": [{"role": "user", "content": query.turns[0]}],
        "max_tokens": most,
        "temperature": 0,
    }
    started = time.perf_counter()
    answer = client.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    seconds = time.perf_counter() - started
    answer.raise_for_status()
    return seconds, int(answer.json()["usage"]["completion_tokens"])


def one_pass(
    client: httpx.Client,
    url: str,
    way: str,
    queries: list[Query],
    clients: int,
    most: int,
    seed: int,
) -> NDArray[np.float64]:
    """[n] seconds a token of each query's answer."""
    rng = np.random.default_rng(seed)
    turns, found = Turns(rng.permutation(len(queries)).tolist()), np.zeros(len(queries))

    def work() -> None:
        while (turn := turns.next()) is not None:
            at, counts = turn
            try:
                seconds, tokens = ask(client, url, way, queries[at], most)
            except BaseException:
                turns.stop()
                raise
            if counts:
                found[at] = seconds / max(1, tokens)
                turns.answered()

    with ThreadPoolExecutor(clients) as pool:
        for future in [pool.submit(work) for _ in range(clients)]:
            future.result()
    return found


def ratio(
    one: NDArray[np.float64], other: NDArray[np.float64], sources: Sequence[str]
) -> tuple[float, float, float]:
    """How many times faster `one` is, and a 95% interval over sources of queries; each query counts
    as one token."""
    ours, theirs = (np.stack([np.ones_like(each), each], 1) for each in (one, other))
    found = faster(ours, theirs, sources)
    return found["ratio"], found["low"], found["high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument(
        "--ways", nargs="+", required=True, help="models of the server, routed first"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--queries", type=Path, nargs="+", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("proxy.json"))
    given = parser.parse_args()
    queries = read_queries(given.queries)
    sources = [query.group or query.id for query in queries]
    most, loads = given.max_new_tokens, []
    with httpx.Client(limits=httpx.Limits(max_connections=None)) as client:
        for way in given.ways:
            ask(client, given.url, way, queries[0], most)
        for clients in given.clients:
            times: dict[str, list[NDArray[np.float64]]] = {way: [] for way in given.ways}
            for repeat in track(range(given.repeats), f"{clients} clients"):
                order = np.random.default_rng(repeat).permutation(given.ways).tolist()
                for way in order:
                    spent = one_pass(client, given.url, way, queries, clients, most, repeat)
                    times[way].append(spent)
            medians = {way: np.median(each, 0) for way, each in times.items()}
            routed, *fixed = given.ways
            best = min(fixed, key=lambda way: medians[way].sum())
            record = {
                "clients": clients,
                "seconds_per_token": {way: float(m.mean()) for way, m in medians.items()},
                "best_fixed": best,
                "routed_over_best": ratio(medians[routed], medians[best], sources),
                "each_over_first_fixed": {
                    way: ratio(medians[way], medians[fixed[0]], sources) for way in given.ways
                },
                "hindsight_over_best": float(
                    medians[best].sum() / np.minimum.reduce([medians[w] for w in fixed]).sum()
                ),
            }
            print(json.dumps(record), flush=True)
            loads.append(record)
    told = {"queries": len(queries), "hardware": hardware(), "versions": versions(), "loads": loads}
    write_atomically(given.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
