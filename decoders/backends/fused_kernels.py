"""Triton kernels of a narrow pass at batch 1, five a layer; fused_launch.py launches them.

A pass over a few tokens reads every weight once and does little else, so that a kernel is worth
what it spares: launches, and waits for the one before. Each product therefore takes what comes in
front of it (the norm) and what follows (biases, rotation and storing, the gate, the residual).

No token's numbers depend on how many are read with it: every program works on ROWS rows, masked
where there are fewer tokens, a row is summed over its inputs in blocks of one size, and over keys
in spans that lie where they lie in the cache. What is masked adds exact zeros. So one compiled
kernel serves all widths, and a reviewed draft gets the bits that decoding alone would give it.

Rounded to the states' dtype where `llama_model.layer` does, but for the norms: a norm's division is
done once on the finished product (Wx)/r, not on x, and its x * weight is rounded once.

`t`, `behind` and capacities are plain numbers to Triton: no kernel is compiled anew for them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(w_ptr, rows, K: tl.constexpr, KEPT: tl.constexpr, PDL: tl.constexpr):
    """With programmatic dependent launch: have the weights' first lines fetched, which no earlier
    kernel writes, then wait for the kernel before."""
    if PDL:
        line = tl.arange(0, 16)  # of 128 bytes
        width = K * w_ptr.dtype.element_ty.primitive_bitwidth // 8 // (2 if KEPT == 2 else 1)
        near = tl.minimum(line * 128, width - 1).to(tl.int64)
        first = w_ptr.to(tl.pointer_type(tl.int8)) + rows.to(tl.int64)[:, None] * width
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [(first + near[None, :]).to(tl.int64)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _widened(grid, N: tl.constexpr, GROUPS: tl.constexpr):
    """[N, GROUPS] -> [N, GROUPS * 32], each number 32 times."""
    wide = tl.broadcast_to(tl.expand_dims(grid, 2), (N, GROUPS, 32))
    return tl.reshape(wide, (N, GROUPS * 32)).to(tl.float32)


@triton.jit
def _rows_of_x(x_ptr, norm_ptr, token, t, k, K: tl.constexpr, NORM: tl.constexpr):
    """Columns k of the tokens' rows [ROWS, k], times the norm's weight; and their squares."""
    inside = k < K
    mask = (token < t)[:, None] & inside[None, :]
    x = tl.load(x_ptr + token[:, None] * K + k[None, :], mask=mask, other=0.0)
    wide = x.to(tl.float32)
    if NORM:
        g = tl.load(norm_ptr + k, mask=inside, other=0.0)
        x = (wide * g.to(tl.float32)[None, :]).to(x.dtype)
    return x, wide * wide


@triton.jit
def _product(
    x_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    token,
    rows,
    t,
    eps,
    K: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """x [t, K], normed or not, by the given rows of w [N, K]; float32 [ROWS, BLOCK_N]."""
    made = tl.full((ROWS, BLOCK_N), 0.0, tl.float32)
    far = rows.to(tl.int64)
    if KEPT == 2:
        HALF: tl.constexpr = BLOCK_K // 2
        PAIRS: tl.constexpr = BLOCK_K // 64  # of groups of 32 inputs
        squares = tl.full((ROWS, HALF), 0.0, tl.float32)
        for at in tl.range(0, K // 2, HALF, num_stages=STAGES):
            byte = at + tl.arange(0, HALF)
            low = byte // 32 * 64 + byte % 32
            pair = at // 32 + tl.arange(0, PAIRS)
            known = (pair < K // 64)[None, :]
            grid = far[:, None] * (K // 32) + pair[None, :] * 2
            packed = tl.load(
                w_ptr + far[:, None] * (K // 2) + byte[None, :],
                mask=(byte < K // 2)[None, :],
                other=0,
            ).to(tl.int32)
            step = _widened(tl.load(scale_ptr + grid, known, 0.0), BLOCK_N, PAIRS)
            zero = _widened(tl.load(zero_ptr + grid, known, 0.0), BLOCK_N, PAIRS)
            w = ((packed & 15) - 8).to(tl.float32) * step + zero
            x, square = _rows_of_x(x_ptr, norm_ptr, token, t, low, K, NORM)
            made = tl.dot(x, tl.trans(w.to(x.dtype)), made, input_precision="ieee")
            squares += square
            step = _widened(tl.load(scale_ptr + grid + 1, known, 0.0), BLOCK_N, PAIRS)
            zero = _widened(tl.load(zero_ptr + grid + 1, known, 0.0), BLOCK_N, PAIRS)
            w = ((packed >> 4) - 8).to(tl.float32) * step + zero
            x, square = _rows_of_x(x_ptr, norm_ptr, token, t, low + 32, K, NORM)
            made = tl.dot(x, tl.trans(w.to(x.dtype)), made, input_precision="ieee")
            squares += square
    else:
        squares = tl.full((ROWS, BLOCK_K), 0.0, tl.float32)
        for at in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            k = at + tl.arange(0, BLOCK_K)
            w = tl.load(w_ptr + far[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0)
            x, square = _rows_of_x(x_ptr, norm_ptr, token, t, k, K, NORM)
            made = tl.dot(x, tl.trans(w.to(x.dtype)), made, input_precision="ieee")
            if NORM:
                squares += square
    if NORM:
        made = made * tl.rsqrt(tl.sum(squares, 1) / K + eps)[:, None]
    if KEPT == 1:
        made = made * tl.load(scale_ptr + rows).to(tl.float32)[None, :]
    return made


@triton.jit(do_not_specialize=["t", "behind", "capacity"])
def _queries_keys_values(
    h_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    bias_ptr,
    cos_ptr,
    sin_ptr,
    start_ptr,
    q_ptr,
    cache_ptr,
    t,
    behind,
    capacity,
    eps,
    K: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BIASED: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    # Columns in pairs that are turned by one angle, so that one program holds both of each.
    PAIRS: tl.constexpr = BLOCK_N // 2
    HALF: tl.constexpr = D // 2
    column = tl.arange(0, BLOCK_N)
    of = tl.program_id(0) * PAIRS + column // 2
    rows = of // HALF * D + of % HALF + column % 2 * HALF
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    _begin(w_ptr, rows, K, KEPT, PDL)
    made = _product(
        h_ptr, norm_ptr, w_ptr, scale_ptr, zero_ptr, token, rows, t, eps,
        K, True, KEPT, ROWS, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip
    if BIASED:
        made += tl.load(bias_ptr + rows).to(tl.float32)[None, :]
    dtype = q_ptr.dtype.element_ty
    low, high = tl.split(tl.reshape(made.to(dtype).to(tl.float32), (ROWS, PAIRS, 2)))

    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    head, j = (pair // HALF)[None, :], (pair % HALF)[None, :]
    position = (tl.load(start_ptr).to(tl.int32) + behind + token)[:, None]
    here = (token < t)[:, None]
    turned = here & (head < HEADS + KV_HEADS)  # values are not
    angle = position * D + j
    cos = tl.load(cos_ptr + angle, turned, 1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, turned, 0.0).to(tl.float32)  # with its sign: minus
    first = ((low * cos).to(dtype).to(tl.float32) + high * sin).to(dtype)
    cos = tl.load(cos_ptr + angle + HALF, turned, 1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle + HALF, turned, 0.0).to(tl.float32)
    second = ((high * cos).to(dtype).to(tl.float32) + low * sin).to(dtype)

    q = q_ptr + (token[:, None] * HEADS + head) * D + j
    asks = here & (head < HEADS)
    tl.store(q, first, asks)
    tl.store(q + HALF, second, asks)
    slot = cache_ptr + ((head - HEADS).to(tl.int64) * capacity + position) * D + j
    kept = here & (head >= HEADS)
    tl.store(slot, first, kept)
    tl.store(slot + HALF, second, kept)


@triton.jit(do_not_specialize=["t", "behind", "capacity", "splits"])
def _attend(
    q_ptr,
    cache_ptr,
    start_ptr,
    part_ptr,
    top_ptr,
    sum_ptr,
    count_ptr,
    out_ptr,
    t,
    behind,
    capacity,
    splits,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Split s reads the spans s, s + splits, ... of its key head. The last of the splits to finish
    adds them up, in their order."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(start_ptr).to(tl.int32) + behind
    last = start + t - 1
    active = tl.minimum(last // SPAN + 1, splits)
    if split < active:
        row = tile * ROWS + tl.arange(0, ROWS)
        d = tl.arange(0, D)
        token, here = row // GROUP, row < t * GROUP
        state = (token * HEADS + head * GROUP + row % GROUP)[:, None] * D + d[None, :]
        q = tl.load(q_ptr + state, here[:, None], 0.0)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.full((ROWS,), 0.0, tl.float32)
        made = tl.full((ROWS, D), 0.0, tl.float32)
        keys = cache_ptr + head.to(tl.int64) * capacity * D
        values = cache_ptr + (KV_HEADS + head).to(tl.int64) * capacity * D
        for first in tl.range(split * SPAN, last + 1, splits * SPAN, num_stages=2):
            key = first + tl.arange(0, SPAN)
            lines = (key * D)[:, None] + d[None, :]
            held = (key <= last)[:, None]
            k = tl.load(keys + lines, held, 0.0)
            v = tl.load(values + lines, held, 0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            seen = key[None, :] <= (start + token)[:, None]
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(scores - base[:, None])
            fade = tl.exp2(top - base)
            total = total * fade + tl.sum(weights, 1)
            made = tl.dot(weights.to(v.dtype), v, made * fade[:, None], input_precision="ieee")
            top = higher

        if active == 1:
            made = made / tl.where(total == 0.0, 1.0, total)[:, None]
            tl.store(out_ptr + state, made.to(out_ptr.dtype.element_ty), here[:, None])
        else:
            group = tile * KV_HEADS + head
            mine = (group * splits + split) * ROWS + tl.arange(0, ROWS)
            tl.store(top_ptr + mine, top, here)
            tl.store(sum_ptr + mine, total, here)
            tl.store(part_ptr + mine[:, None] * D + d[None, :], made, here[:, None])
            tl.debug_barrier()
            done = tl.atomic_add(count_ptr + group, 1, sem="acq_rel", scope="gpu")
            if done == active - 1:
                tl.store(count_ptr + group, 0)  # for the next time
                one = tl.arange(0, MOST)[:, None]
                theirs = (group * splits + one) * ROWS + tl.arange(0, ROWS)[None, :]
                known = (one < active) & here[None, :]
                tops = tl.load(top_ptr + theirs, known, float("-inf"), cache_modifier=".cg")
                sums = tl.load(sum_ptr + theirs, known, 0.0, cache_modifier=".cg")
                top = tl.max(tops, 0)
                top = tl.where(top == float("-inf"), 0.0, top)
                total = tl.sum(tl.exp2(tops - top[None, :]) * sums, 0)
                made = tl.full((ROWS, D), 0.0, tl.float32)
                for at in tl.range(0, active, AT_ONCE):
                    some = at + tl.arange(0, AT_ONCE)[:, None]
                    near = (group * splits + some) * ROWS + tl.arange(0, ROWS)[None, :]
                    there = (some < active) & here[None, :]
                    high = tl.load(top_ptr + near, there, float("-inf"), cache_modifier=".cg")
                    parts = tl.load(
                        part_ptr + near[:, :, None] * D + d[None, None, :],
                        there[:, :, None],
                        0.0,
                        cache_modifier=".cg",
                    )
                    made += tl.sum(parts * tl.exp2(high - top[None, :])[:, :, None], 0)
                made = made / tl.where(total == 0.0, 1.0, total)[:, None]
                tl.store(out_ptr + state, made.to(out_ptr.dtype.element_ty), here[:, None])


@triton.jit(do_not_specialize=["t"])
def _gated(
    x_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    t,
    eps,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    # Columns in pairs of gate and up.
    PAIRS: tl.constexpr = BLOCK_N // 2
    column = tl.arange(0, BLOCK_N)
    rows = tl.program_id(0) * PAIRS + column // 2 + column % 2 * WIDTH
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    _begin(w_ptr, rows, K, KEPT, PDL)
    made = _product(
        x_ptr, norm_ptr, w_ptr, scale_ptr, zero_ptr, token, rows, t, eps,
        K, NORM, KEPT, ROWS, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    gate, up = tl.split(tl.reshape(made.to(dtype).to(tl.float32), (ROWS, PAIRS, 2)))
    opened = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    into = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    at = out_ptr + token[:, None] * WIDTH + into[None, :]
    tl.store(at, (opened * up).to(dtype), (token < t)[:, None])


@triton.jit(do_not_specialize=["t"])
def _added(
    x_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    residual_ptr,
    out_ptr,
    t,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.minimum(column, N - 1)
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    _begin(w_ptr, rows, K, KEPT, PDL)
    made = _product(
        x_ptr, norm_ptr, w_ptr, scale_ptr, zero_ptr, token, rows, t, eps,
        K, NORM, KEPT, ROWS, BLOCK_N, BLOCK_K, STAGES,
    )  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    mask = (token < t)[:, None] & (column < N)[None, :]
    at = token.to(tl.int64)[:, None] * N + column[None, :]
    made = made.to(dtype)
    if RESIDUAL:
        before = tl.load(residual_ptr + at, mask, 0.0).to(tl.float32)
        made = (before + made.to(tl.float32)).to(dtype)
    tl.store(out_ptr + at, made, mask)


@triton.jit(do_not_specialize=["stride"])
def _normed(
    x_ptr,
    norm_ptr,
    out_ptr,
    stride,
    eps,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, k = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + k, k < K, 0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    x = (x * tl.rsqrt(tl.sum(x * x, 0) / K + eps)).to(dtype).to(tl.float32)
    g = tl.load(norm_ptr + k, k < K, 0.0).to(tl.float32)
    tl.store(out_ptr + row * stride + k, (x * g).to(dtype), k < K)
