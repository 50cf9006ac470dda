"""Milliseconds of the target's passes, by how many answers share them and how many tokens of each.

    python benchmarks/passes.py
    python benchmarks/passes.py --kernels all none --answers 1 8 32 --tokens 1 4
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/passes.py --kernels all none

Ways take turns. `--kernels none` does without draftpick's kernels in C++: PyTorch's operations, one
after the other. The last line is as on a processor without AVX-512. Answers hold 60 to 380
positions, one alone 200. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from contextlib import nullcontext
from unittest.mock import patch

import torch
from rich.console import Console

from decoders import EngineOptions
from decoders.arms import AUTOREGRESSIVE
from decoders.backends.batched.slots import BatchSlots, PassRequest
from decoders.backends.native import LlamaBackend
from decoders.common.terminal import tables
from decoders.engine import Engine
from decoders.models import loaders

HELD = (60, 380)
ALONE = 200
WARM_UP = 3
WAYS = ("all", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--answers", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--kernels", nargs="+", choices=WAYS, default=["all"])
    parser.add_argument("--most", type=int, default=64, help="tokens of a pass that are timed")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--target", default=EngineOptions().target)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--context", type=int, help="as of `draftpick serve`, for less memory")
    given = parser.parse_args()
    options = EngineOptions(
        target=given.target, dtype=given.dtype, backend=given.backend, context=given.context
    )
    ways = {name: slots(options, name, max(given.answers)) for name in given.kernels}
    rows = []
    for answers in given.answers:
        times: dict[tuple[str, int], list[float]] = {}
        for repeat in range(WARM_UP + given.repeats):
            for tokens in given.tokens:
                for name, held in ways.items():
                    if answers * tokens <= given.most:
                        seconds = one_pass(held, answers, tokens)
                        times.setdefault((name, tokens), []).extend([seconds] * (repeat >= WARM_UP))
        for name in ways:
            cells = [times.get((name, tokens)) for tokens in given.tokens]
            shown = [f"{1000 * statistics.median(cell):.1f}" if cell else "" for cell in cells]
            rows.append([str(answers), name, *shown])
    headings = ["answers", "kernels", *(f"{tokens} tokens" for tokens in given.tokens)]
    console = Console()
    for table in tables("Passes, ms", headings, rows, console.width):
        console.print(table)


def slots(options: EngineOptions, kernels: str, n: int) -> BatchSlots:
    with patch.object(loaders, "_blocked", lambda: False) if kernels == "none" else nullcontext():
        target = Engine.from_options(options, only=[AUTOREGRESSIVE]).target
    if not isinstance(target, LlamaBackend):
        raise SystemExit("passes are shared by native backends alone")
    made = BatchSlots(target, n)
    held = random.Random(0)
    for slot in made.all:
        slot.prefill([1 + i % 97 for i in range(held.randint(*HELD))])
    return made


@torch.inference_mode()
def one_pass(slots: BatchSlots, answers: int, tokens: int) -> float:
    """Seconds; what it read is forgotten."""
    asked = slots.all[:answers]
    ids = torch.arange(tokens) + 5
    if answers == 1:
        asked[0].pretend(ALONE)
    before = [slot.length for slot in asked]
    started = time.perf_counter()
    if answers == 1:
        asked[0].extend(ids)
    else:
        slots.read([PassRequest(slot, ids) for slot in asked])
    seconds = time.perf_counter() - started
    for slot, length in zip(asked, before, strict=True):
        slot.truncate(length)
    return seconds


if __name__ == "__main__":
    main()
