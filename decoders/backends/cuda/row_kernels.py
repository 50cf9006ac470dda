"""Triton kernels of a pass over new tokens of many sequences, each in a row of the cache.

PyTorch's attention reads every row up to the longest one's length, and its chains of elementwise
operations launch a kernel each. Here a token's keys are read up to its own place, by one program a
key head, and a chain is one kernel. Matrices are multiplied by the libraries PyTorch has.

Only for CUDA (`row_passes.py` says when); TRITON_INTERPRET=1 runs them on a CPU, for the tests.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..llama.model import Rope
from ..llama.shape import Shape

LEAST_ROWS = 16  # of a product on tensor cores
KEYS, KEY_BYTES = 64, 1 << 14  # read at once, at most: three such parts fit any shared memory


def add_norm(h: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """h [n, d] += added [n, d], in place; returns its RMS norm times weight [d], [n, d]."""
    n, d = h.shape
    made = torch.empty_like(h)
    other = h if added is None else added
    block = triton.next_power_of_2(d)
    _add_norm[(n,)](h, other, weight, made, eps, d, block, added is not None, num_warps=4)
    return made


def place(
    qkv: Tensor, rope: Rope, rows: Tensor, positions: Tensor, room: Tensor, shape: Shape
) -> Tensor:
    """Turn queries and keys to their positions [n], put keys and values there in their rows [n].

    qkv: [n, (H + 2 KV) D], contiguous.
    rope: cos and sin [context, D].
    rows, positions: int64.
    room: [B, 2 KV, C, D], contiguous.

    Returns the queries [n, H, D].
    """
    n, (_, _, capacity, d) = qkv.shape[0], room.shape
    queries = qkv.new_empty(n, shape.heads, d)
    total = shape.heads + 2 * shape.kv_heads
    _place[(n,)](
        qkv,
        *rope,
        rows,
        positions,
        room,
        queries,
        capacity,
        shape.heads,
        shape.kv_heads,
        d,
        triton.next_power_of_2(total),
        num_warps=4,
    )
    return queries


def keys_of(head_dim: int, itemsize: int) -> int:
    """Keys that a program of attention reads at once. itemsize: bytes of a number."""
    return min(KEYS, KEY_BYTES // (head_dim * itemsize))


def attend(queries: Tensor, room: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    """queries: [n, H, D].
    room, rows: as in `place`.
    lengths: int32 [n], at least 1: how many of its row's positions each looks at.

    Returns [n, H D].
    """
    n, heads, d = queries.shape
    kv_heads, capacity = room.shape[1] // 2, room.shape[2]
    made = torch.empty_like(queries)
    group = heads // kv_heads
    _attend[(n, kv_heads)](
        queries,
        room,
        rows,
        lengths,
        made,
        capacity,
        d**-0.5 * 1.4426950408889634,  # powers of 2, not of e
        kv_heads,
        group,
        max(LEAST_ROWS, triton.next_power_of_2(group)),
        d,
        keys_of(d, queries.itemsize),
        num_warps=4,
        num_stages=3,
    )
    return made.view(n, heads * d)


def gated(gate_up: Tensor) -> Tensor:
    """[n, 2 f] -> [n, f]: silu of the first half times the second."""
    n, f = gate_up.shape[0], gate_up.shape[1] // 2
    made = gate_up.new_empty(n, f)
    block = min(1024, triton.next_power_of_2(f))
    _gated[(n, triton.cdiv(f, block))](gate_up, made, f, block, num_warps=4)
    return made


@triton.jit
def _add_norm(h, other, weight, made, eps, d, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < d
    x = tl.load(h + row * d + at, mask=inside, other=0.0)
    if ADD:
        y = tl.load(other + row * d + at, mask=inside, other=0.0)
        x = (x.to(tl.float32) + y.to(tl.float32)).to(h.dtype.element_ty)
        tl.store(h + row * d + at, x, mask=inside)
    x = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / d + eps)
    x = x * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(made + row * d + at, x.to(made.dtype.element_ty), mask=inside)


@triton.jit
def _place(
    qkv,
    cos,
    sin,
    rows,
    positions,
    room,
    queries,
    capacity,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    TOTAL: tl.constexpr = HEADS + 2 * KV
    token = tl.program_id(0).to(tl.int64)
    row, position = tl.load(rows + token), tl.load(positions + token)
    head = tl.arange(0, BLOCK)[:, None]
    at = tl.arange(0, D)[None, :]
    mine = qkv + token * TOTAL * D + head * D
    inside = head < TOTAL
    x = tl.load(mine + at, mask=inside, other=0.0)
    rolled = tl.load(mine + (at + D // 2) % D, mask=inside, other=0.0)
    c = tl.load(cos + position * D + at).to(tl.float32)
    s = tl.load(sin + position * D + at).to(tl.float32)
    turned = (x.to(tl.float32) * c + rolled.to(tl.float32) * s).to(x.dtype)
    x = tl.where(head < HEADS + KV, turned, x)
    tl.store(queries + token * HEADS * D + head * D + at, x, mask=head < HEADS)
    kept = room + (row * 2 * KV + head - HEADS) * capacity * D + position * D + at
    tl.store(kept, x, mask=(head >= HEADS) & inside)


@triton.jit
def _attend(
    queries,
    room,
    rows,
    lengths,
    made,
    capacity,
    scale,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    row, length = tl.load(rows + token), tl.load(lengths + token)
    head = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, D)[None, :]
    mine = (token * KV + kv) * GROUP * D + head * D + at
    q = tl.load(queries + mine, mask=head < GROUP, other=0.0)
    keys = room + (row * 2 * KV + kv) * capacity * D
    values = keys + KV * capacity * D
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, D), tl.float32)
    for start in range(0, length, BLOCK):
        key = start + tl.arange(0, BLOCK)
        seen = key < length
        lines = key[:, None] * D + at
        k = tl.load(keys + lines, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        above = tl.maximum(most, tl.max(scores, 1))
        shrunk = tl.exp2(most - above)
        p = tl.exp2(scores - above[:, None])
        total = total * shrunk + tl.sum(p, 1)
        v = tl.load(values + lines, mask=seen[:, None], other=0.0)
        out = out * shrunk[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        most = above
    out = out / total[:, None]
    tl.store(made + mine, out.to(made.dtype.element_ty), mask=head < GROUP)


@triton.jit
def _gated(gate_up, made, f, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < f
    gate = tl.load(gate_up + row * 2 * f + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * f + f + at, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(made + row * f + at, y.to(made.dtype.element_ty), mask=inside)
