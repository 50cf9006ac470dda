"""Triton kernels of a narrow pass at batch 1, five a layer; fused_launch.py launches them.

A pass over a few tokens reads every weight once and does little else, so that a kernel is worth
what it spares: launches, and waits for the one before. Each product therefore takes what comes in
front of it (the norm) and what follows (biases, rotation and storing, the gate, the residual). With
programmatic dependent launch (PDL) a kernel starts while those in front of it still run, asks for
all of its weights, which no kernel writes, and only then waits: memory is never idle in between.

A product is eight whole rows of weights for each program, or a few times eight, held in registers
while the tokens go by, eight or sixteen at once: the tensor cores take as long for one. Which
inputs of a row lie in which thread is free to choose, as long as tokens and weights agree: each
thread holds eight neighbours of each row, one load, and multiplies them in two steps, so that
nothing passes through shared memory but the sums of the warps, which share each row.

No token's numbers depend on how many are read with it: a tensor core sums each on its own, over its
inputs in an order that the matrix alone decides, and over keys in spans that lie where they lie in
the cache. What is masked adds exact zeros. So a verified draft gets the bits that decoding alone
would give it.

Rounded to bfloat16 where `llama.model.layer` does, but for the norms: a norm's division is done
once on the finished product (Wx)/r, not on x.

`t`, `behind` and capacities are plain numbers to Triton: no kernel is compiled again for them.
"""

# Tuples grow while Triton unrolls a loop, each of a type of its own.
# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

# Two steps of a tensor core, over eight inputs of each thread: c [16, 8] += x [16, 16] w [16, 8].
# Thread 4 g + q of a warp has the inputs of tokens g and g + 8 and of row g, and the sums of these
# tokens over rows 2 q and 2 q + 1. Registers: c (4), then the eight inputs of token g (4), of token
# g + 8 (4) and of the row (4), two bfloat16 numbers in each.
_TWO_STEPS: tl.constexpr = tl.constexpr("""
{
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3},
    {$8, $12, $9, $13}, {$16, $17}, {$4, $5, $6, $7};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3},
    {$10, $14, $11, $15}, {$18, $19}, {$0, $1, $2, $3};
}
""")
_TWO_STEPS_OF: tl.constexpr = tl.constexpr("=&f,=&f,=&f,=&f,f,f,f,f" + ",r" * 12)


@triton.jit
def _multiplied(c, x, y, w, WARPS: tl.constexpr, MMA: tl.constexpr, FAR: tl.constexpr):
    """c with the products of tokens x (0 to 7) and y (8 to 15) by rows w added, each a tuple of
    four registers of each thread, [THREADS].

    FAR: whether there are tokens y.
    """
    if MMA:
        made = tl.inline_asm_elementwise(
            _TWO_STEPS, _TWO_STEPS_OF,
            [c[0], c[1], c[2], c[3], x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3],
             w[0], w[1], w[2], w[3]],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:  # the same by ordinary sums, for where there is no such instruction
        c0, c1 = _summed(c[0], c[1], x, w, WARPS)
        c2, c3 = c[2], c[3]
        if FAR:
            c2, c3 = _summed(c2, c3, y, w, WARPS)
        made = c0, c1, c2, c3
    return made


@triton.jit
def _summed(even, odd, x, w, WARPS: tl.constexpr):
    """The products of eight tokens by eight rows, by rows 2 q and 2 q + 1."""
    total = tl.full((WARPS, 8, 8), 0.0, tl.float32)
    for i in tl.static_range(4):
        for half in tl.static_range(2):
            token = tl.reshape(_number(x[i], half), (WARPS, 8, 1, 4))
            row = tl.reshape(_number(w[i], half), (WARPS, 1, 8, 4))
            total += tl.sum(token * row, 3)
    a, b = tl.split(tl.reshape(total, (WARPS, 8, 4, 2)))
    return even + tl.reshape(a, (32 * WARPS,)), odd + tl.reshape(b, (32 * WARPS,))


