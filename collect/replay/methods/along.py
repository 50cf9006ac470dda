"""A drafter asked from round to round along a known answer, as the loop would ask it."""

from __future__ import annotations

from functools import partial

import torch

from decoders.protocols import Backend, Drafter, DraftRequest, decoder_prefix
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay
from ..replay import Draft, replay_with_agreement


def along(
    drafter: Drafter,
    target: Backend,
    prompt: list[int],
    answer: list[int],
    temperature: float = 0.0,
    min_confidence: float = 0.0,
    counted: bool = True,
) -> Draft:
    """The drafter asked from round to round. One that draws what it does has seed 0.

    counted: whether a model takes steps to draft.
    """
    drafter.reset(prompt)
    before = drafter.calls  # reading the prompt is none of its steps
    start, chance = decoder_prefix(target, prompt), Generator(target.device, 0)
    sampling = Sampling(temperature)

    def draft(at: int, k: int) -> list[int]:
        context = start + answer[:at]
        if at > 1:
            drafter.commit(context)
        asked = DraftRequest(k, sampling, chance, min_confidence)
        ids: list[int] = drafter.propose(context, asked).ids.tolist()
        return ids

    return Draft(draft, (lambda: drafter.calls - before) if counted else None)


@torch.inference_mode()
def all_along(
    drafter: Drafter,
    answers: KnownAnswers,
    loop: ReplayedLoop,
    temperature: float,
    counted: bool = True,
) -> list[Replay]:
    """The loop along each answer, of a drafter whose drafts follow from the text alone: a drafted
    token is accepted where it is the answer's."""

    def begin(prompt: list[int], answer: list[int], min_confidence: float) -> Draft:
        return along(drafter, answers.target, prompt, answer, temperature, min_confidence, counted)

    return [
        replay_with_agreement(answer, partial(begin, prompt, answer), loop)
        for prompt, answer in zip(answers.prompts, answers.ids, strict=True)
    ]
