"""Milliseconds until a prompt is read, by its length: draftpick's backends, and OpenVINO GenAI.

    python benchmarks/prompts.py --gguf MODEL.gguf

Prompts are random tokens. All ways take turns; medians of --repeats. OpenVINO's time is that of an
answer of one token, which reading the prompt gives. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from load_peers import openvino
from rich.console import Console
from rich.progress import track
from rich.table import Table

from decoders import Engine, EngineOptions
from decoders.common.sync import synchronize

PLAIN = ("autoregressive",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[50, 100, 300, 1000, 2000])
    parser.add_argument("--backend", nargs="+", default=["native", "auto"])
    parser.add_argument("--target", default=EngineOptions.target)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--gguf", type=Path, help="the same model's file, for OpenVINO GenAI")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    ways: dict[str, Callable[[list[int]], float]] = {}
    for backend in given.backend:
        options = EngineOptions(given.target, dtype=given.dtype, backend=backend)
        engine = Engine.from_options(options, only=list(PLAIN))
        ways[f"{backend}, {engine.target_fingerprint.rpartition('/')[2]}"] = reader(engine)
    if given.gguf is not None:
        for name, peer in openvino(given.gguf, tuple(engine.eos_ids)).items():
            ways[name] = lambda ids, peer=peer: peer.ask(ids, 1).whole_s  # type: ignore[misc]
    drawn = torch.Generator().manual_seed(0)
    times: dict[tuple[str, int], list[float]] = {}
    turns = [(n, r) for n in given.tokens for r in range(given.repeats + 1)]
    for length, repeat in track(turns, "prompts"):
        ids = torch.randint(1, engine.target.vocab_size, (length,), generator=drawn).tolist()
        for way, read in ways.items():
            seconds = read(ids)
            if repeat:  # the first one warms up
                times.setdefault((way, length), []).append(seconds)
    table = Table("tokens", title="Milliseconds to read a prompt")
    for way in ways:
        table.add_column(way, justify="right")
    for length in given.tokens:
        cells = [f"{1000 * statistics.median(times[way, length]):.1f}" for way in ways]
        table.add_row(str(length), *cells)
    Console().print(table)


def reader(engine: Engine) -> Callable[[list[int]], float]:
    def read(ids: list[int]) -> float:
        started = time.perf_counter()
        engine.prefill(ids)
        synchronize(engine.target.device)
        return time.perf_counter() - started

    return read


if __name__ == "__main__":
    main()
