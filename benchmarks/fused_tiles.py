"""Which tiles of the fused kernels do best for Qwen2.5-Coder's 1.5B and 0.5B, in whole passes and
each alone, and where a pass's time goes. Standalone; changes nothing in the repository.

    PYTHONPATH=repo python tiles.py            # on a GPU, 100 seconds at most
    PYTHONPATH=repo python tiles.py registers  # no GPU: what each candidate takes (sm_90)
    PYTHONPATH=repo python tiles.py rehearse   # no GPU: compiles what would be compiled

Everything is compiled by processes without a GPU, which only write Triton's cache, while this one
measures what is ready.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path

BEGAN = time.perf_counter()
SECONDS = float(os.environ.get("TILES_SECONDS", "96"))
OUT = Path(os.environ.get("TILES_OUT", "tiles.json"))
JOBS = int(os.environ.get("TILES_JOBS", "14"))
os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/fused_tiles_cache")
VARIANTS_AT = Path(os.environ.get("TILES_VARIANTS", "/tmp/fused_tiles_variants"))

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from decoders.backends.cuda import fused, fused_launch
from decoders.backends.cuda import fused_kernels as plain_kernels
from decoders.backends.cuda.fused import FusedLayers
from decoders.backends.cuda.fused_launch import Launch, PreparedWeight, Scratch, Tile

BF16 = torch.bfloat16
CUDA = torch.device("cuda")
HELD, WIDEST, CONTEXT = 200, 17, 4096
WIDTHS = (1, 4, 8, 16)
LEAST = 240 << 20  # bytes in turn, five times what the cache holds


class Model:
    def __init__(self, name, layers, hidden, heads, kv_heads, head_dim, mlp, vocab):
        self.name, self.layers, self.hidden, self.heads = name, layers, hidden, heads
        self.kv_heads, self.head_dim, self.mlp, self.vocab = kv_heads, head_dim, mlp, vocab
        query = heads * head_dim
        self.query, self.rows = query, query + 2 * kv_heads * head_dim
        self.matrices = {
            "qkv": (self.rows, hidden), "out": (hidden, query), "gate_up": (2 * mlp, hidden),
            "down": (hidden, mlp), "head": (vocab, hidden),
        }
        self.bytes = 2 * (
            layers * sum(n * k for w, (n, k) in self.matrices.items() if w != "head")
            + vocab * hidden
        )


MODELS = {
    "1.5B": Model("1.5B", 28, 1536, 12, 2, 128, 8960, 151936),
    "0.5B": Model("0.5B", 24, 896, 14, 2, 64, 4864, 151936),
}

# sets, warps, maxnreg (0: as many as the compiler likes), the first as it is now
TILES = {
    "1.5B": {
        "qkv": [(2, 4, 0), (1, 4, 0), (1, 8, 0), (2, 8, 0)],
        "out": [(2, 4, 0), (1, 4, 0), (1, 8, 0), (2, 8, 0), (1, 16, 0)],
        "gate_up": [(2, 4, 0), (1, 4, 0), (2, 8, 0), (1, 8, 0), (4, 8, 0)],
        "down": [(1, 16, 0), (1, 8, 0), (1, 16, 96)],
        "head": [(2, 4, 0), (1, 4, 0), (1, 2, 0), (2, 8, 0), (1, 8, 0), (4, 8, 0)],
    },
    "0.5B": {
        "qkv": [(2, 2, 0), (1, 2, 0), (1, 4, 0)],
        "out": [(2, 2, 0), (1, 2, 0), (1, 4, 0)],
        "gate_up": [(2, 2, 0), (1, 2, 0), (1, 4, 0), (2, 4, 0)],
        "down": [(1, 16, 0), (1, 8, 0)],
        "head": [(2, 2, 0), (1, 2, 0), (2, 4, 0)],
    },
}
READING = {
    "1.5B": [(256, 8), (128, 8), (128, 16), (64, 8), (64, 4)],
    "0.5B": [(256, 8), (128, 8), (128, 4), (64, 4)],
}


# -- kernels changed a little, in files of their own ------------------------------------------------


def changed(name: str):
    """The kernels' module with a change by text, or as it is: '+' between changes.

    ahead12: so many blocks of the tokens at once. evict: weights leave caches first.
    tie: no product begins before all blocks asked for at once are there, because ptxas otherwise
    asks for them one by one (to spare registers) and waits for each.
    late: the norm's weight is read with the tokens, not held in registers from the start on.
    far24: every program also asks for what lies so many MB behind its own weights to come into L2,
    for weights that lie in one piece in the order in which they are read.
    """
    if name == "plain":
        return plain_kernels
    if name in _made:
        return _made[name]
    text = Path(plain_kernels.__file__).read_text()

    def put(old: str, new: str, count: int = 1) -> None:
        nonlocal text
        assert text.count(old) >= 1, f"{name}: no {old!r}"
        text = text.replace(old, new, count)

    for change in name.split("+"):
        kind, number = re.fullmatch(r"([a-z]+)(\d*)", change).groups()
        if kind == "ahead":
            put("64 // TOKENS", f"{int(number) * 8} // TOKENS")
        elif kind == "tie":
            put("""@triton.jit
