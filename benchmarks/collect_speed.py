"""Queries a second of collection's model work, without a data set being written.

    python benchmarks/collect_speed.py --limit 10 --device cuda --out collect.json

What `draftpick collect` asks of an engine, batch after batch: the target's greedy answer and its
sampled one, every arm's own answer, and its loop replayed along the target's. Rewards and tables,
which take no model, are left out. The first batch comes once before the clock runs. The same
command on a CPU (--device cpu) is what it is to be compared with. --out is written after every
batch; after --minutes it stops between two.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from collect.queries import first_per_task, read_queries, shipped
from collect.replay.batch import Batch
from decoders import Engine
from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.common.sync import synchronize
from decoders.zoo import TARGET


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=10, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=0, help="queries at once; 0: 16, 120 on CUDA")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then no more batches")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("collect.json"))
    given = parser.parse_args()

    engine = Engine.load(
        given.target,
        given.config,
        only=[AUTOREGRESSIVE, *given.arms.split(",")] if given.arms else None,
        dtype=given.dtype,
        device=given.device,
        backend=given.backend,
    )
    queries = read_queries(given.queries) if given.queries else shipped("test")
    asked = first_per_task(queries, given.limit)
    prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in asked]
    at_once = given.batch or (120 if engine.target.device.type == "cuda" else 16)
    batches = [prompts[at : at + at_once] for at in range(0, len(prompts), at_once)]
    work = Work(engine, given.max_new_tokens)
    started = time.perf_counter()
    work.decoder.cost_table  # noqa: B018  # measured when first asked for, once a machine
    costs_s = time.perf_counter() - started
    settings: dict[str, Any] = {
        "batch": at_once,
        "max_new_tokens": given.max_new_tokens,
        "dtype": given.dtype,
        "device": str(engine.target.device),
        "costs_s": costs_s,
        "hardware": hardware(),
        "versions": versions(),
    }
    work.batch(batches[0])
    work.forget()
    done, ends = 0, time.monotonic() + 60 * given.minutes
    started = time.perf_counter()
    for batch in track(batches, description="collecting"):
        if done and time.monotonic() > ends:
            break
        work.batch(batch)
        done += len(batch)
        whole = time.perf_counter() - started
        settings |= {
            "queries": done,
            "arms": [name for name in engine.arm_names if name not in work.failed],
            "failed": work.failed,
            "seconds": whole,
            "queries_per_s": done / whole,
            "target_tokens_per_s": work.tokens / work.seconds["target"],
            "seconds_of": dict(work.seconds),
        }
        write_atomically(given.out, json.dumps(settings, indent=1))
    print(f"{done} queries in {whole:.1f} s: {done / whole:.2f} a second on {settings['device']}")
    for name, seconds in work.seconds.items():
        print(f"  {name}: {seconds:.2f} s, {done / seconds:.1f} queries a second")


class Work:
    """One engine's model work and its seconds by kind. tokens: of the target's answers.
    failed: arms that could not be collected, and why."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine, self._most, self.decoder = engine, most, Batch(engine)
        self.failed: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """What was measured so far."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.tokens = 0

    def batch(self, prompts: list[list[int]]) -> None:
        batch, most = self.decoder, self._most
        seeds = range(len(prompts))  # of answers that are drawn where the prompts are read anyway
        out = self._timed("target", lambda: batch.target(prompts, most, also=[(1.0, seeds)]))
        drawn = self._timed("target", lambda: batch.target(prompts, most, 1.0, seeds))
        self.tokens += sum(map(len, [*out.ids, *drawn.ids]))
        for name in self._engine.arm_names:
            if name != AUTOREGRESSIVE and name not in self.failed:
                try:
                    self._arm(name, prompts, out.ids)
                except (DraftpickError, RuntimeError) as error:
                    self.failed[name] = str(error).strip()[:300]
                    print(f"{name} is left out: {self.failed[name]}")

    def _arm(self, name: str, prompts: list[list[int]], answers: Sequence[list[int]]) -> None:
        batch, most = self.decoder, self._most
        own = self._timed(f"{name}, alone", lambda: batch.arm(name, prompts, most))
        if own.replays is None:
            self._timed(
                f"{name}, replayed", lambda: batch.replay(name, prompts, list(answers), most)
            )

    def _timed(self, name: str, run: Callable[[], Any]) -> Any:
        device = self._engine.target.device
        synchronize(device)
        started = time.perf_counter()
        made = run()
        synchronize(device)
        self.seconds[name] += time.perf_counter() - started
        return made


if __name__ == "__main__":
    main()
