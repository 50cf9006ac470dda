"""The fused kernels on a GPU: that they are right, and how near the floor they come.

    python benchmarks/fused_check.py --out fused_check.json

Random weights in the shapes of SmolLM2-135M and of a Llama of 1.2B, which are all that time depends
on. Four parts, each going on where another fails: every kernel beside PyTorch's operators and every
width bit by bit beside all at once; passes by CUDA events, fused, as plain graphs and eager, beside
the floor that a measured copy sets; whole rounds by the host's clock; and each kernel of a pass by
the profiler. The exit code is 1 where any failed or is not right.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.backends.cuda import fused, fused_launch
from decoders.backends.cuda.fused import FusedLayers
from decoders.backends.cuda.recorded import RecordedPasses, cuda_graphs
from decoders.backends.families import Attention
from decoders.backends.llama.attention import attention_masks
from decoders.backends.llama.kv import KVCache
from decoders.backends.llama.model import (
    LayerWeights,
    Place,
    Weights,
    rms_norm,
    rope_tables,
    ropes_at,
    through,
)
from decoders.backends.llama.shape import Shape
from decoders.backends.native import LlamaBackend
from decoders.backends.rope import Rotation
from decoders.backends.weights.packed import linear, narrowed
from decoders.device_rounds import WIDEST

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
WIDTHS = (1, 2, 4, 8, 16)
MLP = {576: 1536, 2048: 8192}  # by hidden size
HELD = 200  # positions before a timed pass
REPEATS = 30
NEAR = 0.02  # relative error: twice what two layers in bfloat16 differ by
ROUNDING = {
    "bfloat16": lambda weight: weight,
    "int8": partial(narrowed, "int8"),
    "int4": partial(narrowed, "int4"),
}


def shape_of(name: str, layers: int | None = None) -> Shape:
    kinds = (Attention(Rotation(tuple(1e4 ** (-i / 32) for i in range(32)), 1.0)),)
    if name == "135M":
        return Shape(layers or 30, 576, 9, 3, 64, 49152, 8192, 1e-5, kinds)
    return Shape(layers or 16, 2048, 32, 8, 64, 128256, 4096, 1e-5, kinds)


def weights_of(shape: Shape, kind: str = "bfloat16", tied: bool = True) -> Weights:
    mlp = MLP[shape.hidden]
    d, query = shape.hidden, shape.heads * shape.head_dim
    rows = query + 2 * shape.kv_heads * shape.head_dim

    def matrix(*size: int) -> Tensor:
        return torch.randn(*size, device=CUDA, dtype=BF16) * size[-1] ** -0.5

    def norm() -> Tensor:
        return 1 + 0.1 * torch.randn(d, device=CUDA, dtype=BF16)

    how: Callable[[Tensor], Any] = ROUNDING[kind]
    layers = []
    for _ in range(shape.layers):
        cut = [how(matrix(*size)) for size in ((rows, d), (d, query), (2 * mlp, d), (d, mlp))]
        layers.append(LayerWeights(norm(), cut[0], cut[1], norm(), cut[2], cut[3]))
    embedding = matrix(shape.vocab, d)
    head = embedding if kind == "bfloat16" else narrowed("int8", embedding)
    return Weights(embedding, layers, norm(), head, tied)


def launching(pdl: bool) -> fused_launch.Launch:
    """As passes are launched here, each kernel before the last one ends or after."""
    return replace(fused.launcher(CUDA), pdl=pdl)


def fuse(backend: LlamaBackend, pdl: bool) -> None:
    """Record fused passes from now on."""
    parts = (backend.shape, backend.weights, backend._rope, backend._cache)
    layers = FusedLayers(*parts, WIDEST, launching(pdl))
    backend.recorded = RecordedPasses(*parts, cuda_graphs(), layers)


def compile_ahead(name: str, kind: str, pdl: bool, t: int) -> None:
    """Into Triton's cache on disk, in a process of its own: kernels compile one by one."""
    shape = shape_of(name, layers=1)
    weights, rope = weights_of(shape, kind), rope_tables(shape, CUDA, BF16)
    cache = KVCache(1, 1, shape.kv_heads, shape.context, shape.head_dim, BF16, CUDA)
    layers = FusedLayers(shape, weights, rope, cache, WIDEST, launching(pdl))
    start, h = torch.zeros(1, dtype=torch.int64, device=CUDA), weights.embedding[:t]
    h = layers.through(h, 0, 1, start, 0)
    layers.logits(layers.normed(h, torch.empty_like(h)))
    torch.cuda.synchronize()


