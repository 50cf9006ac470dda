"""Sampled beams, the looser of the two beam searches (Tulsian et al., "Fast Inference from
Transformers via Speculative Decoding", Algorithm 2).

Each beam goes on by a round of speculative sampling, its drafts kept or replaced as always; its
score grows by log p'(t), t being the token that the target adds to the round and p' what t was
drawn from. The beam with the best score is the answer. So accepted drafts are not scored, and an
answer of fewer rounds has the better of it.

It differs from what is printed in two ways. There the search begins with one beam, makes one of
each, and so never has a second; here it begins with k of the prompt's, which is what its tables
need. And there line 19 puts the residual max(0, p - q) into q', which nothing reads, so that t
would be drawn from p after a rejection too; here that is p', as in speculative sampling.

Beams do not compete before the end: they are written one after another on one cache, and the
drafter reads the prompt for each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from torch import Tensor

from ...loop import Drafting, SpeculativeDecoding
from ...protocols import DraftLength, Job, decoder_prefix
from ...records import DecodeResult, Proposal, Sampling, Verdict
from ...sampling.filters import penalised, probabilities
from ...sampling.randomness import Apart, RandomSource
from ..rules.lossy import Lossless
from ..rules.step import draft_distribution, residual, target_distribution


@dataclass(frozen=True)
class SampledBeams(Drafting):
    """beams: k. At temperature 0 all would be the same, and one is written: the target's answer.

    In the result calls and seconds are all beams'; rounds, drafted and accepted are the answer's.
    """

    length: DraftLength
    beams: int

    @torch.inference_mode()
    def decode(self, job: Job) -> DecodeResult:
        """Decode a prompt; `emit` is called once, when the best beam is known."""
        target, sampling = job.target, job.request.sampling
        start = decoder_prefix(target, job.prompt_ids)
        first = target_distribution(
            penalised(job.prefilled.logits, start, sampling).unsqueeze(0), sampling
        )[0]
        made: list[tuple[float, DecodeResult]] = []
        for beam in range(1 if sampling.greedy else self.beams):
            target.truncate(len(start))
            scored = Scored()
            strategy = SpeculativeDecoding(self.name, self.drafter, scored, self.length)
            read = job.prefilled if beam == 0 else replace(job.prefilled, prefill_s=0.0)
            stopper = job.stopper.fresh()
            apart = Apart(job.chance, beam * job.target.context)
            quiet = replace(job, prefilled=read, stopper=stopper, chance=apart, emit=_silent)
            result = strategy.decode(quiet)
            made.append((float(first[result.ids[0]].log()) + scored.of(result.ids), result))
        best = max(made, key=lambda pair: pair[0])[1]
        job.emit(job.stopper.admit(best.ids))
        results = [result for _, result in made]
        return replace(
            best,
            text=job.stopper.text(),
            target_calls=1 + sum(result.rounds for result in results),
            draft_calls=sum(result.draft_calls for result in results),
            draft_work=sum(result.draft_work for result in results),
            prefill_s=sum(result.prefill_s for result in results),
            draft_s=sum(result.draft_s for result in results),
            verify_s=sum(result.verify_s for result in results),
            other_s=sum(result.other_s for result in results),
            widths=[sum(each) for each in zip_longest(*(r.widths for r in results), fillvalue=0)],
        )


def _silent(ids: list[int], accepted: int = 0, drafted: int = 0) -> None:
    """Nothing is emitted before the best beam is known."""


class Scored(Lossless):
    """Lossless, and keeps log p'(t) of every round."""

    def __init__(self) -> None:
        self._rounds: list[float] = []
        self._written = 1  # the prompt's own pass gave the first

    def of(self, ids: list[int]) -> float:
        """The score of an answer; where it ended inside the last round's draft, without that
        round's t."""
        return sum(self._rounds[:-1] if self._written > len(ids) else self._rounds)

    def verify(
        self,
        proposal: Proposal,
        target_logits: Tensor,
        sampling: Sampling,
        chance: RandomSource,
        place: int,
    ) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, chance, place)
        self._written += len(verdict.ids)
        if not sampling.greedy:  # else there is one beam, and t is certain
            target = probabilities(target_logits, sampling)  # [K + 1, V]
            draft = draft_distribution(proposal, target)  # [K, V]
            accepted = torch.tensor(verdict.accepted, device=target.device)
            left = residual(target[:-1], draft, target, accepted)
            self._rounds.append(float((left[verdict.next_token] / left.sum()).log()))
        return verdict
