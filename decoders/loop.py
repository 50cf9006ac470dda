"""The speculative loop: prefill -> propose -> score -> verify -> commit, until something stops it.

Every method that drafts runs here; autoregressive decoding is the loop with nothing proposed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import torch

from .backends.base import Backend, TreeBackend
from .backends.sync import synchronize
from .chance import Chance
from .drafters.base import Drafter
from .lengths.base import DraftLength
from .records import DecodeResult, Prefilled, Proposal, Request, Sampling, StepStats, Verdict
from .sampling import penalise, probabilities, seen_mask
from .stopping import Stopper
from .strategy import Emit
from .verify.base import Verifier


@dataclass(frozen=True)
class Method:
    """The Strategy of every arm that drafts: these three parts in the loop below."""

    name: str
    drafter: Drafter
    verifier: Verifier
    length: DraftLength

    @property
    def parameters(self) -> int:
        return self.drafter.parameters

    @property
    def context(self) -> int:
        return self.drafter.context

    def decode(
        self,
        target: Backend,
        prompt_ids: list[int],
        prefilled: Prefilled,
        request: Request,
        stopper: Stopper,
        chance: Chance,
        emit: Emit,
    ) -> DecodeResult:
        return decode(target, self, prompt_ids, prefilled, request, stopper, chance, emit)


class Clock:
    """Seconds between marks, the device having caught up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        synchronize(self._device)
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap


@torch.inference_mode()
def decode(
    target: Backend,
    method: Method,
    prompt_ids: list[int],
    prefilled: Prefilled,
    request: Request,
    stopper: Stopper,
    chance: Chance,
    emit: Emit,
) -> DecodeResult:
    """Answer one prompt that `target` has just read (`target.length == len(prompt_ids)`).

    emit: called with the new tokens of each round, as soon as they stand. The result's `text` is
    the stopper's.
    """
    clock = Clock(target.device)
    sampling, drafter, length = request.sampling, method.drafter, method.length
    length.reset()
    drafter.reset(prompt_ids)
    prefill_s = prefilled.prefill_s + clock.lap()
    draft_s = verify_s = other_s = 0.0
    rounds = drafted = 0
    stood: list[int] = []  # at i: how often the (i + 1)-th drafted token stood

    context = list(prompt_ids)
    ids = stopper.admit([_first_token(target, prefilled, prompt_ids, sampling, chance)])
    context += ids
    emit(ids)
    while not stopper.reason:
        other_s += clock.lap()
        k = min(length.next(), stopper.room - 1)
        proposal = _propose(drafter, context, k, sampling, chance, length.min_confidence, target)
        lap_draft = clock.lap()
        verdict = _score_and_verify(target, method.verifier, context, proposal, sampling, chance)
        lap_verify = clock.lap()
        rounds += 1
        drafted += len(verdict.draft_ids)
        draft_s += lap_draft
        verify_s += lap_verify

        kept = stopper.admit([*verdict.accepted_ids, verdict.next_token])
        accepted = min(verdict.accepted, len(kept))
        stood += [0] * (proposal.depth - len(stood))
        for position in range(accepted):
            stood[position] += 1
        context += kept
        emit(kept)
        if not stopper.reason:
            target.truncate(len(context) - 1)  # the newest token is read with the next draft
            drafter.commit(context)
            length.observe(StepStats(proposal.depth, verdict.accepted, lap_draft, lap_verify))
    other_s += clock.lap()
    return DecodeResult(
        arm=method.name,
        prompt_ids=list(prompt_ids),
        ids=context[len(prompt_ids) :],
        text=stopper.text(),
        finish_reason=stopper.reason,
        rounds=rounds,
        drafted=drafted,
        accepted=sum(stood),
        accepted_per_position=stood,
        target_calls=1 + rounds,
        draft_calls=drafter.calls,
        prefill_s=prefill_s,
        draft_s=draft_s,
        verify_s=verify_s,
        other_s=other_s,
    )


def _first_token(
    target: Backend,
    prefilled: Prefilled,
    prompt_ids: list[int],
    sampling: Sampling,
    chance: Chance,
) -> int:
    logits = prefilled.logits.unsqueeze(0)  # [1, V]
    nothing = torch.empty(0, dtype=torch.int64, device=target.device)
    logits = _penalised(logits, prompt_ids, Proposal(nothing), sampling)
    if sampling.greedy:
        return int(logits[0].argmax())
    return int(chance.draw(probabilities(logits, sampling)[0]))


def _propose(
    drafter: Drafter,
    context: list[int],
    k: int,
    sampling: Sampling,
    chance: Chance,
    min_confidence: float,
    target: Backend,
) -> Proposal:
    if k < 1:
        return Proposal(torch.empty(0, dtype=torch.int64, device=target.device))
    return drafter.propose(context, k, sampling, chance, min_confidence)


def _score_and_verify(
    target: Backend,
    verifier: Verifier,
    context: list[int],
    proposal: Proposal,
    sampling: Sampling,
    chance: Chance,
) -> Verdict:
    newest = torch.tensor(context[-1:], device=target.device)
    logits = _score(target, torch.cat([newest, proposal.ids]), proposal.parents)  # [K + 1, V]
    logits = _penalised(logits, context, proposal, sampling)
    verdict = verifier.verify(proposal, logits, sampling, chance)
    if verdict.path is not None:
        cast(TreeBackend, target).keep([0, *(node + 1 for node in verdict.path)])
    return verdict


def _score(target: Backend, read: torch.Tensor, parents: tuple[int, ...] | None) -> torch.Tensor:
    """One pass over the newest token and what follows it; parents: of the latter."""
    if parents is None:
        return target.extend(read)
    # an arm that drafts trees was built for a target that reads them
    return cast(TreeBackend, target).extend(read, [-1, *(parent + 1 for parent in parents)])


def _penalised(
    logits: torch.Tensor, context: list[int], draft: Proposal, sampling: Sampling
) -> torch.Tensor:
    if sampling.repetition_penalty == 1:
        return logits
    rows, vocab = logits.shape
    return penalise(logits, sampling, seen_mask(context, draft.ids, rows, vocab, draft.parents))
