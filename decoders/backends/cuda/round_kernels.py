"""Triton kernels of a recorded round, where PyTorch's operators would take a launch each: a copy of
what followed the longest earlier match, and what becomes of a draft. Both run as one program.

`rounds.py` and `methods/device.py` do the same by PyTorch on other devices, and say what is
what.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

SEARCHED = 1024  # positions at once
ROUND = 32  # numbers of a draft, filled up
NOTHING, TABLE, DRAFT = 0, 1, 2  # what is drafted where nothing matches


def accept(
    drafted: Tensor,
    of: Tensor,
    best: Tensor,
    scores: Tensor,
    ids: Tensor,
    state: Tensor,
    after: Tensor,
    record: Tensor,
) -> None:
    """What becomes of a draft of k tokens; int64 but for the scores.

    drafted: [k].
    of: [1], into the record.
    best: [k + 1], chosen by scores [k + 1, V].
    ids: the sequence; `best` is written behind it.
    state, after: [3], number of tokens, newest one and its position, now and then.
    record: [3 + k], how many are accepted, `of`, and `best` with -1 for what is no number.
    """
    _accept[(1,)](
        drafted, of, best, scores, ids, state, after, record, len(best) - 1, scores.stride(0),
        BLOCK=ROUND, num_warps=1,
    )  # fmt: skip


def copy(
    ids: Tensor,
    state: Tensor,
    room: int,
    matches: tuple[int, int, bool],
    table: Tensor | None,
    draft: Tensor | None,
    made: Tensor,
    found: Tensor,
) -> None:
    """A draft [k] into `made`: what followed the longest earlier match of the last tokens, else
    `draft`, else what `table` says.

    ids, state, room: of the DeviceSequence, which has pads of -1 in front of it.
    matches: the shortest and the longest, and whether the earliest is taken.
    table: [n] the token that follows each of the first n.
    draft: [m <= k].
    found: [1] whether there was a match.
    """
    other, how = (draft, DRAFT) if draft is not None else (table, TABLE)
    how = NOTHING if other is None else how
    shortest, longest, earliest = matches
    _copy[(1,)](
        ids, state, ids if other is None else other, made, found,
        0 if other is None else len(other), len(made),
        ROOM=room, SHORTEST=shortest, LONGEST=longest, EARLIEST=earliest, HOW=how, FROM_TABLE=4,
        SEARCHED=SEARCHED, BLOCK=ROUND, num_warps=8,
    )  # fmt: skip


@triton.jit(do_not_specialize=["k", "vocab"])
def _accept(
    drafted_ptr, of_ptr, best_ptr, scores_ptr, ids_ptr, state_ptr, after_ptr, record_ptr, k, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + at, at <= k, 0)
    drafted = tl.load(drafted_ptr + at, at < k, 0)
    accepted = tl.min(tl.where((at >= k) | (drafted != best), at, BLOCK), 0).to(tl.int64)
    count = tl.load(state_ptr)
    tl.store(ids_ptr + count + at, best, at <= k)
    newest = tl.sum(tl.where(at == accepted, best, 0), 0)
    tl.store(after_ptr, count + accepted + 1)
    tl.store(after_ptr + 1, newest)
    tl.store(after_ptr + 2, count + accepted)
    score = tl.load(scores_ptr + at.to(tl.int64) * vocab + best, at <= k, 0.0).to(tl.float32)
    tl.store(record_ptr, accepted)
    tl.store(record_ptr + 1, tl.load(of_ptr))
    tl.store(record_ptr + 2 + at, tl.where(score == score, best, -1), at <= k)


@triton.jit(do_not_specialize=["known", "k"])
def _copy(
    ids_ptr, state_ptr, other_ptr, made_ptr, found_ptr, known, k,
    ROOM: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, EARLIEST: tl.constexpr,
    HOW: tl.constexpr, FROM_TABLE: tl.constexpr, SEARCHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    count = tl.load(state_ptr)
    top = tl.full((SEARCHED,), 0, tl.int64)
    for first in range(0, ROOM, SEARCHED):
        place = first + tl.arange(0, SEARCHED).to(tl.int64)
        alive = place < count
        same = tl.full((SEARCHED,), 0, tl.int64)
        for back in tl.static_range(LONGEST):
            mine = tl.load(ids_ptr + count - 1 - back)
            alive = alive & (tl.load(ids_ptr + place - 1 - back, place < count, -2) == mine)
            same += alive.to(tl.int64)
        rank = ROOM - 1 - place if EARLIEST else place
        top = tl.maximum(top, tl.where(same >= SHORTEST, same * ROOM + rank + 1, 0))
    best = tl.max(top, 0)
    found = best > 0
    rank = (tl.maximum(best, 1) - 1) % ROOM
    source = ROOM - 1 - rank if EARLIEST else rank
    at = tl.arange(0, BLOCK).to(tl.int64)
    source = tl.where(found, source, 0)
    made = tl.load(ids_ptr + source + at % (count - source), at < k, 0)
    if HOW == 1:
        token = tl.load(ids_ptr + count - 1)
        other = tl.full((BLOCK,), 0, tl.int64)
        for step in tl.static_range(FROM_TABLE):
            token = tl.load(other_ptr + token, token < known, 0)
            other = tl.where(at == step, token, other)
    elif HOW == 2:
        other = tl.load(other_ptr + at, at < known, 0)
    else:
        other = tl.full((BLOCK,), 0, tl.int64)
    tl.store(made_ptr + at, tl.where(found, made, other), at < k)
    tl.store(found_ptr, found.to(tl.int64))
