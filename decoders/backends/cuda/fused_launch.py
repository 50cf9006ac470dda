"""Launching the fused kernels: how weights are kept for them, and how products are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from . import fused_kernels as kernels

ROWS = 16  # of a tile of attention: what a tensor core takes at least
SPAN = 256  # keys that one program of attention reads at once, at most
READERS = 8  # warps of that program
AT_ONCE = 4  # splits of attention that are added up at once
SHARED = 132 * 1024  # bytes of shared memory that attention takes: more would not fit registers
LOG2_E = 1.4426950408889634
DENSE, INT8, INT4 = 0, 1, 2  # how a weight is kept
BLOCKS = 16  # of 32 inputs of a row, that a warp holds at most
MOST = 12  # of those, for a program to hold two sets of rows
FEW_WEIGHTS = 1 << 19  # weights, too few for programs that hold so much


@dataclass(frozen=True)
class PreparedWeight:
    """A weight as the kernels read it.

    values: [N, K] in bfloat16 or int8. For int4 int32 [N, ceil(K / 128) * 16]: eight inputs in a
        number, from the lowest bits on the first, third, fifth and seventh, then the others; of
        each four groups of 32 inputs the first eight of every group, then the second, third and
        fourth.
    scale: bfloat16 [N] for int8; for int4 int32 [N, ceil(K / 128) * 4], each group's step in the
        lower half of a number and its zero in the upper, both bfloat16; else the values again, not
        read.
    """

    how: int
    outputs: int
    inputs: int
    values: Tensor
    scale: Tensor


def tile_of(outputs: int, inputs: int) -> tuple[int, int]:
    """Sets of eight rows of one program, and its warps, which share each row, for a product with a
    matrix [outputs, inputs]: by what was fastest on an H100 (fused_tiles.py, commit 0257472).
    Widths do not come in, so that they change no sum."""
    warps = min(16, triton.next_power_of_2(triton.cdiv(inputs, 32 * BLOCKS)))
    if outputs * inputs <= FEW_WEIGHTS:
        return 1, min(16, 2 * warps)
    return 2 if inputs <= 32 * warps * MOST else 1, warps


def span_of(head_dim: int, shared: int) -> int:
    """Keys that one program of attention reads at once: they, their values and the tile's queries
    lie in shared memory, of which there are so many bytes."""
    span = SPAN
    while 2 * head_dim * (2 * span + ROWS) > shared:
        span //= 2
    return span


def splits_of(capacity: int, span: int) -> int:
    """Programs among which the keys of one head are shared out."""
    return min(-(-capacity // span), 64)


@dataclass(frozen=True)
class Launch:
    """pdl: whether kernels may start before the one in front of them has ended (Hopper and newer),
        and wait for it when their weights are on the way.
    mma: whether there are tensor cores that take bfloat16 (Ampere and newer).
    shared: bytes of shared memory that attention may take.
    """

    pdl: bool = False
    mma: bool = False
    shared: int = SHARED

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        options = {"launch_pdl": True} if self.pdl else {}
        kernel[grid](*arguments, PDL=self.pdl, **named, **options)

    def product(
        self,
        kernel: Any,
        w: PreparedWeight,
        t: int,
        before: tuple[Tensor, ...],
        after: tuple[Any, ...],
        **named: Any,
    ) -> None:
        """One of the kernels that multiply by a weight."""
        sets, warps = tile_of(w.outputs, w.inputs)
        tokens = 8 if t <= 8 else 16
        self(
            kernel,
            (triton.cdiv(w.outputs, 8 * sets), triton.cdiv(t, tokens)),
            *(tensor.view(torch.int32) for tensor in (*before, w.values)),
            w.scale,
            *after,
            N=w.outputs,
            K=w.inputs,
            KEPT=w.how,
            TOKENS=tokens,
            SETS=sets,
            WARPS=warps,
            MMA=self.mma,
            num_warps=warps,
            **named,
        )

    # Rows of every tensor below are contiguous. [t, K] etc. may be the first rows of a longer one.

    def queries_keys_values(
        self,
        h: Tensor,
        norm: Tensor,
        eps: float,
        w: PreparedWeight,
        bias: Tensor | None,
        rope: tuple[Tensor, Tensor],
        start: Tensor,
        behind: int,
        cache: Tensor,
        q: Tensor,
    ) -> None:
        """h [t, d] -> q [t, H, D], turned to the positions start + behind.., and the keys and
        values into cache [2 KV, C, D].

        rope: cos and sin of `rope_table`, each [context, D].
        start: int64 [1].
        """
        rows, capacity, head_dim = cache.shape
        self.product(
            kernels._queries_keys_values,
            w,
            len(h),
            (h, norm),
            (
                *(w.values if bias is None else bias, *rope, start, q, cache),
                *(len(h), behind, capacity, eps),
            ),
            HEADS=q.shape[1],
            KV_HEADS=rows // 2,
            D=head_dim,
            BIASED=bias is not None,
        )

    def attend(
        self, q: Tensor, cache: Tensor, start: Tensor, behind: int, scratch: Scratch, out: Tensor
    ) -> None:
        """q [t, H, D] over the positions of cache [2 KV, C, D] up to each token's own; out is as
        q."""
        t, heads, head_dim = q.shape
        kv_heads = scratch.kv_heads
        self(
            kernels._attend,
            (kv_heads, scratch.splits, triton.cdiv(t * (heads // kv_heads), ROWS)),
            q,
            cache,
            start,
            scratch.parts,
            scratch.tops,
            scratch.sums,
            scratch.counts,
            out,
            t,
            behind,
            cache.shape[1],
            scratch.splits,
            head_dim**-0.5 * LOG2_E,
            HEADS=heads,
            KV_HEADS=kv_heads,
            D=head_dim,
            MOST=triton.next_power_of_2(scratch.splits),
            ROWS=ROWS,
            SPAN=scratch.span,
            AT_ONCE=AT_ONCE,
            num_warps=READERS,
        )

    def gated(
        self, x: Tensor, norm: Tensor | None, eps: float, w: PreparedWeight, out: Tensor
    ) -> None:
        """out [t, f] = silu(gate) * up of x [t, K], normed where there is a norm [K].

        w: [2 f, K], gate above up.
        """
        self.product(
            kernels._gated,
            w,
            len(x),
            (x, x if norm is None else norm),
            (out, len(x), eps),
            NORM=norm is not None,
        )

    def added(
        self,
        x: Tensor,
        w: PreparedWeight,
        residual: Tensor | None,
        out: Tensor,
        norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        """out [t, N] = residual + w x, of x [t, K]; `residual` may be `out` itself, or None."""
        self.product(
            kernels._added,
            w,
            len(x),
            (x, x if norm is None else norm),
            (out if residual is None else residual, out, len(x), eps),
            NORM=norm is not None,
            RESIDUAL=residual is not None,
        )

    def normed(self, x: Tensor, norm: Tensor, eps: float, out: Tensor) -> None:
        """out [t, d] = x over its root mean square, times norm; out's rows may lie apart."""
        t, d = x.shape
        self(
            kernels._normed, (t,), x, norm, out, out.stride(0), eps,
            K=d, BLOCK=triton.next_power_of_2(d), num_warps=4,
        )  # fmt: skip


class Scratch:
    """Room for what the splits of `attend` leave for the last of them, in passes over up to
    `tokens` tokens.

    The splits depend on the model, its capacity and the GPU alone: how many there are decides how a
    row is summed. counts: zero between launches.
    """

    def __init__(
        self,
        tokens: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        span: int,
        like: Tensor,
    ) -> None:
        """span: as of `span_of`."""
        tiles = triton.cdiv(tokens * (heads // kv_heads), ROWS)
        self.kv_heads, self.span, self.splits = kv_heads, span, splits_of(capacity, span)
        size = (tiles, kv_heads, self.splits, ROWS)
        self.parts = like.new_empty(*size, head_dim, dtype=torch.float32)
        self.tops, self.sums = (like.new_empty(size, dtype=torch.float32) for _ in range(2))
        self.counts = like.new_zeros(tiles, kv_heads, dtype=torch.int32)
