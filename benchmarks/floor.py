"""How far a pass of the target is from the least it can take, and where a round's time goes.

    python benchmarks/floor.py --dtype bfloat16 int8 int4 --out floor.json
    python benchmarks/floor.py --dtype bfloat16 bfloat16:graphs int4:graphs --device cuda

Two floors of a pass at batch 1. The bytes of all weights over the memory bandwidth of this machine:
whatever the kernels, each weight has to be read once. On CUDA also the kernels of a pass times what
an empty one costs inside a graph. Printed: that bandwidth, measured; passes of 1 to 17 tokens
beside the floors, dtypes interleaved; on CUDA what a pass of every dtype is made of, by the
kernels' own times in the profiler (on a CPU it is one operation); and of the first dtype the shares
of drafting, the target's passes and the rest in the answers of every arm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from collect.queries import first_per_task, shipped
from collect.replay.costs import CONTEXT
from decoders import Engine, Request
from decoders.backends.native import LlamaBackend
from decoders.backends.weights.kernel_weight import KernelWeight
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.common.sync import synchronize
from decoders.zoo import TARGET

REPEATS = {"cpu": 15, "cuda": 40}
EVENTS = 12  # times by the GPU's own clock
IN_A_ROW = 10  # passes between two of its events
EMPTY_KERNELS = 1000
WIDTHS = (1, 2, 3, 4, 5, 8, 12, 17)
READ_BYTES = 1 << 30  # larger than any cache
KERNELS = {  # parts of CUDA kernels' names, the first that fits
    "attention": ("flash", "fmha", "attention", "attend", "softmax"),
    "products": ("gemm", "gemv", "nvjet", "cutlass", "splitk", "pack_mm", "matmul", "product"),
    "norms": ("norm",),
    "copies": ("memcpy", "memset", "copy", "index", "scatter", "gather", "cat"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument(
        "--dtype", nargs="+", default=["bfloat16"], help="int4:graphs is int4 with that backend"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", help="where --dtype names none")
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--arms", default="", help="comma-separated, for the rounds; default: all")
    parser.add_argument("--limit", type=int, default=1, help="queries a task, for the rounds")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, default=Path("floor.json"))
    given = parser.parse_args()

    engines = dict(loaded(given))
    if not engines:
        parser.error("no engine was loaded")
    device = next(iter(engines.values())).target.device
    record: dict[str, Any] = {
        "target": Path(given.target).name,
        "note": given.note,
        "widths": WIDTHS,
        "dtype": list(engines),
        "hardware": hardware(),
        "versions": versions(),
    }

    def keep(**more: Any) -> None:
        record.update(more)
        write_atomically(given.out, json.dumps(record, indent=1))

    bandwidth = bandwidth_of(device)
    read = {dtype: bytes_read(engine) for dtype, engine in engines.items()}
    floors = {dtype: size / bandwidth for dtype, size in read.items()}
    keep(weights_bytes=read, bandwidth_bytes_per_s=bandwidth, floor_s=floors)
    passes = passes_of(engines)
    keep(pass_s=passes)
    if device.type == "cuda":
        keep(empty_kernel_s=empty_kernel_s(device), in_a_row_s=in_a_row_of(engines))
        parts: dict[str, dict[str, float]] = {}
        counts: dict[str, float] = {}
        names: dict[str, dict[str, float]] = {}
        for dtype, engine in engines.items():
            parts[dtype], names[dtype], counts[dtype] = parts_of_a_pass(engine)
            keep(parts_s=parts, kernels_s=names, kernels=counts)
    rounds: dict[str, dict[str, float]] = {}
    engine = next(iter(engines.values()))
    for name in engine.arm_names:
        try:
            rounds[name] = round_shares(engine, name, given)
        except DraftpickError as error:
            print(f"{name} is left out: {error}")
    keep(rounds=rounds)
    show(record)


def loaded(given: argparse.Namespace) -> Iterator[tuple[str, Engine]]:
    """(dtype as given, engine) of each that loads."""
    only = ["autoregressive", *filter(None, given.arms.split(","))] if given.arms else None
    for dtype in given.dtype:
        precision, _, backend = dtype.partition(":")
        try:
            yield (
                dtype,
                Engine.load(
                    given.target,
                    given.config,
                    only=only,
                    dtype=precision,
                    device=given.device,
                    backend=backend or given.backend,
                ),
            )
        except DraftpickError as error:
            print(f"{dtype} is left out: {error}")


def show(record: dict[str, Any]) -> None:
    console = Console(width=None if Console().is_terminal else 160)
    bandwidth, floors = record["bandwidth_bytes_per_s"], record["floor_s"]
    console.print(f"{bandwidth / 1e9:.1f} GB/s {record['note']}")
    for dtype, floor in floors.items():
        said = f"{dtype}: {record['weights_bytes'][dtype] / 1e6:.0f} MB, no pass below "
        said += f"{floor * 1e3:.3f} ms"
        if "empty_kernel_s" in record:
            launches = record["kernels"][dtype] * record["empty_kernel_s"]
            said += (
                f"; {record['kernels'][dtype]:.0f} kernels at {record['empty_kernel_s'] * 1e6:.2f} "
                f"us, no pass below {launches * 1e3:.3f} ms"
            )
        console.print(said)
    in_a_row = record.get("in_a_row_s", record["pass_s"])
    table = Table("tokens in a pass", *(f"{d}, ms" for d in floors), title="one at a time")
    for at, width in enumerate(WIDTHS):
        cells = [
            f"{seconds[at] * 1e3:.3f} ({floors[d] / in_a_row[d][at]:.0%})"
            for d, seconds in record["pass_s"].items()
        ]
        table.add_row(str(width), *cells)
    table.caption = "in brackets the share of the bandwidth floor, of passes in a row on CUDA"
    console.print(table)
    for dtype, parts in record.get("parts_s", {}).items():
        table = Table("part", "ms", "share", title=f"{dtype}: a pass of one token, profiled")
        for name, seconds in parts.items():
            table.add_row(name, f"{seconds * 1e3:.3f}", f"{seconds / sum(parts.values()):.0%}")
        console.print(table)
    table = Table("arm", "ms a round", "drafting", "target", "rest", title="a round")
    for name, shares in record["rounds"].items():
        table.add_row(
            name,
            f"{shares['round_s'] * 1e3:.2f}",
            *(f"{shares[part]:.1%}" for part in ("draft", "verify", "other")),
        )
    console.print(table)


# -- floors ---------------------------------------------------------------------------------------


def bytes_read(engine: Engine) -> int:
    """Of the weights that a pass of one token multiplies by, as they are kept."""
    target = engine.target
    if not isinstance(target, LlamaBackend):
        return target.parameters * engine.prefill([1]).logits.element_size()
    weights = target.weights
    return sum(map(_bytes, (*weights.layers, weights.norm, weights.head)))


def _bytes(part: Any) -> int:
    if isinstance(part, KernelWeight):
        return sum(map(_bytes, part.stored))
    if isinstance(part, torch.Tensor):
        return part.numel() * part.dtype.itemsize
    if is_dataclass(part):
        return sum(_bytes(getattr(part, field.name)) for field in fields(part))
    return 0


def bandwidth_of(device: torch.device) -> float:
    """Bytes a second: on CUDA of a copy, read and written; else what all cores read together, by
    the sum of a tensor that no cache holds."""
    block = torch.ones(READ_BYTES // 8, dtype=torch.int64, device=device)
    if device.type == "cuda":
        other = torch.empty_like(block)
        return 2 * READ_BYTES / event_s(lambda: other.copy_(block), 5)
    return READ_BYTES / median_s(device, block.sum)


def empty_kernel_s(device: torch.device) -> float:
    """Seconds that a graph takes for each of many kernels that do next to nothing."""
    number = torch.zeros(1, device=device)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        number.add_(1)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(EMPTY_KERNELS):
            number.add_(1)
    return event_s(graph.replay, 1) / EMPTY_KERNELS


# -- passes ---------------------------------------------------------------------------------------


def median_s(device: torch.device, run: Callable[[], Any]) -> float:
    """Median seconds of a run, after two that do not count."""
    times = []
    for _ in range(REPEATS[device.type] + 2):
        started = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def event_s(run: Callable[[], Any], in_a_row: int) -> float:
    """Median seconds of a run by the GPU's own clock, of runs that follow each other."""
    times = []
    for _ in range(EVENTS + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(in_a_row):
            run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3 / in_a_row)
    return statistics.median(times[2:])


