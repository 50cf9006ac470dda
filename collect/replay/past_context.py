"""Queries past an arm's context: prompt and answer may have more tokens than its drafter follows.

Their replay is the loop itself, which knows where drafting ends; others follow from an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoders.loop import SpeculativeDecoding
from decoders.protocols import Backend

from . import unbatched
from .before import SomeAnswers
from .protocols import KnownAnswers, ReplayedLoop
from .records import Replay, Written


def prompts_past_context(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, most: int
) -> list[int]:
    """The rows of prompts that with their answers may have more than `most` tokens."""
    return [row for row, prompt in enumerate(prompts) if len(prompt) + max_new_tokens > most]


def replayed(
    strategy: SpeculativeDecoding, known: KnownAnswers, loop: ReplayedLoop
) -> list[Replay]:
    """`unbatched.replayed` of the rows that the drafter can follow, and the loop's own counts of
    the others."""
    rows = prompts_past_context(known.prompts, loop.max_new_tokens, strategy.drafts_to)
    if not rows:
        return unbatched.replayed(strategy, known, loop)
    others = [row for row in range(len(known.ids)) if row not in rows]
    made = dict[int, Replay]()
    if others:
        found = unbatched.replayed(strategy, SomeAnswers(known, others), loop)
        made |= zip(others, found, strict=True)
    replay = unbatched.UnbatchedReplay(strategy, known.target)
    for row in rows:
        made[row] = replay.live(known.prompts[row], len(known.ids[row]), loop)
    return [made[row] for row in range(len(known.ids))]


def written(
    strategy: SpeculativeDecoding,
    target: Backend,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
) -> Written:
    """What the drafter writes on its own: as many tokens as its context has room for."""
    context = strategy.drafter.context
    rows = prompts_past_context(prompts, max_new_tokens, context)
    if not rows:
        return unbatched.written(strategy, target, prompts, max_new_tokens, eos_ids)
    others = [row for row in range(len(prompts)) if row not in rows]
    groups = [(others, max_new_tokens)] if others else []
    groups += [([row], context - len(prompts[row])) for row in rows if len(prompts[row]) < context]
    ids, prefill_s, decode_s = [list[int]() for _ in prompts], 0.0, 0.0
    for group, most in groups:
        own = [prompts[row] for row in group]
        made = unbatched.written(strategy, target, own, most, eos_ids)
        prefill_s, decode_s = prefill_s + made.prefill_s, decode_s + made.decode_s
        for row, answer in zip(group, made.ids, strict=True):
            ids[row] = answer
    return Written.without_states(ids, prefill_s, decode_s)