# -- right ----------------------------------------------------------------------------------------


def off(made: Tensor, expected: Tensor) -> float:
    """|made - expected| / |expected|."""
    made, expected = made.double(), expected.double()
    return float((made - expected).norm() / expected.norm())


def check(name: str, kind: str, pdl: bool) -> dict[str, Any]:
    """Errors of each kernel alone, greatest over widths and places, and of two layers; and whether
    every width gives the bits that all 17 at once give."""
    torch.manual_seed(0)
    shape = shape_of(name, layers=2)
    weights, rope = weights_of(shape, kind), rope_tables(shape, CUDA, BF16)
    size = (2, 1, shape.kv_heads, shape.context, shape.head_dim)
    cache, plain = (KVCache(*size, BF16, CUDA) for _ in range(2))
    before = torch.randn_like(cache.all)
    layers = FusedLayers(shape, weights, rope, cache, WIDEST, launching(pdl))
    launch, eps = launching(pdl), shape.norm_eps
    w = weights.layers[0]
    dense_w = {
        field: t.dequantised() if hasattr(t, "dequantised") else t
        for field, t in w.tensors().items()
    }
    worst: dict[str, float] = defaultdict(float)

    def worse(part: str, made: Tensor, expected: Tensor) -> None:
        error = off(made, expected)
        worst[part] = max(worst[part], error if error == error else float("inf"))

    for t, start in itertools.product((1, 3, 16, 17), (0, 61, 1000, shape.context - 17)):
        h = torch.randn(t, shape.hidden, device=CUDA, dtype=BF16)
        place = torch.tensor([start], device=CUDA)
        for one in (cache, plain):
            one.all.copy_(before)
        positions = torch.arange(start, start + t, device=CUDA)
        seen = torch.arange(start + t, device=CUDA) <= positions.unsqueeze(1)
        where = Place(ropes_at(rope, positions, shape), attention_masks(seen, shape, BF16))
        slots = plain.slots(start, t, where.read(start + t))
        exact = replace(weights, layers=[w_dense(layer) for layer in weights.layers])
        expected = through(h, exact.layers, shape, where, slots)
        made = layers.through(h, 0, 2, place, 0).clone()
        worse("two layers", made, expected)
        worse("cache", cache.all, plain.all)
        final = layers.normed(made, torch.empty_like(made))
        worse("norm", final, rms_norm(made.float(), weights.norm.float(), eps))
        worse("head", layers.logits(final), linear(final, weights_head(weights)))
        opened = torch.full((t, fused.gate_width(w, shape)), float("nan"), device=CUDA, dtype=BF16)
        launch.gated(h, w.mlp_norm, eps, fused.kept(w.gate_up), opened)
        x = rms_norm(h.double(), w.mlp_norm.double(), eps)
        gate, up = (x @ dense_w["gate_up"].double().T).chunk(2, -1)
        worse("gated", opened, torch.nn.functional.silu(gate) * up)
        added = torch.full_like(h, float("nan"))
        launch.added(opened, fused.kept(w.down), h, added)
        worse("added", added, h.double() + opened.double() @ dense_w["down"].double().T)

    bits = []
    h = torch.randn(17, shape.hidden, device=CUDA, dtype=BF16)
    for widths in ([17], [1] * 17, [2] * 8 + [1], [4, 13], [16, 1], [3, 5, 9]):
        cache.all.copy_(before)
        done, logits = 0, []
        for t in widths:
            place = torch.tensor([1017 + done], device=CUDA)
            made = layers.through(h[done : done + t], 0, 2, place, 0)
            logits.append(layers.logits(layers.normed(made, torch.empty_like(made))).clone())
            done += t
        bits.append((torch.cat(logits), cache.all.clone()))
    same = all(torch.equal(a, bits[0][0]) and torch.equal(b, bits[0][1]) for a, b in bits[1:])
    again = torch.equal(layers._scratch.counts, torch.zeros_like(layers._scratch.counts))
    return {"errors": dict(worst), "same bits at every width": same, "counts at zero": again}


