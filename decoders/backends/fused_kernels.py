"""Triton kernels of a narrow pass at batch 1, five a layer; fused_launch.py launches them.

A pass over a few tokens reads every weight once and does little else, so that a kernel is worth
what it spares: launches, and waits for the one before. Each product therefore takes what comes in
front of it (the norm) and what follows (biases, rotation and storing, the gate, the residual). With
programmatic dependent launch (PDL) a kernel starts while those in front of it still run, asks for
all of its weights, which no kernel writes, and only then waits: memory is never idle in between.

A product is a few whole rows of weights for each program, held in registers while the tokens go by
one after the other. A tensor core would do several tokens in the time of one, but takes its
operands by way of shared memory and a long chain of sums, which costs one token more than it saves.

No token's numbers depend on how many are read with it: each is summed by itself, over its inputs
in an order that the matrix alone decides, and over keys in spans that lie where they lie in the
cache. What is masked adds exact zeros. So a verified draft gets the bits that decoding alone would
give it.

Rounded to the states' dtype where `llama_model.layer` does, but for the norms: a norm's division is
done once on the finished product (Wx)/r, not on x, and x * weight is not rounded.

`t`, `behind` and capacities are plain numbers to Triton: no kernel is compiled anew for them.
"""

# Tuples grow while Triton unrolls a loop, each of a type of its own.
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _weights(
    norm_ptr,
    w_ptr,
    scale_ptr,
    zero_ptr,
    rows,
    K: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The given rows of w [N, K], in blocks of eight inputs for each thread, [THREADS, N, 8]; steps
    and zeros of int4 ones; and the norm's weight. Threads come first of a tile's dimensions, so
    that Triton shares out all tiles among them alike, and nothing moves between threads."""
    THREADS: tl.constexpr = 32 * WARPS
    far = rows.to(tl.int64)
    ws, steps, zeros, norms = (), (), (), ()
    for block in tl.static_range((K + 8 * THREADS - 1) // (8 * THREADS)):
        eight = block * THREADS + tl.arange(0, THREADS)
        known = eight * 8 < K
        k = eight[:, None] * 8 + tl.arange(0, 8)[None, :]
        if KEPT == 2:
            packed = far[None, :] * (K // 8) + eight[:, None]
            packed = tl.max_contiguous(packed, [1, 1])  # one for each thread
            ws += (tl.load(w_ptr + packed, known[:, None], 0),)
            grid = far[None, :] * (K // 32) + (eight // 4)[:, None]
            steps += (tl.load(scale_ptr + grid, known[:, None], 0.0),)
            zeros += (tl.load(zero_ptr + grid, known[:, None], 0.0),)
        else:
            at = w_ptr + far[None, :, None] * K + k[:, None, :]
            ws += (tl.load(at, known[:, None, None], 0),)
        if NORM:
            norms += (tl.load(norm_ptr + k[:, None, :], known[:, None, None], 0.0),)
    return ws, steps, zeros, norms


@triton.jit
def _product(
    x_ptr,
    weights,
    scales,
    token,
    t,
    eps,
    K: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WARPS: tl.constexpr,
):
    """One row of x [t, K], normed or not, by the rows that `_weights` gave; float32 [BLOCK_N]."""
    THREADS: tl.constexpr = 32 * WARPS
    ws, steps, zeros, norms = weights
    made = tl.full((THREADS, BLOCK_N), 0.0, tl.float32)
    squares = tl.full((THREADS, 1), 0.0, tl.float32)
    for block in tl.static_range((K + 8 * THREADS - 1) // (8 * THREADS)):
        eight = block * THREADS + tl.arange(0, THREADS)
        k = eight[:, None] * 8 + tl.arange(0, 8)[None, :]
        known = (eight * 8 < K) & (token < t)
        x = tl.load(x_ptr + token * K + k[:, None, :], known[:, None, None], 0.0).to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, 2)
            x = x * norms[block].to(tl.float32)
        if KEPT == 2:
            shifts = tl.arange(0, 8) * 4
            q = ((ws[block][:, :, None] >> shifts[None, None, :]) & 15) - 8
            made += tl.sum(q.to(tl.float32) * x, 2) * steps[block].to(tl.float32)
            made += tl.sum(x, 2) * zeros[block].to(tl.float32)
        else:
            made += tl.sum(ws[block].to(tl.float32) * x, 2)
    sums = tl.sum(made, 0)
    if NORM:
        sums = sums * tl.rsqrt(tl.sum(squares, 0) / K + eps)
    if KEPT == 1:
        sums = sums * scales
    return sums


@triton.jit
def _scales(scale_ptr, rows, KEPT: tl.constexpr):
    """Of int8 rows."""
    scales = rows.to(tl.float32)
    if KEPT == 1:
        scales = tl.load(scale_ptr + rows).to(tl.float32)
    return scales


@triton.jit
def _queries_keys_values_of(
    first, h_ptr, weights, scales, bias, cos_ptr, sin_ptr, start, q_ptr, cache_ptr, t, behind,
    capacity, eps,
    K: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    KEPT: tl.constexpr, BLOCK_N: tl.constexpr, TOKENS: tl.constexpr, WARPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    PAIRS: tl.constexpr = BLOCK_N // 2
    HALF: tl.constexpr = D // 2
    dtype = q_ptr.dtype.element_ty
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    head, j = pair // HALF, pair % HALF
    turns = ()
    for i in tl.static_range(TOKENS):
        turned = (first + i < t) & (head < HEADS + KV_HEADS)  # values are not
        angle = (start + behind + first + i) * D + j
        low = tl.load(cos_ptr + angle, turned, 1.0).to(tl.float32)
        high = tl.load(cos_ptr + angle + HALF, turned, 1.0).to(tl.float32)
        minus = tl.load(sin_ptr + angle, turned, 0.0).to(tl.float32)  # with its sign
        plus = tl.load(sin_ptr + angle + HALF, turned, 0.0).to(tl.float32)
        turns += ((low, high, minus, plus),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    sums = ()
    for i in tl.static_range(TOKENS):
        sums += (
            _product(
                h_ptr, weights, scales, first + i, t, eps, K, True, KEPT, BLOCK_N, WARPS
            ),
        )  # fmt: skip
    for i in tl.static_range(TOKENS):
        made = (sums[i] + bias).to(dtype).to(tl.float32)
        a, b = tl.split(tl.reshape(made, (PAIRS, 2)))
        low, high, minus, plus = turns[i]
        one = ((a * low).to(dtype).to(tl.float32) + b * minus).to(dtype)
        other = ((b * high).to(dtype).to(tl.float32) + a * plus).to(dtype)
        here = first + i < t
        q = q_ptr + ((first + i) * HEADS + head) * D + j
        asks = here & (head < HEADS)
        tl.store(q, one, asks)
        tl.store(q + HALF, other, asks)
        position = start + behind + first + i
        slot = cache_ptr + ((head - HEADS).to(tl.int64) * capacity + position) * D + j
        kept = here & (head >= HEADS)
        tl.store(slot, one, kept)
        tl.store(slot + HALF, other, kept)


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
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
    MORE: tl.constexpr,
    WARPS: tl.constexpr,
    PDL: tl.constexpr,
):
    # Rows in pairs that are turned by one angle, so that one program holds both of each.
    HALF: tl.constexpr = D // 2
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(start_ptr).to(tl.int32)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    of = column // 2
    rows = of // HALF * D + of % HALF + column % 2 * HALF
    weights = _weights(norm_ptr, w_ptr, scale_ptr, zero_ptr, rows, K, True, KEPT, WARPS)
    scales = _scales(scale_ptr, rows, KEPT)
    bias = tl.full((BLOCK_N,), 0.0, tl.float32)
    if BIASED:
        bias = tl.load(bias_ptr + rows).to(tl.float32)
    if MORE:
        for first in tl.range(0, t, TOKENS, num_stages=1):
            _queries_keys_values_of(
                first, h_ptr, weights, scales, bias, cos_ptr, sin_ptr, start, q_ptr, cache_ptr,
                t, behind, capacity, eps,
                K, HEADS, KV_HEADS, D, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
            )  # fmt: skip
    else:
        _queries_keys_values_of(
            0, h_ptr, weights, scales, bias, cos_ptr, sin_ptr, start, q_ptr, cache_ptr,
            t, behind, capacity, eps,
            K, HEADS, KV_HEADS, D, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
        )  # fmt: skip


@triton.jit
def _seen(
    q, k, v, key, position, scale, top, total, made
):  # fmt: skip
    """top, total and made once the given keys are added to them."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, 1)
    made = tl.dot(weights.to(v.dtype), v, made * fade[:, None], input_precision="ieee")
    return higher, total, made


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
    """Split s reads the spans s, s + splits, ... of its key head: one, but in a very long cache.
    The last of the splits to finish adds them up, in their order."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    head, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(start_ptr).to(tl.int32) + behind
    last = start + t - 1
    active = tl.minimum(last // SPAN + 1, splits)
    if split < active:
        row = tile * ROWS + tl.arange(0, ROWS)
        d = tl.arange(0, D)
        token, here = row // GROUP, row < t * GROUP
        keys = cache_ptr + head.to(tl.int64) * capacity * D
        values = cache_ptr + (KV_HEADS + head).to(tl.int64) * capacity * D
        # The keys and values of earlier passes, then those of this one.
        key = split * SPAN + tl.arange(0, SPAN)
        lines = (key * D)[:, None] + d[None, :]
        old = (key < start)[:, None]
        k = tl.load(keys + lines, old, 0.0)
        v = tl.load(values + lines, old, 0.0)
        if PDL:
            tl.extra.cuda.gdc_wait()
        state = (token * HEADS + head * GROUP + row % GROUP)[:, None] * D + d[None, :]
        q = tl.load(q_ptr + state, here[:, None], 0.0)
        new = ((key >= start) & (key <= last))[:, None]
        new_k = tl.load(keys + lines, new, 0.0)
        new_v = tl.load(values + lines, new, 0.0)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.full((ROWS,), 0.0, tl.float32)
        made = tl.full((ROWS, D), 0.0, tl.float32)
        top, total, made = _seen(
            q, tl.where(old, k, new_k), tl.where(old, v, new_v),
            key, start + token, scale, top, total, made,
        )  # fmt: skip
        for first in tl.range((split + splits) * SPAN, last + 1, splits * SPAN, num_stages=1):
            key = first + tl.arange(0, SPAN)
            lines = (key * D)[:, None] + d[None, :]
            held = (key <= last)[:, None]
            k = tl.load(keys + lines, held, 0.0)
            v = tl.load(values + lines, held, 0.0)
            top, total, made = _seen(q, k, v, key, start + token, scale, top, total, made)

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
                top = tl.max(tops, 0)
                top = tl.where(top == float("-inf"), 0.0, top)
                total = tl.full((ROWS,), 0.0, tl.float32)
                made = tl.full((ROWS, D), 0.0, tl.float32)
                for at in tl.range(0, active, AT_ONCE, num_stages=1):
                    parts = ()
                    for i in tl.static_range(AT_ONCE):
                        near = (group * splits + at + i) * ROWS + tl.arange(0, ROWS)
                        there = here & (at + i < active)
                        high = tl.load(top_ptr + near, there, float("-inf"), cache_modifier=".cg")
                        much = tl.load(sum_ptr + near, there, 0.0, cache_modifier=".cg")
                        place = part_ptr + near[:, None] * D + d[None, :]
                        part = tl.load(place, there[:, None], 0.0, cache_modifier=".cg")
                        parts += ((high, much, part),)
                    for i in tl.static_range(AT_ONCE):
                        high, much, part = parts[i]
                        weight = tl.exp2(high - top)
                        total += much * weight
                        made += part * weight[:, None]
                made = made / tl.where(total == 0.0, 1.0, total)[:, None]
                tl.store(out_ptr + state, made.to(out_ptr.dtype.element_ty), here[:, None])


@triton.jit
def _gated_of(
    first, x_ptr, weights, scales, out_ptr, t, eps,
    K: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, KEPT: tl.constexpr,
    BLOCK_N: tl.constexpr, TOKENS: tl.constexpr, WARPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    PAIRS: tl.constexpr = BLOCK_N // 2
    dtype = out_ptr.dtype.element_ty
    if PDL:
        tl.extra.cuda.gdc_wait()
    sums = ()
    for i in tl.static_range(TOKENS):
        sums += (
            _product(
                x_ptr, weights, scales, first + i, t, eps, K, NORM, KEPT, BLOCK_N, WARPS
            ),
        )  # fmt: skip
    into = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    for i in tl.static_range(TOKENS):
        made = sums[i].to(dtype).to(tl.float32)
        gate, up = tl.split(tl.reshape(made, (PAIRS, 2)))
        opened = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        at = out_ptr + (first + i) * WIDTH + into
        tl.store(at, (opened * up).to(dtype), (into < WIDTH) & (first + i < t))


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
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
    MORE: tl.constexpr,
    WARPS: tl.constexpr,
    PDL: tl.constexpr,
):
    # Rows in pairs of gate and up.
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = column // 2 + column % 2 * WIDTH
    weights = _weights(norm_ptr, w_ptr, scale_ptr, zero_ptr, rows, K, NORM, KEPT, WARPS)
    scales = _scales(scale_ptr, rows, KEPT)
    if MORE:
        for first in tl.range(0, t, TOKENS, num_stages=1):
            _gated_of(
                first, x_ptr, weights, scales, out_ptr, t, eps,
                K, WIDTH, NORM, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
            )  # fmt: skip
    else:
        _gated_of(
            0, x_ptr, weights, scales, out_ptr, t, eps,
            K, WIDTH, NORM, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
        )  # fmt: skip


@triton.jit
def _added_of(
    first, x_ptr, weights, scales, residual_ptr, out_ptr, t, eps,
    N: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr,
    KEPT: tl.constexpr, BLOCK_N: tl.constexpr, TOKENS: tl.constexpr, WARPS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
    before = ()
    if RESIDUAL:
        for i in tl.static_range(TOKENS):
            mask = (column < N) & (first + i < t)
            before += (tl.load(residual_ptr + (first + i) * N + column, mask, 0.0),)
    sums = ()
    for i in tl.static_range(TOKENS):
        sums += (
            _product(
                x_ptr, weights, scales, first + i, t, eps, K, NORM, KEPT, BLOCK_N, WARPS
            ),
        )  # fmt: skip
    for i in tl.static_range(TOKENS):
        made = sums[i].to(dtype)
        if RESIDUAL:
            made = (before[i].to(tl.float32) + made.to(tl.float32)).to(dtype)
        mask = (column < N) & (first + i < t)
        tl.store(out_ptr + (first + i) * N + column, made, mask)


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
    BLOCK_N: tl.constexpr,
    TOKENS: tl.constexpr,
    MORE: tl.constexpr,
    WARPS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    rows = tl.minimum(tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), N - 1)
    weights = _weights(norm_ptr, w_ptr, scale_ptr, zero_ptr, rows, K, NORM, KEPT, WARPS)
    scales = _scales(scale_ptr, rows, KEPT)
    if MORE:
        for first in tl.range(0, t, TOKENS, num_stages=1):
            _added_of(
                first, x_ptr, weights, scales, residual_ptr, out_ptr, t, eps,
                N, K, NORM, RESIDUAL, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
            )  # fmt: skip
    else:
        _added_of(
            0, x_ptr, weights, scales, residual_ptr, out_ptr, t, eps,
            N, K, NORM, RESIDUAL, KEPT, BLOCK_N, TOKENS, WARPS, PDL,
        )  # fmt: skip


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
