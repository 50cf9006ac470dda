"""Which tiles of the fused kernels do best on a GPU, each alone and in whole passes.

    python benchmarks/fused_tiles.py --out fused_tiles.json

For the matrices of SmolLM2-135M and of a Llama of 1.2B, in bfloat16 or what `--kinds` says: each
product by rows of a program, its warps and whether it starts early, over weights enough that no
cache holds them, as a graph; attention by its keys at once, warps and early start; then whole
passes by the table as it is, by the best of each, and without early starts. Compiles beforehand in
processes of their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fused_check import (
    BF16,
    CUDA,
    HELD,
    ROUNDING,
    compile_ahead,
    fuse,
    guarded,
    median_s,
    shape_of,
    times,
    tolerant,
    weights_of,
)
from torch import Tensor

from decoders.backends.cuda import fused, fused_launch
from decoders.backends.cuda.fused_launch import Launch, Scratch, Tile
from decoders.backends.cuda.recorded import WIDEST, cuda_graphs
from decoders.backends.native import LlamaBackend

LEAST = 240 << 20  # bytes in turn, five times what the cache holds
WIDTHS = (1, 4, 8, 16)
READING = [  # keys at once, warps, early
    (span, warps, early)
    for span, warps, early in itertools.product((128, 256), (4, 8), (True, False))
]
Matrix = tuple[int, int]  # outputs, inputs
Reading = tuple[int, int, bool]


def matrices(name: str) -> dict[str, Matrix]:
    shape = shape_of(name)
    d, query, mlp = shape.hidden, shape.heads * shape.head_dim, {576: 1536, 2048: 8192}
    rows = query + 2 * shape.kv_heads * shape.head_dim
    return {
        "qkv": (rows, d), "out": (d, query), "gate_up": (2 * mlp[d], d), "down": (d, mlp[d]),
        "head": (shape.vocab, d),
    }  # fmt: skip


def tiles(matrix: Matrix, kind: str) -> list[Tile]:
    """Those whose threads hold neither too little nor too much, at most a dozen."""
    outputs, inputs = matrix
    chosen = {fused_launch.tile_of(outputs, inputs, list(ROUNDING).index(kind))}
    for sets, warps in itertools.product((1, 2, 4), (1, 2, 4, 8, 16)):
        held = -(-inputs // (32 * warps)) * 4 * sets  # registers of a thread
        if 8 <= held <= 96 and inputs >= 32 * warps:
            chosen.add(Tile(sets, warps))
    return sorted(chosen, key=lambda tile: (tile.sets, tile.warps))


@contextmanager
def cut_by(table: dict[tuple[int, int], Tile], reading: Reading | None = None) -> Iterator[None]:
    """Other tiles for the matrices [outputs, inputs] of a table, and another way to read keys."""
    usual = fused_launch.tile_of
    before = fused_launch.SPAN, fused_launch.READERS, fused_launch.EARLY

    def tile_of(outputs: int, inputs: int, how: int = fused_launch.DENSE) -> Tile:
        return table.get((outputs, inputs)) or usual(outputs, inputs, how)

    try:
        fused_launch.tile_of = tile_of
        if reading is not None:
            fused_launch.SPAN, fused_launch.READERS, fused_launch.EARLY = reading
        yield
    finally:
        fused_launch.tile_of = usual
        fused_launch.SPAN, fused_launch.READERS, fused_launch.EARLY = before


def products(name: str, which: str, kind: str, copies: int, t: int = 1) -> Callable[[], Tensor]:
    """A product over several weights in turn, in its place: with its norm, residual or rotation."""
    shape = shape_of(name)
    outputs, inputs = matrices(name)[which]
    how = ROUNDING["int8" if which == "head" and kind == "int4" else kind]
    x = torch.randn(t, inputs, device=CUDA, dtype=BF16)
    weights = [
        fused.kept(how(torch.randn(outputs, inputs, device=CUDA, dtype=BF16) * inputs**-0.5))
        for _ in range(copies)
    ]
    launch, norm = Launch(True, mma=True), torch.ones(inputs, device=CUDA, dtype=BF16)
    out = torch.zeros(t, outputs // (1 + (which == "gate_up")), device=CUDA, dtype=BF16)
    turned = torch.ones(1024, shape.head_dim, device=CUDA, dtype=BF16)
    cache = turned.new_zeros(2 * shape.kv_heads, 1024, shape.head_dim)
    q = turned.new_zeros(t, shape.heads, shape.head_dim)
    start = torch.full((1,), HELD, device=CUDA)

    def run() -> Tensor:
        for w in weights:
            if which == "qkv":
                launch.queries_keys_values(
                    x, norm, 1e-5, w, None, (turned, turned), start, 0, cache, q
                )
            elif which == "gate_up":
                launch.gated(x, norm, 1e-5, w, out)
            else:
                launch.added(x, w, None if which == "head" else out, out)
        return out

    return run


def compile_product(name: str, which: str, kind: str, tile: Tile, t: int) -> None:
    with cut_by({matrices(name)[which]: tile}):
        products(name, which, kind, 1, t)()
    torch.cuda.synchronize()


def timed_products(name: str, which: str, kind: str) -> list[tuple[float, Tile]]:
    """Microseconds of one product of one token by tile, the best first."""
    outputs, inputs = matrix = matrices(name)[which]
    copies = max(2, min(400, -(-LEAST // (2 * outputs * inputs))))
    run, found = products(name, which, kind, copies), []
    for tile in tiles(matrix, kind):
        with cut_by({(outputs, inputs): tile}):
            replay = cuda_graphs()(run)
        found.append((median_s(replay, 5) / copies * 1e6, tile))
    return sorted(found, key=lambda pair: pair[0])


def attention(name: str, held: int) -> Callable[[], Tensor]:
    """Attention of one token to `held` others in 30 caches in turn."""
    shape = shape_of(name)
    size = (30, 2 * shape.kv_heads, 2048, shape.head_dim)
    caches = torch.randn(size, device=CUDA, dtype=BF16)
    q = torch.randn(1, shape.heads, shape.head_dim, device=CUDA, dtype=BF16)
    out, start = torch.empty_like(q), torch.full((1,), held, device=CUDA)
    room = Scratch.room(WIDEST, shape.heads, shape.kv_heads, shape.head_dim, 2048, q)
    launch = Launch(True, mma=True)

    def run() -> Tensor:
        for cache in caches:
            launch.attend(q, cache, start, 0, room, out)
        return out

    return run


def compile_attention(name: str, reading: Reading) -> None:
    with cut_by({}, reading):
        attention(name, HELD)()
    torch.cuda.synchronize()


def timed_attention(name: str) -> list[tuple[float, float, Reading]]:
    """Microseconds over 200 and over 1000 positions, the best of 200 first."""
    found = []
    for reading in READING:
        with cut_by({}, reading):
            near, far = (
                median_s(cuda_graphs()(attention(name, held)), 5) / 30 * 1e6
                for held in (HELD, 1000)
            )
        found.append((near, far, reading))
    return sorted(found)


def timed_passes(
    backend: LlamaBackend,
    table: dict[tuple[int, int], Tile],
    reading: Reading | None,
    widths: tuple[int, ...],
) -> dict[str, Any]:
    with cut_by(table, reading):
        fuse(backend, True)
        return times(backend, widths)


def whole(name: str, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """Seconds of passes by each way to cut them."""
    best = {
        matrices(name)[which]: found[f"{name} {kind} {which}"][0][1]
        for which in matrices(name)
        if isinstance(found.get(f"{name} {kind} {which}"), list)
    }
    reads = found.get(f"{name} attention")
    read = reads[0][2] if isinstance(reads, list) else None
    plain = {size: Tile(t.sets, t.warps, False) for size, t in best.items()}
    backend = LlamaBackend(shape_of(name), weights_of(shape_of(name), kind))
    ways: dict[str, tuple[dict[tuple[int, int], Tile], Reading | None]] = {
        "as it is": ({}, None), "best of each": (best, read),
        "best, none early": (plain, (*read[:2], False) if read else None),
    }  # fmt: skip
    made: dict[str, Any] = {}
    for way, (table, reading) in ways.items():
        widths = WIDTHS if way in ("as it is", "best of each") else (1,)
        guarded(way, made, partial(timed_passes, backend, table, reading, widths))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=["135M", "1.2B"])
    parser.add_argument("--kinds", nargs="+", default=["bfloat16"])
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=110, help="no part is begun after them")
    parser.add_argument("--out", type=Path, default=Path("fused_tiles.json"))
    given = parser.parse_args()
    began = time.perf_counter()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    pairs = list(itertools.product(given.models, given.kinds))
    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (compile_product, (name, which, kind, tile, 1))
        for name, kind in pairs
        for which, matrix in matrices(name).items()
        for tile in tiles(matrix, kind)
    ]
    jobs += [(compile_attention, (name, r)) for name in given.models for r in READING]
    jobs += [(compile_ahead, (name, kind, True, t)) for name, kind in pairs for t in (*WIDTHS[1:],)]

    def compile_all() -> list[str]:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            return [told for told in pool.map(tolerant, jobs, chunksize=1) if told]

    def part(name: str, run: Callable[[], Any]) -> None:
        if time.perf_counter() - began < given.seconds:
            guarded(name, found, run)
            given.out.write_text(json.dumps(found, indent=1, default=vars))

    part("compiling", compile_all)
    for name in given.models:
        part(f"{name} attention", partial(timed_attention, name))
        for kind in given.kinds:
            for which in matrices(name):
                key = f"{name} {kind} {which}"
                part(key, partial(timed_products, name, which, kind))
            part(f"{name} {kind} passes", partial(whole, name, kind, found))
    tell(found)


def tell(found: dict[str, Any]) -> None:
    """The short table at the end."""
    for name, told in found.items():
        if name.endswith("passes") and isinstance(told, dict):
            for way, one in told.items():
                us = {t: round(s * 1e6) for t, s in one.get("pass_s", {}).items()}
                print(f"{name}, {way}: {us} us")
        elif isinstance(told, list) and name != "compiling":
            print(name, *(f"  {row}" for row in told[:4]), sep="\n")
        elif name == "compiling" and told:
            print(f"did not compile: {str(told)[:2000]}")


if __name__ == "__main__":
    main()
