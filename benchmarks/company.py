"""Plain decoding on a quiet machine, and beside processes that keep cores busy.

    python benchmarks/company.py --out company.json

For each --dtype (as in decode.py, `int4:compiled` names a backend too) one engine answers a few
questions, in turns with and without --neighbours busy processes. Tokens a second are medians over
--repeats. On an otherwise idle machine only; the ratio is what counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.queries import shipped
from decoders import Engine, Request
from decoders.arms import AUTOREGRESSIVE
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.zoo.catalogue import TARGET

BUSY = "while True: pass"
SETTLE_S = 1.5  # for a neighbour to start, and for threads to follow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--dtype", nargs="*", default=["bfloat16", "int4:native", "int4:compiled"])
    parser.add_argument("--neighbours", type=int, default=1, help="busy processes")
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("company.json"))
    given = parser.parse_args()

    rows = {name: measured(given, name) for name in given.dtype}
    record = {
        "neighbours": given.neighbours,
        "hardware": hardware(),
        "versions": versions(),
        "tokens_per_s": rows,
    }
    write_atomically(given.out, json.dumps(record, indent=1))
    table = Table(title=f"Tokens a second, plain decoding; {given.neighbours} busy neighbour(s)")
    for heading in ("weights", "quiet", "busy", "kept"):
        table.add_column(heading, justify="left" if heading == "weights" else "right")
    for name, row in rows.items():
        kept = f"{row['busy'] / row['quiet']:.0%}"
        table.add_row(name, f"{row['quiet']:.1f}", f"{row['busy']:.1f}", kept)
    Console().print(table)


def measured(given: argparse.Namespace, name: str) -> dict[str, float]:
    """Median tokens a second, quiet and busy."""
    dtype, _, backend = name.partition(":")
    engine = Engine.load(
        given.target, only=[AUTOREGRESSIVE], dtype=dtype, device="cpu", backend=backend or "auto"
    )
    prompts = [
        engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        for query in shipped("test")[: given.questions]
    ]
    request = Request(given.max_new_tokens, eos_ids=())
    engine.decode(AUTOREGRESSIVE, prompts[0], request)
    speeds: dict[str, list[float]] = {"quiet": [], "busy": []}
    for _ in track(range(given.repeats), description=name):
        for company, neighbours in (("quiet", 0), ("busy", given.neighbours)):
            with busy(neighbours):
                speeds[company].append(speed(engine, prompts, request))
    return {company: statistics.median(each) for company, each in speeds.items()}


def speed(engine: Engine, prompts: list[list[int]], request: Request) -> float:
    """Tokens a second over all prompts."""
    engine.decode(AUTOREGRESSIVE, prompts[0], request)  # threads follow the neighbours meanwhile
    started = time.perf_counter()
    results = [engine.decode(AUTOREGRESSIVE, prompt, request) for prompt in prompts]
    return sum(len(result.ids) for result in results) / (time.perf_counter() - started)


@contextmanager
def busy(neighbours: int) -> Iterator[None]:
    """So many processes that never wait."""
    running: list[subprocess.Popen[Any]] = [
        subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(neighbours)
    ]
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
