"""Queries that outgrow an arm's drafter: prompt and answer may have more tokens than it drafts to.

Their replay is the loop itself, which knows where drafting ends; others follow from an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..loop import SpeculativeDecoding
from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay, Written
from .before import SomeAnswers
from .unbatched import UnbatchedReplay


def outgrown(prompts: Sequence[Sequence[int]], max_new_tokens: int, most: int) -> list[int]:
    """The rows of prompts that with their answers may have more than `most` tokens."""
    return [row for row, prompt in enumerate(prompts) if len(prompt) + max_new_tokens > most]


def replayed(
    strategy: SpeculativeDecoding,
    known: KnownAnswers,
    loop: ReplayedLoop,
    along: Callable[[KnownAnswers], list[Replay]],
) -> list[Replay]:
    """`along` of the rows that the drafter can follow, and the loop's own counts of the others."""
    rows = outgrown(known.prompts, loop.max_new_tokens, strategy.drafts_to)
    if not rows:
        return along(known)
    others = [row for row in range(len(known.ids)) if row not in rows]
    made = dict(zip(others, along(SomeAnswers(known, others)), strict=True)) if others else {}
    replay = UnbatchedReplay(strategy, known.target)
    for row in rows:
        made[row] = replay.live(known.prompts[row], len(known.ids[row]), loop.max_new_tokens)
    return [made[row] for row in range(len(known.ids))]


def written(
    prompts: list[list[int]],
    max_new_tokens: int,
    context: int,
    write: Callable[[list[list[int]], int], Written],
) -> Written:
    """What a drafter of this context writes on its own: as many tokens as it has room for."""
    rows = outgrown(prompts, max_new_tokens, context)
    if not rows:
        return write(prompts, max_new_tokens)
    others = [row for row in range(len(prompts)) if row not in rows]
    groups = [(others, max_new_tokens)] if others else []
    groups += [([row], context - len(prompts[row])) for row in rows if len(prompts[row]) < context]
    ids, prefill_s, decode_s = [list[int]() for _ in prompts], 0.0, 0.0
    for group, most in groups:
        made = write([prompts[row] for row in group], most)
        prefill_s, decode_s = prefill_s + made.prefill_s, decode_s + made.decode_s
        for row, answer in zip(group, made.ids, strict=True):
            ids[row] = answer
    return Written(ids, np.zeros((len(prompts), 0), dtype=np.float32), prefill_s, decode_s)
