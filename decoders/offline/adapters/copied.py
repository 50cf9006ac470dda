"""What a drafter that copies writes alone: token by token, until nothing matches."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...protocols import Backend, Drafter, decoder_prefix
from ...records import Written


def write_copies(
    drafter: Drafter,
    following: Callable[[list[int]], list[int]],
    target: Backend,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
) -> Written:
    """As `Replayable.write`. following: (context) -> the token that is copied next, or none."""
    started, answers = time.perf_counter(), []
    for prompt in prompts:
        drafter.reset(prompt)
        start = decoder_prefix(target, prompt)
        context = list(start)
        while len(context) < len(start) + max_new_tokens:
            token = following(context)
            context += token
            if not token or token[0] in eos_ids:
                break
        answers.append(context[len(start) :])
    return Written.without_states(answers, 0.0, time.perf_counter() - started)
