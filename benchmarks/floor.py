"""How far a pass of the target is from the least it can take, and where a round's time goes.

    python benchmarks/floor.py --dtype bfloat16 int8 int4 --out floor.json

The floor of a pass at batch 1 is the bytes of all weights over the memory bandwidth of this
machine: whatever the kernels, each weight has to be read once. Printed: that bandwidth, measured;
passes of 1 to 17 tokens beside the floor, dtypes interleaved; and of the first dtype what one pass
is made of, by the profiler, and the shares of drafting, the target's passes and the rest in the
answers of every arm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from collect.provenance import hardware, versions
from collect.queries import first_per_task, shipped
from decoders import Engine, Request
from decoders.backends.sync import synchronize
from decoders.costs import CONTEXT

REPEATS = 15
WIDTHS = (1, 2, 3, 4, 5, 8, 12, 17)
READ_BYTES = 1 << 30  # larger than any cache
PARTS = {  # the profiler's names -> what they are for
    "products": ("mkldnn::_linear_pointwise", "aten::mm", "aten::addmm", "aten::linear"),
    "attention": ("aten::scaled_dot_product_attention",),
    "norms": ("aten::rms_norm",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", help="auto, native, graphs, compiled or hf")
    parser.add_argument("--limit", type=int, default=1, help="queries a task, for the rounds")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("floor.json"))
    given = parser.parse_args()

    engines = {
        dtype: Engine.load(given.target, dtype=dtype, device=given.device, backend=given.backend)
        for dtype in given.dtype
    }
    engine = engines[given.dtype[0]]
    device = engine.target.device
    read = engine.target.parameters * engine.prefill([1]).logits.element_size()
    bandwidth = bandwidth_of(device)
    floor = read / bandwidth
    passes = passes_of(engines)
    parts = parts_of_a_pass(engine)
    rounds = {name: round_shares(engine, name, given) for name in engine.arm_names}

    console = Console()
    console.print(
        f"{read / 1e6:.0f} MB of weights, {bandwidth / 1e9:.1f} GB/s: no pass below "
        f"{floor * 1e3:.2f} ms"
    )
    table = Table("tokens in a pass", *(f"{d}, ms" for d in engines), "floor reached")
    for at, width in enumerate(WIDTHS):
        cells = [f"{seconds[at] * 1e3:.2f}" for seconds in passes.values()]
        table.add_row(str(width), *cells, f"{floor / passes[given.dtype[0]][at]:.0%}")
    console.print(table)
    table = Table("part", "ms", "share", title="a pass of one token, under the profiler")
    for name, seconds in parts.items():
        table.add_row(name, f"{seconds * 1e3:.2f}", f"{seconds / sum(parts.values()):.0%}")
    console.print(table)
    table = Table("arm", "ms a round", "drafting", "target", "rest", title="a round")
    for name, shares in rounds.items():
        table.add_row(
            name,
            f"{shares['round_s'] * 1e3:.1f}",
            *(f"{shares[part]:.1%}" for part in ("draft", "verify", "other")),
        )
    console.print(table)
    record = {
        "weights_bytes": read,
        "bandwidth_bytes_per_s": bandwidth,
        "floor_s": floor,
        "widths": WIDTHS,
        "pass_s": passes,
        "parts_s": parts,
        "rounds": rounds,
        "dtype": given.dtype,
        "hardware": hardware(),
        "versions": versions(),
    }
    given.out.write_text(json.dumps(record, indent=1))


def bandwidth_of(device: torch.device) -> float:
    """Bytes a second that all cores read together: the sum of a tensor that no cache holds."""
    block = torch.ones(READ_BYTES // 8, dtype=torch.int64, device=device)
    return READ_BYTES / median_s(device, block.sum)


def median_s(device: torch.device, run: Callable[[], Any]) -> float:
    """Median seconds of REPEATS runs, after two that do not count."""
    times = []
    for _ in range(REPEATS + 2):
        started = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def passes_of(engines: dict[str, Engine]) -> dict[str, list[float]]:
    """By dtype, the median seconds of a pass over each of WIDTHS tokens; dtypes take turns."""
    spent: dict[str, list[list[float]]] = {dtype: [[] for _ in WIDTHS] for dtype in engines}
    for engine in engines.values():
        engine.prefill([1 + i % 97 for i in range(CONTEXT)])
    for _ in range(REPEATS):
        for at, width in enumerate(WIDTHS):
            ids = torch.arange(1, width + 1)
            for dtype, engine in engines.items():
                target, new = engine.target, ids.to(engine.target.device)
                started = time.perf_counter()
                target.extend(new)
                synchronize(target.device)
                spent[dtype][at].append(time.perf_counter() - started)
                target.truncate(CONTEXT)
    return {d: [statistics.median(times) for times in widths] for d, widths in spent.items()}


def parts_of_a_pass(engine: Engine) -> dict[str, float]:
    """Seconds of one pass of one token by kind of work, the profiler's own cost included."""
    target = engine.target
    target.prefill([1 + i % 97 for i in range(CONTEXT)])
    token = torch.tensor([5], device=target.device)

    def run() -> None:
        target.extend(token)
        target.truncate(CONTEXT)

    run()
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(REPEATS):
            run()
    spent: Counter[str] = Counter()
    whole = 0.0
    for event in watched.events() or []:
        if event.cpu_parent is None:
            seconds = event.cpu_time_total / 1e6 / REPEATS
            part = next((p for p, names in PARTS.items() if event.name in names), "elementwise")
            spent[part] += seconds
            whole += seconds
    return dict(spent.most_common())


def round_shares(engine: Engine, name: str, given: argparse.Namespace) -> dict[str, float]:
    """Shares of drafting, the target's passes and the rest in the decoding of the shipped queries,
    prefill left out, and the mean seconds of a round."""
    spent = Counter[str]()
    rounds = 0
    for query in first_per_task(shipped("test"), given.limit):
        prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        result = engine.decode(name, prompt, Request(given.max_new_tokens))
        spent["draft"] += result.draft_s
        spent["verify"] += result.verify_s
        spent["other"] += result.other_s
        rounds += result.rounds
    whole = sum(spent.values())
    return {"round_s": whole / max(1, rounds), **{part: spent[part] / whole for part in spent}}


if __name__ == "__main__":
    main()
