"""The speculative loop: prefill -> propose -> score -> verify -> commit, until something stops it.

Every method that drafts runs here; autoregressive decoding is the loop with nothing proposed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from .backends.sync import synchronize
from .chance import Chance
from .protocols import Backend, Drafter, DraftLength, Emit, TreeBackend, Verifier, opening, work
from .records import DecodeResult, Prefilled, Proposal, Request, Sampling, StepStats, Verdict
from .sampling import choose, penalise, penalised, seen_mask
from .stopping import Stopper


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
    """Answer one prompt that `target` has just read: it holds the positions of `opening`.

    emit: called with the new tokens of each round, as soon as they stand. The result's `text` is
    the stopper's.
    """
    clock = Clock(target.device)
    sampling = request.sampling
    method.length.reset()
    method.drafter.reset(prompt_ids)
    prefill_s = prefilled.prefill_s + clock.lap()
    draft_s = verify_s = other_s = 0.0
    rounds = drafted = 0
    stood: list[int] = []  # at i: how often the (i + 1)-th drafted token stood

    start = opening(target, prompt_ids)
    context = list(start)
    first = penalised(prefilled.logits, start, sampling)
    ids = stopper.admit([choose(first, sampling, chance)])
    context += ids
    emit(ids)
    while not stopper.reason:
        other_s += clock.lap()
        turn = play(target, method, context, stopper.room, sampling, chance, clock)
        verdict = turn.verdict
        rounds += 1
        drafted += len(verdict.draft_ids)
        draft_s += turn.draft_s
        verify_s += turn.verify_s

        kept = stopper.admit(verdict.ids)
        accepted = min(verdict.accepted, len(kept))
        stood += [0] * (turn.depth - len(stood))
        for position in range(accepted):
            stood[position] += 1
        context += kept
        emit(kept)
        if not stopper.reason:
            settle(target, method, context, turn)
    other_s += clock.lap()
    return DecodeResult(
        arm=method.name,
        prompt_ids=list(prompt_ids),
        ids=context[len(start) :],
        text=stopper.text(),
        finish_reason=stopper.reason,
        rounds=rounds,
        drafted=drafted,
        accepted=sum(stood),
        accepted_per_position=stood,
        target_calls=1 + rounds,
        draft_calls=method.drafter.calls,
        draft_work=work(method.drafter),
        prefill_s=prefill_s,
        draft_s=draft_s,
        verify_s=verify_s,
        other_s=other_s,
    )


@dataclass(frozen=True)
class Turn:
    """One round. logits: [K + 1, V], the target's after any repetition penalty. depth: drafted
    tokens along the longest branch, all of them in a chain. draft_s, verify_s: the seconds that
    drafting and reviewing took."""

    verdict: Verdict
    logits: Tensor
    depth: int
    draft_s: float
    verify_s: float


def play(
    target: Backend,
    method: Method,
    context: list[int],
    room: int,
    sampling: Sampling,
    chance: Chance,
    clock: Clock,
) -> Turn:
    """Have tokens drafted to follow `context` and let `target` review them; room >= 1 is the most
    that the verdict may hold, the target's own token included."""
    k = min(method.length.next(), room - 1)
    proposal = _propose(method, context, k, sampling, chance, target)
    draft_s = clock.lap()
    first = len(context) - target.length  # nodes before the drafted ones, the newest token's last
    logits = _score(target, context, proposal, sampling)
    verdict = method.verifier.verify(proposal, logits, sampling, chance)
    if verdict.path is not None:
        cast(TreeBackend, target).keep([*range(first), *(first + node for node in verdict.path)])
    return Turn(verdict, logits, proposal.depth, draft_s, clock.lap())


def settle(target: Backend, method: Method, context: list[int], turn: Turn) -> None:
    """`context` is what stands after the round."""
    target.truncate(len(context) - 1)  # the newest token is read with the next draft
    method.drafter.commit(context)
    accepted = turn.verdict.accepted
    method.length.observe(StepStats(turn.depth, accepted, turn.draft_s, turn.verify_s))


def _propose(
    method: Method,
    context: list[int],
    k: int,
    sampling: Sampling,
    chance: Chance,
    target: Backend,
) -> Proposal:
    if k < 1:
        return Proposal(torch.empty(0, dtype=torch.int64, device=target.device))
    bar, needs_raw = method.length.min_confidence, method.verifier.needs_raw
    return method.drafter.propose(context, k, sampling, chance, bar, needs_raw)


def _score(target: Backend, context: list[int], proposal: Proposal, sampling: Sampling) -> Tensor:
    """[K + 1, V] logits, row 0 for the token after `context`, row i + 1 for that after ids[i]."""
    # the newest token alone, but for a reviewing draft model that sat out (drafters/vertical.py)
    unread = torch.tensor(context[target.length :], device=target.device)
    read = torch.cat([unread, proposal.ids]) if len(proposal.ids) else unread
    if proposal.parents is None:
        logits = target.extend(read)
    else:  # an arm that drafts trees was built for a target that reads them
        newest = len(unread) - 1
        parents = [*range(-1, newest), *(newest + 1 + parent for parent in proposal.parents)]
        logits = cast(TreeBackend, target).extend(read, parents)
    return _penalised(logits[len(unread) - 1 :], context, proposal, sampling)


def _penalised(logits: Tensor, context: list[int], draft: Proposal, sampling: Sampling) -> Tensor:
    if sampling.repetition_penalty == 1:
        return logits
    rows, vocab = logits.shape
    return penalise(logits, sampling, seen_mask(context, draft.ids, rows, vocab, draft.parents))
