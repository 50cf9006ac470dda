"""A Triton kernel of the race of clocks (../../sampling/race.py): a program for each part of a row,
then one a row that takes the soonest of its parts. Tokens whose blocks cannot win are passed over.

Nothing is read on the host, so that it may be recorded as a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...sampling import race

TILES, TILE = 4, 4  # of a program, and blocks of each

_BLOCK = tl.constexpr(race.BLOCK)
_OF_BLOCKS, _OF_TOKENS = tl.constexpr(race.OF_BLOCKS), tl.constexpr(race.OF_TOKENS)


def pick(
    logits: Tensor,
    heats: Tensor,
    keys: Tensor,
    places: Tensor,
    names: Tensor | None = None,
    count: int = 1,
) -> Tensor:
    """Pick one token a row, as `race.pick`; [T, 1]."""
    assert count == 1 and (names is None or names.is_contiguous())
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, size = logits.shape
    parts = triton.cdiv(size, TILES * TILE * race.BLOCK)
    rates = logits.new_empty(rows, parts, dtype=torch.float64)
    ids, made = (rates.new_empty(rows, n, dtype=torch.int64) for n in (parts, 1))
    _part[(rows, parts)](
        logits, heats, keys, places, logits if names is None else names, rates, ids,
        size, logits.stride(0), heats.stride(0), keys.stride(0), places.stride(0),
        NAMED=names is not None, TILES=TILES, TILE=TILE, num_warps=4,
    )  # fmt: skip
    _soonest[(rows,)](rates, ids, made, parts, BLOCK=triton.next_power_of_2(parts), num_warps=1)
    return made


@triton.jit
def _waits(key, of, place, KIND: tl.constexpr):
    high, low, other, _ = tl.philox(key, of.to(tl.uint32), place, KIND, 0)
    share = ((high.to(tl.uint64) << 20) | (low >> 12).to(tl.uint64)).to(tl.int64).to(tl.float64)
    wait = -tl.log((share + 0.5) * 2.220446049250313e-16)  # 2 ** -52
    return wait, (other & (_BLOCK - 1)).to(tl.int32)


@triton.jit
def _part(
    logits_ptr, heat_ptr, key_ptr, place_ptr, names_ptr, rates_ptr, ids_ptr,
    size, row_step, heat_step, key_step, place_step,
    NAMED: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(heat_ptr + row * heat_step)
    key = tl.load(key_ptr + row * key_step)
    place = tl.load(place_ptr + row * place_step).to(tl.uint32)
    soonest = tl.full((), float("-inf"), tl.float64)
    best = part * (TILES * TILE * _BLOCK)
    for tile in range(TILES):
        first = (part * TILES + tile) * TILE
        inside = first + tl.arange(0, TILE)[:, None]
        at = inside * _BLOCK + tl.arange(0, _BLOCK)[None, :]
        score = tl.load(logits_ptr + row * row_step + at, at < size, float("-inf")).to(tl.float64)
        number = score == score
        rate = tl.where(number, tl.minimum(score, 1e300), float("inf"))  # nan before infinity
        bound = tl.full((), float("inf"), tl.float64)
        if heat > 0:
            if NAMED:
                token = tl.load(names_ptr + at, at < size, 0).to(tl.int32)
                block, top = token // _BLOCK, rate
            else:
                token, block, top = at, inside, tl.max(rate, 1, keep_dims=True)
            waited, rings = _waits(key, block, place, _OF_BLOCKS)
            waited = waited / _BLOCK
            bound = tl.max(tl.max(top / heat - tl.log(waited), 1), 0)
            if bound > soonest:
                more, _ = _waits(key, token, place, _OF_TOKENS)
                clock = waited + tl.where(rings == token % _BLOCK, 0.0, more)
                rate = rate / heat - tl.log(clock)
        if bound > soonest:
            most, where = tl.max(tl.reshape(rate, (TILE * _BLOCK,)), 0, return_indices=True)
            better = most > soonest
            soonest = tl.where(better, most, soonest)
            best = tl.where(better, first * _BLOCK + where, best)
    parts = tl.num_programs(1)
    tl.store(rates_ptr + row * parts + part, soonest)
    tl.store(ids_ptr + row * parts + part, best.to(tl.int64))


@triton.jit
def _soonest(rates_ptr, ids_ptr, made_ptr, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    rates = tl.load(rates_ptr + row * parts + at, at < parts, float("-inf"))
    _, where = tl.max(rates, 0, return_indices=True)
    tl.store(made_ptr + row, tl.load(ids_ptr + row * parts + where))