def w_dense(w: LayerWeights) -> LayerWeights:
    parts = {k: t.dequantised() if hasattr(t, "dequantised") else t for k, t in w.tensors().items()}
    return LayerWeights(**parts)


def weights_head(weights: Weights) -> Tensor:
    head = weights.head
    return head if isinstance(head, Tensor) else head.dequantised()


# -- fast -----------------------------------------------------------------------------------------


def bandwidth() -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    return 2 * source.numel() / median_s(lambda: target.copy_(source), 10)


def median_s(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds on the device, by events around each call."""
    for _ in range(3):
        run()
    pairs = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in pairs) / 1e3


def read_bytes(weights: Weights) -> int:
    """Of the weights that a pass reads; of int8 and int4 with what scales them."""
    total = 0
    for w in weights.layers:
        for matrix in (fused.kept(m) for m in (w.qkv, w.out, w.gate_up, w.down)):
            total += sum(t.nbytes for t in {id(t): t for t in parts_of(matrix)}.values())
    return total + sum(t.nbytes for t in parts_of(fused.kept(weights.head)))


def parts_of(kept: fused_launch.PreparedWeight) -> list[Tensor]:
    parts = [kept.values]
    if kept.how != fused_launch.DENSE:
        parts.append(kept.scale)
    return parts


def times(backend: LlamaBackend, widths: tuple[int, ...]) -> dict[str, Any]:
    """Seconds of a pass on the device and of a greedy round on the host's clock, by width."""
    backend.prefill([1 + i % 997 for i in range(HELD)])
    made: dict[str, Any] = {"pass_s": {}, "round_s": {}, "records_s": {}}
    for t in widths:
        ids = torch.arange(7, 7 + t, device=CUDA)

        def once(ids: Tensor = ids) -> Tensor:
            logits = backend.extend(ids)
            backend.truncate(HELD)
            return logits

        began = time.perf_counter()
        once()
        torch.cuda.synchronize()
        made["records_s"][t] = time.perf_counter() - began
        if backend.recorded is None:
            made["pass_s"][t] = median_s(once, 10)
        else:
            key = next(k for k in backend.recorded._replays if k[:2] == ("extend", t))
            made["pass_s"][t] = median_s(backend.recorded._replays[key])
        rounds = []
        for _ in range(10):
            began = time.perf_counter()
            once().argmax(-1).tolist()
            rounds.append(time.perf_counter() - began)
        made["round_s"][t] = statistics.median(rounds)
    return made


def kernels_of(backend: LlamaBackend) -> list[dict[str, Any]]:
    """What a pass of one token launches, by name and grid."""
    from torch.profiler import ProfilerActivity, profile

    recorded = backend.recorded
    assert recorded is not None
    replay = next(run for key, run in recorded._replays.items() if key[:2] == ("extend", 1))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            replay()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in kernels:
        grid = "x".join(map(str, event.get("args", {}).get("grid", [])))
        found[event["name"][:40], grid].append(event["dur"])
    ends = [e["ts"] + e["dur"] for e in kernels]
    gaps = [b["ts"] - end for end, b in zip(ends, kernels[1:], strict=False)]
    rows = [
        {"kernel": name, "grid": grid, "a pass": len(us) / 5, "us": statistics.median(us)}
        for (name, grid), us in found.items()
    ]
    rows.sort(key=lambda row: -row["a pass"] * row["us"])
    return [*rows, {"kernel": "gap between two", "grid": "", "a pass": len(gaps) / 5, "us":
                    statistics.median(gaps) if gaps else 0.0}]  # fmt: skip


# -- all of it ------------------------------------------------------------------------------------


def guarded(name: str, found: dict[str, Any], part: Callable[[], Any]) -> None:
    began = time.perf_counter()
    try:
        found[name] = part()
        torch.cuda.synchronize()
    except Exception:
        found[name] = {"failed": traceback.format_exc()}
        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    print(f"[{time.perf_counter() - began:5.1f} s] {name}", flush=True)


def tolerant(job: tuple[Callable[..., None], tuple[Any, ...]]) -> str | None:
    function, arguments = job
    try:
        function(*arguments)
        return None
    except Exception as error:
        return f"{arguments}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=["135M", "1.2B"])
    parser.add_argument("--kinds", nargs="+", default=list(ROUNDING))
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path, default=Path("fused_check.json"))
    given = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    orders = [True, False] if hopper else [False]
    variants = [
        (name, kind, pdl)
        for name, kind, pdl in itertools.product(given.models, given.kinds, orders)
        if kind == "bfloat16" or pdl == orders[0]
    ]
    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]]
    jobs = [(compile_ahead, (*variant, t)) for variant in variants for t in (8, 16)]

    def compile_all() -> list[str]:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            return [told for told in pool.map(tolerant, jobs, chunksize=1) if told]

    if given.jobs:
        guarded("compiling", found, compile_all)
    for variant in variants:
        guarded("check " + " ".join(map(str, variant)), found, lambda v=variant: check(*v))
    guarded("bandwidth", found, bandwidth)
    for name in given.models:
        for kind in given.kinds:
            guarded(f"{name} {kind}", found, lambda n=name, k=kind: passes(n, k, orders, found))
    found["faults"] = [*faults(found)]
    given.out.write_text(json.dumps(found, indent=1, default=str), encoding="utf-8")
    tell(found, given.models, given.kinds)
    if found["faults"]:
        sys.exit("\n".join(found["faults"]))