@triton.jit
def _number(pair, half: tl.constexpr):
    """The lower or the upper of two bfloat16 numbers, as float32."""
    bits = (pair & -65536) if half else (pair << 16)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _four(ptr, at, known, THREADS: tl.constexpr):
    """Four registers that follow one another in memory, at multiples of four."""
    at = tl.multiple_of(at, 4)
    codes = tl.load(ptr + at[:, None] + tl.arange(0, 4)[None, :], known[:, None], 0)
    even, odd = tl.split(tl.reshape(codes, (THREADS, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _row(column, N: tl.constexpr, APART: tl.constexpr):
    """The row that a column of the product is made with: neighbours, 2 i and 2 i + 1, are rows that
    lie APART from each other; the last one beyond the end."""
    of = column // 2
    return tl.minimum(of // APART * (2 * APART) + of % APART + column % 2 * APART, N - 1)


@triton.jit
def _eight(block, warp, quad, KEPT: tl.constexpr, WARPS: tl.constexpr):
    """Which eight inputs, of K / 8, a thread has in a block of 32. A thread reads 16 bytes of
    weights at once: one block's of bfloat16, two blocks' of int8, four blocks' of int4."""
    if KEPT == 0:
        eight = (block * WARPS + warp) * 4 + quad
    elif KEPT == 1:
        eight = ((block // 2 * WARPS + warp) * 4 + quad) * 2 + block % 2
    else:  # the four threads of a row share its group of 32
        eight = ((block // 4 * WARPS + warp) * 4 + block % 4) * 4 + quad
    return eight


@triton.jit
def _weights(
    norm_ptr,
    w_ptr,
    scale_ptr,
    N: tl.constexpr,
    K: tl.constexpr,
    APART: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    SETS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """What this thread holds of this program's rows, as they are kept, and of the norm's weight."""
    THREADS: tl.constexpr = 32 * WARPS
    AT_ONCE: tl.constexpr = 1 << KEPT  # blocks that one load brings
    BLOCKS: tl.constexpr = (K + 32 * AT_ONCE * WARPS - 1) // (32 * AT_ONCE * WARPS) * AT_ONCE
    FOURS: tl.constexpr = (K + 127) // 128  # fours of groups of int4, the last filled up
    thread = tl.arange(0, THREADS)
    warp, lane, quad = thread // 32, thread % 32 // 4, thread % 4
    ws, steps, norms = (), (), ()
    for block in tl.static_range(BLOCKS):
        eight = _eight(block, warp, quad, KEPT, WARPS)
        known = eight * 8 < K
        if NORM:
            norms += (_four(norm_ptr, eight * 4, known, THREADS),)
        for one in tl.static_range(SETS):
            column = (tl.program_id(0) * SETS + one) * 8
            far = _row(column + lane, N, APART).to(tl.int64)
            if KEPT == 0:
                ws += (_four(w_ptr, far * (K // 2) + eight * 4, known, THREADS),)
            elif block % AT_ONCE == 0:
                if KEPT == 1:
                    ws += (_four(w_ptr, far * (K // 4) + eight * 2, known, THREADS),)
                else:
                    four = block // 4 * WARPS + warp
                    inside = four < FOURS
                    at = ((far * FOURS + four) * 4 + quad) * 4
                    ws += (_four(w_ptr, at, inside, THREADS),)
                    even = _row(column + 2 * quad, N, APART).to(tl.int64)
                    odd = _row(column + 2 * quad + 1, N, APART).to(tl.int64)
                    step = (
                        _four(scale_ptr, (even * FOURS + four) * 4, inside, THREADS),
                        _four(scale_ptr, (odd * FOURS + four) * 4, inside, THREADS),
                    )
                    steps += (step,)
    return ws, steps, norms


@triton.jit
def _widened(w, part: tl.constexpr, KEPT: tl.constexpr):
    """Eight inputs of a row in four registers, of the given part of what was loaded at once: int8
    ones exactly, int4 ones from 128 upwards."""
    if KEPT == 1:
        a, b = w[2 * part], w[2 * part + 1]
        wide = (
            _pair_of_bytes(a, 0), _pair_of_bytes(a, 16), _pair_of_bytes(b, 0),
            _pair_of_bytes(b, 16),
        )  # fmt: skip
    elif KEPT == 2:
        wide = (
            _pair_of_nibbles(w[part], 0), _pair_of_nibbles(w[part], 4),
            _pair_of_nibbles(w[part], 8), _pair_of_nibbles(w[part], 12),
        )  # fmt: skip
    else:
        wide = w
    return wide


@triton.jit
def _pair_of_bytes(four, shift: tl.constexpr):
    """Two signed bytes as bfloat16 numbers: each lifted by 128 into the lowest bits of 2^23."""
    lifted = four ^ -2139062144  # 0x80 in each byte
    low = (((lifted >> shift) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
    high = (((lifted >> (shift + 8)) & 255) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
    low = (low.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
    return low | (high.to(tl.int32, bitcast=True) & -65536)


@triton.jit
def _pair_of_nibbles(eight, shift: tl.constexpr):
    """Two of eight numbers from 0 to 15, as bfloat16 numbers from 128 to 143. They lie 16 bits
    apart, as the two do that they become."""
    return ((eight >> shift) & 0x000F000F) | 0x43004300


@triton.jit
def _added_up(a, b, WARPS: tl.constexpr):
    """[THREADS] each -> [8 tokens, 4 pairs of rows] each, over all warps."""
    both = tl.sum(tl.reshape(tl.join(a, b), (WARPS, 8, 4, 2)), 0)
    return tl.split(both)


@triton.jit
def _product(
    x_ptr,
    weights,
    first,
    t,
    eps,
    K: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    TOKENS: tl.constexpr,
    SETS: tl.constexpr,
    WARPS: tl.constexpr,
    MMA: tl.constexpr,
):
    """Rows first..first + TOKENS - 1 of x [t, K], normed or not, by the rows that `_weights` gave:
    for each eight tokens and each set of eight rows, the products by even and by odd rows, float32
    [8, 4] each."""
    THREADS: tl.constexpr = 32 * WARPS
    AT_ONCE: tl.constexpr = 1 << KEPT
    BLOCKS: tl.constexpr = (K + 32 * AT_ONCE * WARPS - 1) // (32 * AT_ONCE * WARPS) * AT_ONCE
    AHEAD: tl.constexpr = 64 // TOKENS  # blocks of x that are asked for at once
    thread = tl.arange(0, THREADS)
    warp, lane, quad = thread // 32, thread % 32 // 4, thread % 4
    ws, steps, norms = weights
    zero = tl.full((THREADS,), 0, tl.int32)
    zeros = zero, zero, zero, zero
    ones = tl.full((THREADS,), 0x3F803F80, tl.int32)
    ones = ones, ones, ones, ones
    nought = tl.full((THREADS,), 0.0, tl.float32)
    none = nought, nought, nought, nought
    sums = ()
    for _one in tl.static_range(SETS):
        sums += (none,)
    near, far = none, none  # squares
    for block in tl.static_range(BLOCKS):
        if block % AHEAD == 0:
            xs, ys = (), ()
            for near_by in tl.static_range(block, min(block + AHEAD, BLOCKS)):
                eight = _eight(near_by, warp, quad, KEPT, WARPS)
                known = eight * 8 < K
                at = (first + lane) * (K // 2) + eight * 4
                xs += (_four(x_ptr, at, known & (first + lane < t), THREADS),)
                if TOKENS == 16:
                    at += 8 * (K // 2)
                    ys += (_four(x_ptr, at, known & (first + lane + 8 < t), THREADS),)
                else:
                    ys += (zeros,)
        x, y = xs[block % AHEAD], ys[block % AHEAD]
        if NORM:
            near = _multiplied(near, x, zeros, x, WARPS, MMA, False)
            if TOKENS == 16:
                far = _multiplied(far, y, zeros, y, WARPS, MMA, False)
            x = _weighed(x, norms[block], MMA)
            if TOKENS == 16:
                y = _weighed(y, norms[block], MMA)
        added = ()
        if KEPT == 2:
            total = _multiplied(none, x, y, ones, WARPS, MMA, TOKENS == 16)
        for one in tl.static_range(SETS):
            w = _widened(ws[block // AT_ONCE * SETS + one], block % AT_ONCE, KEPT)
            if KEPT == 2:
                c, made = sums[one], _multiplied(none, x, y, w, WARPS, MMA, TOKENS == 16)
                even = steps[block // 4 * SETS + one][0][block % 4]
                odd = steps[block // 4 * SETS + one][1][block % 4]
                step, lift = _number(even, 0), _number(even, 1) - 136.0 * _number(even, 0)
                a = c[0] + made[0] * step + total[0] * lift
                d = c[2] + made[2] * step + total[2] * lift
                step, lift = _number(odd, 0), _number(odd, 1) - 136.0 * _number(odd, 0)
                b = c[1] + made[1] * step + total[1] * lift
                e = c[3] + made[3] * step + total[3] * lift
                added += ((a, b, d, e),)
            else:
                added += (_multiplied(sums[one], x, y, w, WARPS, MMA, TOKENS == 16),)
        sums = added
    made = ()
    for half in tl.static_range(TOKENS // 8):
        if NORM:
            # Tokens by tokens: a token's own squares are where its column is.
            of = far if half else near
            even, odd = _added_up(of[0], of[1], WARPS)
            token, pair = tl.arange(0, 8)[:, None], tl.arange(0, 4)[None, :]
            own = tl.where(token == 2 * pair, even, 0.0) + tl.where(token == 2 * pair + 1, odd, 0.0)
            root = tl.rsqrt(tl.sum(own, 1) / K + eps)[:, None]
        for one in tl.static_range(SETS):
            c = sums[one]
            if half:
                even, odd = _added_up(c[2], c[3], WARPS)
            else:
                even, odd = _added_up(c[0], c[1], WARPS)
            if NORM:
                even, odd = even * root, odd * root
            made += ((even, odd),)
    return made


@triton.jit
def _times(x, y, MMA: tl.constexpr):
    """The products of two pairs of bfloat16 numbers, rounded."""
    if MMA:
        made = tl.inline_asm_elementwise(
            "{ .reg .b32 nought; mov.b32 nought, 0x80008000; fma.rn.bf16x2 $0, $1, $2, nought; }",
            "=r,r,r", [x, y], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        low = (_number(x, 0) * _number(y, 0)).to(tl.bfloat16).to(tl.int16, bitcast=True)
        high = (_number(x, 1) * _number(y, 1)).to(tl.bfloat16).to(tl.int16, bitcast=True)
        made = (low.to(tl.int32) & 65535) | (high.to(tl.int32) << 16)
    return made


@triton.jit
def _weighed(x, norm, MMA: tl.constexpr):
    """x times the norm's weight, rounded."""
    return (
        _times(x[0], norm[0], MMA), _times(x[1], norm[1], MMA), _times(x[2], norm[2], MMA),
        _times(x[3], norm[3], MMA),
    )  # fmt: skip


@triton.jit
def _scales(
    scale_ptr,
    one: tl.constexpr,
    N: tl.constexpr,
    APART: tl.constexpr,
    KEPT: tl.constexpr,
    SETS: tl.constexpr,
):
    """Scales of the even and odd int8 rows of a set, [4] each; ones for other weights."""
    column = (tl.program_id(0) * SETS + one) * 8 + 2 * tl.arange(0, 4)
    even, odd = tl.full((4,), 1.0, tl.float32), tl.full((4,), 1.0, tl.float32)
    if KEPT == 1:
        even = tl.load(scale_ptr + _row(column, N, APART)).to(tl.float32)
        odd = tl.load(scale_ptr + _row(column + 1, N, APART)).to(tl.float32)
    return even[None, :], odd[None, :]


@triton.jit(do_not_specialize=["t", "behind", "capacity"])
def _queries_keys_values(
    h_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
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
    N: tl.constexpr,
    K: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BIASED: tl.constexpr,
    KEPT: tl.constexpr,
    TOKENS: tl.constexpr,
    SETS: tl.constexpr,
    WARPS: tl.constexpr,
    MMA: tl.constexpr,
    PDL: tl.constexpr,
):
    # Rows in pairs that are turned by one angle, so that one thread holds both of each.
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(start_ptr).to(tl.int32)
    weights = _weights(norm_ptr, w_ptr, scale_ptr, N, K, D // 2, True, KEPT, SETS, WARPS)
    first = tl.program_id(1) * TOKENS
    HALF: tl.constexpr = D // 2
    dtype = q_ptr.dtype.element_ty
    # What does not come from the kernel in front is asked for before it is waited for.
    places, turns, biases, scales = (), (), (), ()
    for half in tl.static_range(TOKENS // 8):
        token = (first + half * 8 + tl.arange(0, 8))[:, None]
        for one in tl.static_range(SETS):
            pair = ((tl.program_id(0) * SETS + one) * 4 + tl.arange(0, 4))[None, :]
            head, j = pair // HALF, pair % HALF
            turned = (token < t) & (head < HEADS + KV_HEADS)  # values are not
            angle = (start + behind + token) * D + j
            low = tl.load(cos_ptr + angle, turned, 1.0).to(tl.float32)
            high = tl.load(cos_ptr + angle + HALF, turned, 1.0).to(tl.float32)
            minus = tl.load(sin_ptr + angle, turned, 0.0).to(tl.float32)  # with its sign
            plus = tl.load(sin_ptr + angle + HALF, turned, 0.0).to(tl.float32)
            places += ((token, head, j),)
            turns += ((low, high, minus, plus),)
            scales += (_scales(scale_ptr, one, N, HALF, KEPT, SETS),)
            row = tl.minimum(head * D + j, N - 1 - HALF)
            if BIASED:
                even = tl.load(bias_ptr + row).to(tl.float32)
                odd = tl.load(bias_ptr + row + HALF).to(tl.float32)
                biases += ((even, odd),)
            else:
                biases += ((0.0, 0.0),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    made = _product(h_ptr, weights, first, t, eps, K, True, KEPT, TOKENS, SETS, WARPS, MMA)
    for i in tl.static_range(TOKENS // 8 * SETS):
        even, odd = made[i]
        a = (even * scales[i][0] + biases[i][0]).to(dtype).to(tl.float32)
        b = (odd * scales[i][1] + biases[i][1]).to(dtype).to(tl.float32)
        low, high, minus, plus = turns[i]
        one = ((a * low).to(dtype).to(tl.float32) + b * minus).to(dtype)
        other = ((b * high).to(dtype).to(tl.float32) + a * plus).to(dtype)
        token, head, j = places[i]
        q = q_ptr + (token * HEADS + head) * D + j
        asks = (token < t) & (head < HEADS)
        tl.store(q, one, asks)
        tl.store(q + HALF, other, asks)
        position = start + behind + token
        slot = cache_ptr + ((head - HEADS).to(tl.int64) * capacity + position) * D + j
        kept = (token < t) & (head >= HEADS) & (head < HEADS + 2 * KV_HEADS)
        tl.store(slot, one, kept)
        tl.store(slot + HALF, other, kept)


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
            visible = (key <= last)[:, None]
            k = tl.load(keys + lines, visible, 0.0)
            v = tl.load(values + lines, visible, 0.0)
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
                        there = here & (near < (group * splits + active) * ROWS)
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


@triton.jit(do_not_specialize=["t"])
def _gated(
    x_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    t,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    KEPT: tl.constexpr,
    TOKENS: tl.constexpr,
    SETS: tl.constexpr,
    WARPS: tl.constexpr,
    MMA: tl.constexpr,
    PDL: tl.constexpr,
):
    # Rows in pairs of gate and up.
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    weights = _weights(norm_ptr, w_ptr, scale_ptr, N, K, N // 2, NORM, KEPT, SETS, WARPS)
    first = tl.program_id(1) * TOKENS
    WIDTH: tl.constexpr = N // 2
    dtype = out_ptr.dtype.element_ty
    scales = ()
    for one in tl.static_range(SETS):
        scales += (_scales(scale_ptr, one, N, WIDTH, KEPT, SETS),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    made = _product(x_ptr, weights, first, t, eps, K, NORM, KEPT, TOKENS, SETS, WARPS, MMA)
    for half in tl.static_range(TOKENS // 8):
        token = (first + half * 8 + tl.arange(0, 8))[:, None]
        for one in tl.static_range(SETS):
            even, odd = made[half * SETS + one]
            gate = (even * scales[one][0]).to(dtype).to(tl.float32)
            up = (odd * scales[one][1]).to(dtype).to(tl.float32)
            opened = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
            into = ((tl.program_id(0) * SETS + one) * 4 + tl.arange(0, 4))[None, :]
            at = out_ptr + token * WIDTH + into
            tl.store(at, (opened * up).to(dtype), (into < WIDTH) & (token < t))


@triton.jit(do_not_specialize=["t"])
def _added(
    x_ptr,
    norm_ptr,
    w_ptr,
    scale_ptr,
    residual_ptr,
    out_ptr,
    t,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    KEPT: tl.constexpr,
    TOKENS: tl.constexpr,
    SETS: tl.constexpr,
    WARPS: tl.constexpr,
    MMA: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    weights = _weights(norm_ptr, w_ptr, scale_ptr, N, K, 1, NORM, KEPT, SETS, WARPS)
    first = tl.program_id(1) * TOKENS
    dtype = out_ptr.dtype.element_ty
    scales = ()
    for one in tl.static_range(SETS):
        scales += (_scales(scale_ptr, one, N, 1, KEPT, SETS),)
    if PDL:
        tl.extra.cuda.gdc_wait()
    before = ()
    for half in tl.static_range(TOKENS // 8):
        token = (first + half * 8 + tl.arange(0, 8))[:, None]
        for one in tl.static_range(SETS):
            column = ((tl.program_id(0) * SETS + one) * 8 + 2 * tl.arange(0, 4))[None, :]
            at = residual_ptr + token * N + column
            here = token < t
            if RESIDUAL:
                even = tl.load(at, here & (column < N), 0.0).to(tl.float32)
                odd = tl.load(at + 1, here & (column + 1 < N), 0.0).to(tl.float32)
                before += ((even, odd),)
    made = _product(x_ptr, weights, first, t, eps, K, NORM, KEPT, TOKENS, SETS, WARPS, MMA)
    for half in tl.static_range(TOKENS // 8):
        token = (first + half * 8 + tl.arange(0, 8))[:, None]
        for one in tl.static_range(SETS):
            column = ((tl.program_id(0) * SETS + one) * 8 + 2 * tl.arange(0, 4))[None, :]
            even, odd = made[half * SETS + one]
            a = (even * scales[one][0]).to(dtype)
            b = (odd * scales[one][1]).to(dtype)
            if RESIDUAL:
                a = (before[half * SETS + one][0] + a.to(tl.float32)).to(dtype)
                b = (before[half * SETS + one][1] + b.to(tl.float32)).to(dtype)
            at, here = out_ptr + token * N + column, token < t
            tl.store(at, a, here & (column < N))
            tl.store(at + 1, b, here & (column + 1 < N))


@triton.jit(do_not_specialize=["stride"])
def _normed(
    x_ptr, norm_ptr, out_ptr, stride, eps, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
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
