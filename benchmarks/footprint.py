"""How long each way to decode takes to start, and how much memory it needs.

    python benchmarks/footprint.py --gguf model.gguf --out footprint.json

Each in a process of its own: imports, the model, an answer of 16 tokens to a prompt of 64, then the
most memory that the process held. A file that was just read comes from the page cache, for all
alike. Peers that are not installed are left out with a word.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from peers import llama_cpp_runs, openvino_runs, transformers_model, transformers_runs
from rich.console import Console
from rich.table import Table

PROMPT, NEW = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--gguf", type=Path, help="adds OpenVINO GenAI and llama.cpp")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("footprint.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a way, in this process
    given = parser.parse_args()
    ways = ways_of(given.target, given.gguf)
    if given.one:
        print(json.dumps(footprint(ways[given.one])))
        return

    found: dict[str, dict[str, float]] = {}
    for name in ways:
        options = [*sys.argv[1:], "--one", name]
        runs = []
        for _ in range(given.repeats):
            done = subprocess.run(
                [sys.executable, __file__, *options], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            else:
                print(f"{name} is left out: {done.stderr.strip().splitlines()[-1]}")
                break
        else:
            found[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    table = Table("way", "ready, s", "first answer, s", "most memory, MB")
    for name, row in found.items():
        cells = f"{row['ready_s']:.1f}", f"{row['answer_s']:.2f}", f"{row['memory_mb']:.0f}"
        table.add_row(name, *cells)
    Console().print(table)
    given.out.write_text(json.dumps(found, indent=1))


Answer = Callable[[list[int]], int]


def footprint(way: Callable[[], Answer]) -> dict[str, float]:
    started = time.perf_counter()
    answer = way()
    ready = time.perf_counter()
    answer([1 + i % 97 for i in range(PROMPT)])
    done = time.perf_counter()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ready_s": ready - started, "answer_s": done - ready, "memory_mb": most}


def ways_of(target: str, gguf: Path | None) -> dict[str, Callable[[], Answer]]:
    """Name -> what loads it; imports are its own."""

    def ours(arm: str, dtype: str, backend: str = "auto") -> Answer:
        from decoders import Engine, Request

        engine = Engine.load(target, only=[arm], dtype=dtype, device="cpu", backend=backend)
        return lambda ids: len(engine.decode(arm, ids, Request(NEW)).ids)

    def transformers() -> Answer:
        import torch

        from decoders.models import targets

        like = torch.zeros(1, dtype=torch.bfloat16)
        model = transformers_model(targets.resolve(target), like)
        return transformers_runs(model, NEW)["transformers"]

    ways: dict[str, Callable[[], Answer]] = {
        "autoregressive": lambda: ours("autoregressive", "bfloat16"),
        "max-gram": lambda: ours("max-gram", "bfloat16"),
        "draft-general": lambda: ours("draft-general", "bfloat16"),
        "autoregressive, int8": lambda: ours("autoregressive", "int8"),
        "autoregressive, int4": lambda: ours("autoregressive", "int4"),
        "autoregressive, int4, compiled": lambda: ours("autoregressive", "int4", "compiled"),
        "transformers": transformers,
    }
    if gguf:
        threads = len(os.sched_getaffinity(0))
        ways["OpenVINO GenAI"] = lambda: openvino_runs(gguf, (), NEW, False)["OpenVINO GenAI"]
        ways["llama.cpp"] = lambda: llama_cpp_runs(gguf, (), NEW, threads)["llama.cpp"]
    return ways


if __name__ == "__main__":
    main()