def _times(""", """@triton.jit
def _together(xs, ys, t, COUNT: tl.constexpr, FAR: tl.constexpr):
    tie = xs[0][0]
    for i in tl.static_range(COUNT):
        tie = tie | xs[i][0]
        if FAR:
            tie = tie | ys[i][0]
    tie = tie & (t >> 24)  # nought, which no compiler knows
    made = ((xs[0][0] | tie, xs[0][1], xs[0][2], xs[0][3]),)
    for i in tl.static_range(1, COUNT):
        made += (xs[i],)
    return made


@triton.jit
def _times(""")
            put("""        x, y = xs[block % AHEAD], ys[block % AHEAD]
""", """            xs = _together(xs, ys, t, min(AHEAD, BLOCKS - block), TOKENS == 16)
        x, y = xs[block % AHEAD], ys[block % AHEAD]
""")
        elif kind == "late":
            put("""            norms += (_four(norm_ptr, eight * 4, known, THREADS),)
""", """            pass
""")
            put("    return ws, steps, norms\n", "    return ws, steps, norm_ptr\n")
            put("            xs, ys = (), ()\n", "            xs, ys, gs = (), (), ()\n")
            put("""                if TOKENS == 16:
                    at += 8 * (K // 2)
""", """                if NORM:
                    gs += (_four(norms, eight * 4, known, THREADS),)
                if TOKENS == 16:
                    at += 8 * (K // 2)
""")
            put("norms[block], MMA", "gs[block % AHEAD], MMA", 2)
        elif kind == "evict":
            put(
                "@triton.jit\ndef _row(",
                '''@triton.jit
def _four_once(ptr, at, known, THREADS: tl.constexpr):
    at = tl.multiple_of(at, 4)
    places = ptr + at[:, None] + tl.arange(0, 4)[None, :]
    codes = tl.load(places, known[:, None], 0, eviction_policy="evict_first")
    even, odd = tl.split(tl.reshape(codes, (THREADS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _row(''',
            )
            put("ws += (_four(w_ptr", "ws += (_four_once(w_ptr", 3)
        elif kind == "far":
            end = next(e for e in ("norms", "norm_ptr") if f"return ws, steps, {e}\n" in text)
            put(
                f"    return ws, steps, {end}\n",
                f'''    if KEPT == 0:
        BYTES: tl.constexpr = SETS * 16 * K  # of a program
        EACH: tl.constexpr = (BYTES // WARPS + 15) // 16 * 16  # of a warp
        place = tl.program_id(0).to(tl.int64) * BYTES + {int(number) << 20}
        address = w_ptr.to(tl.int64) + place + warp.to(tl.int64) * EACH
        mine = ((thread % 32 == 0) & (tl.program_id(1) == 0)).to(tl.int32)
        tl.inline_asm_elementwise(
            "{{ .reg .pred p; setp.ne.b32 p, $2, 0; "
            "@p cp.async.bulk.prefetch.L2.global [$1], $3; mov.b32 $0, 0; }}",
            "=r,l,r,r", [address, mine, tl.full((THREADS,), EACH, tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )
    return ws, steps, {end}
''',
            )
            # gate and up, and what is turned, by rows in turn, so that memory is read in order
            put("N, K, N // 2, NORM, KEPT", "N, K, 1, NORM, KEPT")
        else:
            raise ValueError(name)
    VARIANTS_AT.mkdir(parents=True, exist_ok=True)
    path = VARIANTS_AT / f"fused_kernels_{name.replace('+', '_')}.py"
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return _made.setdefault(name, module)


_made: dict = {}


# -- how a pass is cut -------------------------------------------------------------------------------


class Way:
    """tiles: (outputs, inputs) -> (sets, warps, maxnreg); others as fused_launch has them."""

    def __init__(self, tiles=None, reading=None, kernels="plain", pdl=True):
        self.tiles, self.reading = dict(tiles or {}), reading or (256, 8)
        self.kernels, self.pdl = kernels, pdl

    def but(self, **changes):
        made = Way(self.tiles, self.reading, self.kernels, self.pdl)
        for name, value in changes.items():
            setattr(made, name, {**self.tiles, **value} if name == "tiles" else value)
        return made

    def __enter__(self):
        usual = self._usual = fused_launch.tile_of
        self._before = fused_launch.SPAN, fused_launch.READERS, fused_launch.kernels

        def tile_of(outputs, inputs, how=0):
            chosen = self.tiles.get((outputs, inputs))
            return Tile(*chosen[:2]) if chosen else usual(outputs, inputs, how)

        fused_launch.tile_of = tile_of
        fused_launch.SPAN, fused_launch.READERS = self.reading
        fused_launch.kernels = changed(self.kernels)
        return self

    def __exit__(self, *_):
        fused_launch.tile_of = self._usual
        fused_launch.SPAN, fused_launch.READERS, fused_launch.kernels = self._before

    def launch(self):
        made = Tuned(self.pdl, mma=True)
        object.__setattr__(made, "tiles", self.tiles)
        return made


class Tuned(Launch):
    """With what is not a tile's, a limit of registers; compiles alone where `COMPILING` is set."""

    def __call__(self, kernel, grid, *arguments, **named):
        chosen = self.tiles.get((named.get("N"), named.get("K")), (0, 0, 0))
        options = {"launch_pdl": True} if self.pdl else {}
        if chosen[2]:
            options["maxnreg"] = chosen[2]
        if COMPILING is None:
            kernel[grid](*arguments, PDL=self.pdl, **named, **options)
        else:
            made = kernel.warmup(*arguments, grid=grid, PDL=self.pdl, **named, **options)
            COMPILING.append((made, kernel, named))


COMPILING: list | None = None


class NoGPU:
    """A driver that knows what is compiled for, and nothing else."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")


class Place:
    """Tensors of one kernel in its place."""

    def __init__(self, model, t, on, how=0):
        d = model.head_dim
        self.model, self.t, self.eps = model, t, 1e-6

        def empty(*size, dtype=BF16):
            return torch.zeros(size, dtype=dtype, device=on)

        self.empty = empty
        self.h, self.norm = empty(t, model.hidden), empty(model.hidden)
        self.attended, self.opened = empty(t, model.query), empty(t, model.mlp)
        self.q = empty(t, model.heads, d)
        self.out = empty(t, model.heads, d)
        self.bias, self.rope = empty(model.rows), (empty(CONTEXT, d), empty(CONTEXT, d))
        self.start = torch.full((1,), HELD, dtype=torch.int64, device=on)
        self.cache = empty(2 * model.kv_heads, CONTEXT, d)
        self.logits = empty(t, model.vocab)

    def product(self, launch, which, w):
        if which == "qkv":
            launch.queries_keys_values(
                self.h, self.norm, self.eps, w, self.bias, self.rope, self.start, 0, self.cache,
                self.q,
            )
        elif which == "out":
            launch.added(self.attended, w, self.h, self.h)
        elif which == "gate_up":
            launch.gated(self.h, self.norm, self.eps, w, self.opened)
        elif which == "down":
            launch.added(self.opened, w, self.h, self.h)
        else:
            launch.added(self.h, w, None, self.logits)

    def attend(self, launch, cache, room):
        launch.attend(self.q, cache, self.start, 0, room, self.out)

    def room(self):
        m = self.model
        return Scratch.room(WIDEST, m.heads, m.kv_heads, m.head_dim, CONTEXT, self.h)


def prepared(matrix, on, how=0):
    n, k = matrix
    if how == 0:
        values = torch.empty(n, k, dtype=BF16, device=on)
        return PreparedWeight(0, n, k, values, values)
    if how == 1:
        values = torch.empty(n, k, dtype=torch.int8, device=on)
        return PreparedWeight(1, n, k, values, torch.empty(n, dtype=BF16, device=on))
    fours = -(-k // 128)
    values = torch.empty(n, fours * 16, dtype=torch.int32, device=on)
    return PreparedWeight(2, n, k, values, torch.empty(n, fours * 4, dtype=torch.int32, device=on))


# -- compiling ---------------------------------------------------------------------------------------
# A job: (model, which of the matrices or "attend" or "norm", tile or reading, t, kernels, how, pdl)


def spills(kernels, which, cut):
    """What was seen to keep registers in memory (`registers`, sm_90)."""
    return "tie" in kernels and cut == (1, 16, 96)


def compile_job(job, capability=90):
    """-> (job, seconds, told): what was told of it where it failed."""
    global COMPILING
    name, which, cut, t, kernels, how, pdl = job
    began = time.perf_counter()
    COMPILING = []
    try:
        driver.set_active(NoGPU(capability))
        torch.set_num_threads(1)
        model, meta = MODELS[name], torch.device("meta")
        tiles = {} if which in ("attend", "norm") or cut is None else {model.matrices[which]: cut}
        way = Way(tiles, cut if which == "attend" else None, kernels, pdl)
        with way:
            place = Place(model, t, meta)
            if which == "attend":
                place.attend(way.launch(), place.cache, place.room())
            elif which == "norm":
                way.launch().normed(place.h, place.norm, place.eps, place.h)
            else:
                place.product(way.launch(), which, prepared(model.matrices[which], meta, how))
        return job, time.perf_counter() - began, ""
    except Exception as error:
        return job, time.perf_counter() - began, f"{type(error).__name__}: {error}"[:2000]


def registers(job):
    """Registers of a thread, bytes spilled and of stack, shared memory, programs an SM holds."""
    job, seconds, told = compile_job(job)
    if told:
        return {"failed": told, "s": seconds}
    made, kernel, named = COMPILING[0]
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(made.asm["cubin"])
        told = subprocess.run(
            [str(tools / "cuobjdump"), "--dump-resource-usage", cubin.name],
            capture_output=True, text=True, check=True,
        ).stdout
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", told))
    warps, regs = named["num_warps"], int(found["REG"])
    shared = made.metadata.shared
    by_registers = 65536 // (-(-regs // 8) * 8 * 32 * warps)
    programs = min(by_registers, 64 // warps, 32, 227 * 1024 // (shared + 1024))
    spilled = len(re.findall(r"\b(?:st|ld)\.local", made.asm["ptx"]))
    return {
        "registers": regs, "stack": int(found["STACK"]), "shared": shared, "programs": programs,
        "s": round(seconds, 1), "ptx_local": spilled,
    }


if __name__ == "__main__" and sys.argv[1:2] == ["registers"]:
    for name in sys.argv[2:3] or MODELS:
        model = MODELS[name]
        for which, cuts in TILES[name].items():
            n, k = model.matrices[which]
            for cut, t in itertools.product(cuts, (1, 16)):
                if len(sys.argv) > 3 and which not in sys.argv[3].split(","):
                    continue
                r = registers((name, which, cut, t, "plain", 0, True))
                grid = -(-n // (8 * cut[0]))
                waves = grid / 132 / r["programs"] if r.get("programs") else float("nan")
                held = r.get("programs", 0) * 16 * cut[0] * k
                print(name, which, cut, t, grid, f"{waves:.2f}", f"{held / 1024:.0f} KB", r, flush=True)
        for cut in READING[name]:
            if len(sys.argv) <= 3 or "attend" in sys.argv[3].split(","):
                print(name, "attend", cut, registers((name, "attend", cut, 1, "plain", 0, True)), flush=True)


# -- whole passes ------------------------------------------------------------------------------------

PARTS = ("qkv", "attend", "out", "gate_up", "down", "head")
PAD = 64 << 20  # bytes behind the last weight, that programs may ask for ahead


class Whole:
    """A model of random weights in one piece, in the order in which a pass reads them."""

    def __init__(self, model, how=0):
        self.model, self.how = model, how
        self.room = torch.empty((model.bytes + PAD) // 2 + 1024, dtype=BF16, device=CUDA)
        self.room.normal_(0, 0.03)
        at, self.layers = 0, []
        for _ in range(model.layers):
            layer = {}
            for which in ("qkv", "out", "gate_up", "down"):
                layer[which], at = self.piece(model.matrices[which], at, how)
            self.layers.append(layer)
        self.head, _ = self.piece(model.matrices["head"], at, min(how, 1))
        if how:  # int4's own tensors, not in one piece
            self.layers = [
                {w: self.rounded(model.matrices[w], 2) for w in ("qkv", "out", "gate_up", "down")}
                for _ in range(model.layers)
            ]
            self.head = self.rounded(model.matrices["head"], 1)
        kept = [w for layer in self.layers for w in layer.values()] + [self.head]
        self.bytes = sum(w.values.nbytes + (w.scale.nbytes if w.how else 0) for w in kept)
        d = model.head_dim
        self.caches = torch.randn(
            model.layers, 2 * model.kv_heads, CONTEXT, d, dtype=BF16, device=CUDA
        )
        n, k = model.matrices["head"]
        self.embedding = self.room[: n * k].view(n, k)
        self.pool = torch.cuda.graph_pool_handle()
        self.aside = torch.cuda.Stream()

    def piece(self, matrix, at, how=0):
        n, k = matrix
        values = self.room[at : at + n * k].view(n, k)
        return PreparedWeight(0, n, k, values, values), at + n * k

    def rounded(self, matrix, how):
        w = prepared(matrix, CUDA, how)
        w.values.random_(-100, 100) if how == 1 else w.values.random_(-(2**31), 2**31 - 1)
        w.scale.fill_(0.001) if how == 1 else w.scale.fill_(0x41003A83)  # step 0.001, zero 8
        return w

    def pass_(self, way, t=1, without=(), held=HELD):
        place = Place(self.model, t, CUDA)
        place.norm.fill_(1)
        place.rope[0].fill_(1)
        place.start.fill_(held)
        ids = torch.arange(7, 7 + t, device=CUDA)
        first, states = torch.empty_like(place.h), place.h

        def run():
            launch = way.launch()
            h = torch.index_select(self.embedding, 0, ids, out=first)
            for layer, cache in zip(self.layers, self.caches):
                place.h, place.cache = h, cache
                if "qkv" not in without:
                    place.product(launch, "qkv", layer["qkv"])
                if "attend" not in without:
                    launch.attend(place.q, cache, place.start, 0, room, place.attended.view_as(place.q))
                if "out" not in without:
                    launch.added(place.attended, layer["out"], h, states)
                h = place.h = states
                if "gate_up" not in without:
                    place.product(launch, "gate_up", layer["gate_up"])
                if "down" not in without:
                    place.product(launch, "down", layer["down"])
            launch.normed(h, place.norm, place.eps, first)
            place.h = first
            if "head" not in without:
                place.product(launch, "head", self.head)
            return place.logits

        with way:
            room = place.room()
            return self.graph(run)

    def alone(self, way, which, t=1):
        n, k = self.model.matrices[which]
        copies = max(2, min(160, -(-LEAST // (2 * n * k))))
        weights = [self.piece((n, k), (i * n * k) % (len(self.room) - n * k - 8) // 8 * 8)[0]
                   for i in range(copies)]
        if self.how:
            weights = [w for layer in self.layers for w in [layer[which]]] if which != "head" else [self.head]
        place = Place(self.model, t, CUDA)
        place.norm.fill_(1)

        def run():
            launch = way.launch()
            for w in weights:
                place.product(launch, which, w)
            return place.h

        with way:
            return self.graph(run), len(weights)

    def attention(self, way, held):
        place = Place(self.model, 1, CUDA)
        place.start.fill_(held)

        def run():
            launch = way.launch()
            for cache in self.caches:
                place.attend(launch, cache, room)
            return place.out

        with way:
            room = place.room()
            return self.graph(run), len(self.caches)

    def graph(self, run):
        self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            run()
        torch.cuda.current_stream().wait_stream(self.aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            made = run()
        graph.made, graph.keep = made, run  # its tensors stay
        return graph


def us(graph, repeats=15):
    """Median microseconds of a replay by events."""
    for _ in range(3):
        graph.replay()
    pairs = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3


# -- the session -------------------------------------------------------------------------------------

KERNELS = ("plain", "tie", "tie+late")  # with every tile
CHANGES = ("tie", "tie+late", "tie+ahead12", "evict", "tie+evict", "far24", "tie+far12", "tie+far24",
           "tie+far40")


class Session:
    def __init__(self, pool, capability):
        self.pool, self.capability = pool, capability
        self.jobs, self.found = {}, {"failed": {}}
        self.wholes = {}

    def left(self):
        return SECONDS - (time.perf_counter() - BEGAN)

    def ask(self, *jobs):
        for job in jobs:
            if job not in self.jobs:
                self.jobs[job] = self.pool.apply_async(compile_job, (job, self.capability))

    def ready(self, *jobs):
        """Whether these compiled; waits for them."""
        self.ask(*jobs)
        for job in jobs:
            try:
                told = self.jobs[job].get(max(0.1, self.left()))[2]
            except multiprocessing.TimeoutError:
                told = "not in time"
            if told:
                self.found["failed"][str(job)] = told
                return False
        return True

    def jobs_of(self, name, way, t=1, how=0):
        model = MODELS[name]
        made = []
        for which, matrix in model.matrices.items():
            made.append((name, which, way.tiles.get(matrix), t, way.kernels,
                         min(how, 1) if which == "head" else how, way.pdl))
        made.append((name, "attend", way.reading, t, way.kernels, 0, way.pdl))
        made.append((name, "norm", None, t, way.kernels, 0, way.pdl))
        return made

    def time(self, name, way, t=1, repeats=15, **how):
        """Microseconds of a pass, None where it does not compile or run."""
        whole = self.wholes[name]
        if not self.ready(*self.jobs_of(name, way, t, whole.how)):
            return None
        try:
            graph = whole.pass_(way, t, **how)
            took = us(graph, repeats)
            self.made = graph.made
            return took
        except Exception as error:
            if "CUDA error" in str(error):
                raise
            self.found["failed"][f"{name} {vars(way)} {t}"] = traceback.format_exc()[-1500:]
            return None

    def save(self):
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(self.found, indent=1, default=str))

    def part(self, title, run, seconds=2.0):
        if self.left() < seconds:
            print(f"left out: {title}", flush=True)
            return
        began = time.perf_counter()
        try:
            self.found[title] = run()
        except Exception:
            self.found[title] = {"failed": traceback.format_exc()[-3000:]}
            print(f"FAILED {title}\n{traceback.format_exc()}", flush=True)
        self.save()
        print(f"[{time.perf_counter() - began:5.1f} s, {self.left():5.1f} left] {title}", flush=True)

    # -- parts

    def floor(self, name):
        return self.wholes[name].bytes / self.found["bytes a second"] * 1e6

    def bandwidth(self):
        source = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA).fill_(1)
        target = torch.empty_like(source)
        pairs = []
        for _ in range(13):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            target.copy_(source)
            b.record()
            pairs.append((a, b))
        torch.cuda.synchronize()
        return 2 * source.numel() / statistics.median(a.elapsed_time(b) for a, b in pairs[3:]) * 1e3

    def widths(self, name, way, widths=WIDTHS):
        return {t: self.time(name, way, t) for t in widths}

    def changes(self, name, way, changes):
        """Passes by changed kernels; of those that should not change a bit, whether they do."""
        base = self.time(name, way)
        logits, found = self.made.clone(), {"plain": {"us": base}}
        for change in changes:
            self.ask(*self.jobs_of(name, way.but(kernels=change)))
        for change in changes:
            if self.left() < 3:
                break
            took = self.time(name, way.but(kernels=change))
            found[change] = {"us": took}
            if took is not None and "far" not in change:
                found[change]["same bits"] = bool(torch.equal(logits, self.made))
        found["plain again"] = {"us": self.time(name, way)}
        found["no early start"] = {"us": self.time(name, way.but(pdl=False))}
        return found

    def shares(self, name, way):
        """What a pass is spared without each part."""
        base = self.time(name, way)
        found = {"pass": base}
        for parts in [(p,) for p in PARTS] + [("qkv", "attend", "out"), ("gate_up", "down")]:
            took = self.time(name, way, without=parts)
            if took is not None:
                found["without " + "+".join(parts)] = base - took
        found["pass at 1000"] = self.time(name, way, held=1000)
        return found

    def readings(self, name, way):
        found = {}
        for reading in READING[name]:
            other = way.but(reading=reading)
            if not self.ready((name, "attend", reading, 1, way.kernels, 0, True)):
                continue
            cells = []
            for held in (200, 1000):
                graph, count = self.wholes[name].attention(other, held)
                cells.append(us(graph, 8) / count)
            found[str(reading)] = {
                "alone at 200": cells[0], "at 1000": cells[1], "pass": self.time(name, other)
            }
        return found

    def descent(self, name, way):
        """The tile of each matrix in turn by whole passes, kept where it is a gain of 0.2% twice;
        -> way, all that was timed."""
        model, told = MODELS[name], []
        best = self.time(name, way, repeats=25)
        told.append(["as it is", best])
        for which in ("gate_up", "down", "head", "out", "qkv"):
            rows = []
            for cut in TILES[name][which][1:]:
                if self.left() < 4:
                    break
                if spills(way.kernels, which, cut):
                    continue
                took = self.time(name, way.but(tiles={model.matrices[which]: cut}))
                if took is not None:
                    rows.append((took, cut))
                    told.append([which, cut, took])
            rows.sort()
            if rows and rows[0][0] < best * 0.998:
                other = way.but(tiles={model.matrices[which]: rows[0][1]})
                again = self.time(name, other, repeats=25)
                if again is not None and again < best * 0.998:
                    way, best = other, again
                    told.append(["kept", which, rows[0][1], again])
        for reading in READING[name][1:]:
            if self.left() < 4:
                break
            took = self.time(name, way.but(reading=reading))
            told.append(["attend", reading, took])
            if took is not None and took < best * 0.998:
                way, best = way.but(reading=reading), took
                told.append(["kept", "attend", reading, took])
        return way, {"us": best, "way": str(vars(way)), "timed": told}

    def alone(self, name, kernels):
        """Microseconds of each product alone, by tile."""
        model, found = MODELS[name], defaultdict(dict)
        for which, cuts in TILES[name].items():
            for cut in cuts:
                for kernel in kernels:
                    if spills(kernel, which, cut):
                        continue
                    how = self.wholes[name].how
                    job = (name, which, cut, 1, kernel, min(how, 1) if which == "head" else how, True)
                    if self.left() < 3 or not self.ready(job):
                        continue
                    graph, count = self.wholes[name].alone(
                        Way({model.matrices[which]: cut}, kernels=kernel), which
                    )
                    found[which][f"{cut} {kernel}"] = us(graph, 5) / count
            found[which]["floor"] = (
                2 * model.matrices[which][0] * model.matrices[which][1]
                / self.found["bytes a second"] * 1e6
            )
        return dict(found)

    def profile(self, name, way):
        """Start and length of each kernel of two layers in the middle, by the profiler."""
        from torch.profiler import ProfilerActivity, profile

        graph = self.wholes[name].pass_(way)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            seen.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        kernels = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
        last = kernels[-(len(kernels) // 3) :]
        some = last[51:66]
        return [[e["name"][:24], round(e["ts"] - some[0]["ts"], 2), e["dur"]] for e in some] + [
            [last[-1]["name"][:24], "head", last[-1]["dur"]]]


def initialised(capability):
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def everything(s, names):
    s.part("bytes a second", s.bandwidth)
    for name in names:
        model = MODELS[name]
        small = name != "1.5B"
        s.part(f"{name} weights", lambda: s.wholes.setdefault(name, Whole(model)).bytes)
        if name not in s.wholes:
            return
        base = Way()
        s.part(f"{name} as it is", lambda: s.widths(name, base))
        changes = ("tie", "tie+late", "tie+far24") if small else CHANGES
        s.part(f"{name} changed kernels", lambda: s.changes(name, base, changes), 6)
        s.part(f"{name} shares", lambda: s.shares(name, base), 5)
        ways = {}
        for kernels in KERNELS[1:2] if small else (KERNELS[1], KERNELS[0], KERNELS[2]):

            def descend(kernels=kernels):
                ways[kernels], told = s.descent(name, base.but(kernels=kernels))
                w = ways[kernels]
                s.found.setdefault("ways", {})[f"{name} {kernels}"] = [
                    told["us"], [[*m, *c] for m, c in w.tiles.items()], list(w.reading), kernels]
                return told

            s.part(f"{name} best tiles, {kernels}", descend, 8)
        for kernels, way in ways.items():
            tiles = {m: c for m, c in way.tiles.items()}
            s.ask(*(j for t in (1, 16) for j in s.jobs_of(name, way, t)))
            s.part(f"{name} best tiles at all widths, {kernels}",
                   lambda way=way: s.widths(name, way.but(reading=base.reading)), 4)
            if way.reading != base.reading:
                s.part(f"{name} best tiles and attention at all widths, {kernels}",
                       lambda way=way: s.widths(name, way), 4)
        if "tie" in ways and not small:
            s.part(f"{name} best tiles, changed kernels", lambda: s.changes(
                name, ways["tie"].but(kernels="plain"), CHANGES), 6)
        s.part(f"{name} attention", lambda: s.readings(name, base), 3)
        if not small:
            s.part(f"{name} shares of the best", lambda: s.shares(name, ways["tie"]), 12)
        s.part(f"{name} alone", lambda: s.alone(name, KERNELS[:2]), 6)
        if not small:
            s.part(f"{name} profile", lambda: s.profile(name, base), 30)
    if "1.5B" in names and s.left() > 8:
        s.wholes.clear()
        torch.cuda.empty_cache()
        s.part("1.5B int4 weights", lambda: s.wholes.setdefault("1.5B", Whole(MODELS["1.5B"], 2)).bytes)
        s.part("1.5B int4", lambda: {k: s.time("1.5B", Way(kernels=k)) for k in KERNELS[:2]}, 4)


def asked_first(s, names):
    """All that is surely needed, in the order in which it is."""
    for name in names:
        base = Way()
        for t in (1, 16):
            s.ask(*s.jobs_of(name, base, t))
        small = name != "1.5B"
        for change in ("tie", "tie+late", "tie+far24") if small else CHANGES:
            s.ask(*s.jobs_of(name, base.but(kernels=change)))
        s.ask(*s.jobs_of(name, base.but(pdl=False)))
        for kernels in KERNELS[1:2] if small else (KERNELS[1], KERNELS[0], KERNELS[2]):
            s.ask(*((name, "attend", r, 1, kernels, 0, True) for r in READING[name]))
            for which in ("gate_up", "down", "head", "out", "qkv"):
                s.ask(*((name, which, cut, 1, kernels, 0, True) for cut in TILES[name][which]))
        if small:
            s.ask(*((name, w, c, 1, "plain", 0, True) for w, cs in TILES[name].items() for c in cs))


def tell(found):
    speed = found.get("bytes a second")
    print(f"\n{found.get('device')}; copy {speed / 1e9:.0f} GB/s" if isinstance(speed, float) else "")
    for title, told in found.items():
        if not isinstance(told, dict) or title in ("failed", "ways"):
            continue
        name = title.split()[0] + (" int4" if " int4" in title else "")
        total = found.get(f"{name} weights")
        floor = total / speed * 1e6 if isinstance(total, int) and isinstance(speed, float) else None

        def cell(x):
            if not isinstance(x, float):
                return str(x)
            return f"{x:.1f} ({floor / x:.1%})" if floor and x > floor * 0.9 else f"{x:.2f}"

        print(f"\n{title}" + (f" (floor {floor:.0f} us)" if floor else ""))
        if "failed" in told:
            print("  FAILED", told["failed"][-300:])
        elif "timed" in told:
            print(f"  best {cell(told['us'])} {told['way']}")
            for row in told["timed"]:
                print("   ", *(cell(x) for x in row))
        else:
            for key, value in told.items():
                if isinstance(value, dict):
                    value = "  ".join(f"{k}: {cell(v)}" for k, v in value.items())
                    print(f"  {key:22s} {value}")
                else:
                    print(f"  {key!s:22s} {cell(value)}")
    for title, told in found.items():
        if isinstance(told, list):
            print(f"\n{title}", *(f"  {row}" for row in told), sep="\n")
    for job, told in found.get("failed", {}).items():
        print("failed:", job, told[-200:].replace("\n", " "))


def main():
    rehearse = sys.argv[1:2] == ["rehearse"]
    names = [n for n in sys.argv[1:] if n in MODELS] or list(MODELS)
    for change in CHANGES:
        changed(change)  # written once, before processes read them
    if rehearse:
        capability = 90
    else:
        major, minor = torch.cuda.get_device_capability()
        capability = 10 * major + minor
    pool = multiprocessing.get_context("spawn").Pool(JOBS, initialised, (capability,))
    try:
        s = Session(pool, capability)
        asked_first(s, names)
        if rehearse:
            for job in list(s.jobs):
                _, took, told = s.jobs[job].get()
                print(f"{took:5.1f} s {job} {told[:300]}", flush=True)
            print(len(s.jobs), "jobs", time.perf_counter() - BEGAN, "s")
            return
        s.found["device"], s.found["torch"] = torch.cuda.get_device_name(), torch.__version__
        torch.manual_seed(0)
        everything(s, names)
        s.found["compiled"] = str({"jobs": len(s.jobs)})
        s.save()
        tell(s.found)
        print(f"{time.perf_counter() - BEGAN:.0f} s in all")
    finally:
        pool.terminate()


if __name__ == "__main__" and sys.argv[1:2] != ["registers"]:
    main()
