"""Whole answers timed by the arm that ships, by the common drafter and by the arm chosen: what
replay has told, seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from collect.queries import Query
from decoders.records import Request

from ...records import AskOptions
from ...routing.router import Router
from .drafters import UNION
from .judging import ROUTED, SHIPPED, Ratio, ratio

WARM_UP = "Count to ten, then name the days of the week."


def timed(
    router: Router,
    queries: Sequence[Query],
    request: Request,
    on_done: Callable[[int, int], None],
) -> dict[str, tuple[Ratio, Ratio]]:
    """Speed over the arm that ships: of decoding, and of whole answers with their prompts and the
    choice. The ways take turns in a random order, query by query."""
    encode, order = router.engine.encode_chat, random.Random(0)
    ways = [SHIPPED, *(arm for arm in (UNION,) if arm in router.engine.arm_names), ROUTED]
    warm = encode([{"role": "user", "content": WARM_UP}])
    for arm in router.engine.arm_names:
        router.engine.decode(arm, warm, Request(32))
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number, query in enumerate(queries):
        on_done(number, len(queries))
        ids = query.prompt(encode)
        for way in order.sample(ways, len(ways)):
            options = AskOptions(arm=None if way == ROUTED else way)
            done = router.answer(ids, request, options)
            tokens = max(1, len(done.result.ids) - 1)
            seconds[way].append((done.result.decode_s / tokens, done.wall_s / tokens))
    on_done(len(queries), len(queries))
    groups = [query.group or query.id for query in queries]
    base = np.log(np.array(seconds[SHIPPED]))
    made = {}
    for way in ways[1:]:
        gained = base - np.log(np.array(seconds[way]))  # [n, 2]
        made[way] = ratio(gained[:, 0], groups), ratio(gained[:, 1], groups)
    return made