def faults(found: dict[str, Any], at: str = "") -> Iterator[str]:
    """What failed, is not so or is too far off, each after where it stands."""
    for name, value in found.items():
        if name == "errors":
            yield from (f"{at}{part} is {e:.3g} off" for part, e in value.items() if not e <= NEAR)
        elif name == "compiling" and isinstance(value, list):
            yield from value
        elif isinstance(value, dict):
            yield from faults(value, f"{at}{name}: ")
        elif name == "failed":
            yield f"{at}failed"
        elif value is False:
            yield f"{at}not {name}"


def passes(name: str, kind: str, orders: list[bool], found: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    shape = shape_of(name)
    backend = LlamaBackend(shape, weights_of(shape, kind))
    made: dict[str, Any] = {"bytes": read_bytes(backend.weights)}
    plain = kind == "bfloat16"
    for pdl in orders if plain else orders[:1]:
        fuse(backend, pdl)
        how = "fused" if pdl or not orders[0] else "fused, no early start"
        guarded(how, made, lambda: times(backend, WIDTHS if plain else (1, 4, 16)))
        if pdl == orders[0]:
            guarded("kernels", made, lambda: kernels_of(backend))
    backend.record_passes(cuda_graphs())
    guarded("graphs", made, lambda: times(backend, WIDTHS if plain else (1,)))
    backend.recorded = None
    guarded("eager", made, lambda: times(backend, (1, 8) if plain else (1,)))
    return made


def tell(found: dict[str, Any], models: list[str], kinds: list[str]) -> None:
    """The short table at the end."""
    print()
    for name, told in found.items():
        if name.startswith("check "):
            print(name, told.get("failed", "")[-200:] if "failed" in told else told)
    speed = found.get("bandwidth")
    speed = speed if isinstance(speed, float) else 3e12
    print(f"copy: {speed / 1e9:.0f} GB/s")
    for name, kind in itertools.product(models, kinds):
        made = found.get(f"{name} {kind}", {})
        floor = made.get("bytes", 0) / speed
        print(f"\n{name} {kind}: {made.get('bytes', 0) / 1e6:.0f} MB, floor {floor * 1e3:.3f} ms")
        for how, told in made.items():
            if not isinstance(told, dict) or "pass_s" not in told:
                continue
            cells = [
                f"{t}: {s * 1e3:.3f} ({floor / s:.0%}; round {told['round_s'][t] * 1e3:.3f})"
                for t, s in told["pass_s"].items()
            ]
            print(f"  {how:22s} ms  " + "  ".join(cells))
        for row in made.get("kernels", [])[:12] if isinstance(made.get("kernels"), list) else []:
            print(
                f"    {row['kernel']:40s} {row['grid']:12s} x{row['a pass']:5.1f} {row['us']:7.2f}"
            )


if __name__ == "__main__":
    main()