def passes_of(engines: dict[str, Engine]) -> dict[str, list[float]]:
    """By dtype, the median seconds of a pass over each of WIDTHS tokens, waited for; dtypes take
    turns."""
    spent: dict[str, list[list[float]]] = {dtype: [[] for _ in WIDTHS] for dtype in engines}
    for engine in engines.values():
        engine.prefill([1 + i % 97 for i in range(CONTEXT)])
    repeats = REPEATS[next(iter(engines.values())).target.device.type]
    for _ in range(2 + repeats):
        for at, width in enumerate(WIDTHS):
            ids = torch.arange(1, width + 1)
            for dtype, engine in engines.items():
                target, new = engine.target, ids.to(engine.target.device)
                synchronize(target.device)
                started = time.perf_counter()
                target.extend(new)
                synchronize(target.device)
                spent[dtype][at].append(time.perf_counter() - started)
                target.truncate(CONTEXT)
    # the first two record, compile and warm up
    return {d: [statistics.median(times[2:]) for times in widths] for d, widths in spent.items()}


def in_a_row_of(engines: dict[str, Engine]) -> dict[str, list[float]]:
    """By dtype, seconds of a pass over each of WIDTHS tokens among passes that follow each other,
    the next one launched while this one runs."""
    found: dict[str, list[float]] = {}
    for dtype, engine in engines.items():
        found[dtype] = []
        for width in WIDTHS:
            run = _again(engine, torch.arange(1, width + 1, device=engine.target.device))
            found[dtype].append(event_s(run, IN_A_ROW))
    return found


def _again(engine: Engine, ids: torch.Tensor) -> Callable[[], None]:
    """A pass over these tokens after CONTEXT others, which can be run again."""
    target = engine.target
    target.prefill([1 + i % 97 for i in range(CONTEXT)])

    def run() -> None:
        target.extend(ids)
        target.truncate(CONTEXT)

    return run


def parts_of_a_pass(engine: Engine) -> tuple[dict[str, float], dict[str, float], float]:
    """Seconds of one pass of one token on CUDA by kind of work, those of its kernels by name, and
    how many kernels it launches; the profiler's own cost included."""
    device = engine.target.device
    run, repeats = _again(engine, torch.tensor([5], device=device)), REPEATS[device.type]
    for _ in range(3):
        run()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        for _ in range(repeats):
            run()
        synchronize(device)
    spent: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    launched = 0
    for event in watched.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds = event.time_range.elapsed_us() / 1e6 / repeats
            launched += 1
            kernels[event.name[:120]] += seconds
            spent[_kind(event.name.lower())] += seconds
    return dict(spent.most_common()), dict(kernels.most_common(20)), launched / repeats


def _kind(name: str) -> str:
    return next((k for k, words in KERNELS.items() if any(w in name for w in words)), "elementwise")


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
