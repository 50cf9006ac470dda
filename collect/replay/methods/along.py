"""A drafter asked from round to round along a known answer, as the loop would ask it."""

from __future__ import annotations

from functools import partial

import torch

from decoders.protocols import Drafter, DraftRequest, decoder_prefix
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay
from ..replay import Draft, replay_with_agreement


def along(
    drafter: Drafter,
    answers: KnownAnswers,
    row: int,
    min_confidence: float,
    counted: bool = True,
) -> Draft:
    """The drafter asked from round to round along one of the answers.

    counted: whether a model takes steps to draft.
    """
    target, prompt, answer = answers.target, answers.prompts[row], answers.ids[row]
    drafter.reset(prompt)
    before = drafter.calls  # reading the prompt is none of its steps
    start, chance = decoder_prefix(target, prompt), Generator(target.device, answers.seeds[row])
    sampling = Sampling(answers.temperature)

    def draft(at: int, k: int) -> list[int]:
        context = start + answer[:at]
        if at > 1:
            drafter.commit(context)
        if k < 1:
            return []
        asked = DraftRequest(k, sampling, chance, min_confidence)
        ids: list[int] = drafter.propose(context, asked).ids.tolist()
        return ids

    return Draft(draft, (lambda: drafter.calls - before) if counted else None)


@torch.inference_mode()
def all_along(
    drafter: Drafter, answers: KnownAnswers, loop: ReplayedLoop, counted: bool = True
) -> list[Replay]:
    """The loop along each answer, of a drafter that reads nothing along with the target."""

    def begin(row: int, min_confidence: float) -> Draft:
        return along(drafter, answers, row, min_confidence, counted)

    return [
        replay_with_agreement(answer, partial(begin, row), loop)
        for row, answer in enumerate(answers.ids)
    ]
