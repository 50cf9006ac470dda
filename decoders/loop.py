"""The speculative loop: prefill -> propose -> score -> verify -> commit, until something stops it.

Every arm that drafts runs here; autoregressive decoding is the loop with nothing proposed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from .protocols import (
    AnswerWriter,
    Backend,
    Drafter,
    DraftLength,
    DraftRequest,
    ExitBackend,
    GrammarAt,
    Job,
    TellingBackend,
    TreeBackend,
    Verifier,
    WritesAnswers,
    decoder_prefix,
    enter,
    work,
)
from .records import DecodeResult, Proposal, Sampling, StepStats, Verdict
from .sampling.filters import choose, logprobs, penalise, penalised, seen_mask
from .sampling.race import Clocks
from .sampling.randomness import Generator, RandomSource
from .tally import Clock, Tally
from .verify.coupled import Coupled, compared
from .verify.guide import Guide


@dataclass(frozen=True)
class Drafting:
    """What strategies with a drafter have in common."""

    name: str
    drafter: Drafter

    @property
    def parameters(self) -> int:
        return self.drafter.parameters

    @property
    def context(self) -> int:
        return self.drafter.context

    def close(self, tally: Tally, ids: list[int]) -> DecodeResult:
        """The result, with what the drafter did."""
        return tally.close(self.name, ids, self.drafter.calls, work(self.drafter))


@dataclass(frozen=True)
class SpeculativeDecoding(Drafting):
    """The strategy of every arm that drafts: these parts in the loop below.

    context_to: nothing is drafted beyond this many tokens of prompt and answer.
    writers: what writes its answers on a target's own device, kept from answer to answer.
    """

    verifier: Verifier
    length: DraftLength
    context_to: int = sys.maxsize
    writers: dict[Backend, AnswerWriter] = field(default_factory=dict, compare=False, repr=False)

    @property
    def context(self) -> int:
        """Any: where the drafter cannot follow, the target decodes plainly."""
        return sys.maxsize

    @property
    def drafts_to(self) -> int:
        """Tokens of prompt and answer up to which it drafts."""
        return min(self.context_to, self.drafter.context)

    def decode(self, job: Job) -> DecodeResult:
        return decode(self, job)

    def writer(self, job: Job) -> AnswerWriter | None:
        """What writes this answer in the loop's place; None where nothing does."""
        target = job.target
        if not isinstance(target, WritesAnswers):
            return None
        if target not in self.writers:
            parts = self.drafter, self.verifier, self.length
            self.writers[target] = target.answer_writer(*parts)
        writer = self.writers[target]
        return writer if writer.takes(job, self.drafts_to) else None


@torch.inference_mode()
def decode(strategy: SpeculativeDecoding, job: Job) -> DecodeResult:
    """Answer one prompt: the target's own first token, then round after round."""
    target, sampling, stopper = job.target, job.request.sampling, job.stopper
    enter(strategy.drafter, job.scope)
    writer = strategy.writer(job)
    if writer is not None:
        return writer.write(strategy.name, job)
    tally = Tally(job)
    strategy.length.reset()
    drafts = len(job.prompt_ids) <= strategy.drafts_to
    if not drafts:
        strategy = replace(strategy, context_to=0)
    else:
        strategy.drafter.reset(job.prompt_ids)
    tally.prefill_s += tally.clock.lap()

    start = decoder_prefix(target, job.prompt_ids)
    context = list(start)
    first = penalised(job.prefilled.logits, start, sampling)
    guide = None if job.grammar is None else Guide(job.grammar)
    if guide is not None:
        first = guide.first(first)
    ids = stopper.admit([choose(first, sampling, job.chance, len(start))])
    context += ids
    most = job.request.logprobs
    if most is not None:
        tally.logprobs += logprobs(first.unsqueeze(0), ids, most)
    job.emit(ids)
    if isinstance(target, TellingBackend):
        target.clocks = clocks_of(job) if type(strategy.verifier) is Coupled else None
    while not stopper.reason:
        if guide is not None:
            guide.take(ids)
        tally.other_s += tally.clock.lap()
        asked = context, stopper.room, sampling, job.chance, tally.clock, guide
        made = run_round(target, strategy, *asked)
        verdict = made.verdict
        tally.rounds += 1
        tally.passed(1 + len(verdict.draft_ids))
        tally.drafted += len(verdict.draft_ids)
        tally.draft_s += made.draft_s
        tally.verify_s += made.verify_s

        ids = stopper.admit(verdict.ids)
        accepted = min(verdict.accepted, len(ids))
        tally.accept(accepted, of=made.depth)
        context += ids
        if most is not None:
            tally.logprobs += logprobs(made.before(len(ids)), ids, most)
        job.emit(ids, accepted, made.depth)
        if not stopper.reason:
            commit(target, strategy, context, made)
    spent = (strategy.drafter.calls, work(strategy.drafter)) if drafts else (0, 0)
    return tally.close(strategy.name, context[len(start) :], *spent)


@dataclass(frozen=True)
class Round:
    """A draft and what the target made of it.

    logits: [K + 1, V], the target's after any repetition penalty, and what a grammar leaves of it.
    depth: drafted tokens along the longest branch, all of them in a chain.
    own: the same of the drafter's own draft, before a grammar cut it or added to it.
    forced: tokens before that draft which a grammar forced.
    draft_s, verify_s: seconds that drafting and verifying took.
    """

    verdict: Verdict
    logits: Tensor
    depth: int
    own: int
    forced: int
    draft_s: float
    verify_s: float

    def before(self, count: int) -> Tensor:
        """[count, V] logits in front of the round's first tokens."""
        if self.verdict.path is None:
            return self.logits[:count]
        return self.logits[[0, *(node + 1 for node in self.verdict.path)][:count]]


def run_round(
    target: Backend,
    strategy: SpeculativeDecoding,
    context: list[int],
    room: int,
    sampling: Sampling,
    chance: RandomSource,
    clock: Clock,
    guide: Guide | None = None,
) -> Round:
    """Propose tokens to follow `context`, score them by one pass of `target`, and verify.

    room: the most tokens that the verdict may hold, at least 1, the target's own included.
    guide: of an answer that a grammar binds. What it forces is drafted without the drafter.
    """
    forced = [] if guide is None else guide.forced(room - 1)
    line, left = context + forced, room - 1 - len(forced)
    at = None if guide is None else guide.after(forced, line)
    k = min(strategy.length.next(), left, strategy.drafts_to - len(line))
    proposal = propose(strategy, line, k, sampling, chance, target, at)
    own = proposal.depth
    if guide is not None:
        proposal = guide.fit(forced, proposal, room - 1)
        if guide.cut and isinstance(target, ExitBackend):
            target.truncate(target.length)  # an exit may have run ahead over what was cut
    draft_s = clock.lap()
    first = len(context) - target.length  # nodes before the drafted ones, the newest token's last
    logits = score(target, context, proposal, sampling)
    if guide is not None:
        logits = guide.masked(logits)
    told = target.told if isinstance(target, TellingBackend) else None
    if told is not None and proposal.parents is None:
        verdict = compared(proposal.ids.tolist(), told[-1 - len(proposal.ids) :])
    else:
        verdict = strategy.verifier.verify(proposal, logits, sampling, chance, len(context))
    if verdict.path is not None:
        cast(TreeBackend, target).keep([*range(first), *(first + node for node in verdict.path)])
    drafted = proposal.depth
    return Round(verdict, logits, drafted, own, len(forced), draft_s, clock.lap())


def propose(
    strategy: SpeculativeDecoding,
    context: list[int],
    k: int,
    sampling: Sampling,
    chance: RandomSource,
    target: Backend,
    grammar: GrammarAt | None = None,
) -> Proposal:
    """At most k drafted tokens; none for k below 1."""
    if k < 1:
        return Proposal(torch.empty(0, dtype=torch.int64, device=target.device))
    bar, verifier = strategy.length.min_confidence, strategy.verifier
    needed = verifier.needs_raw, verifier.needs_probs and not sampling.greedy
    asked = DraftRequest(k, sampling, chance, bar, *needed, grammar)
    return strategy.drafter.propose(context, asked)


def score(target: Backend, context: list[int], proposal: Proposal, sampling: Sampling) -> Tensor:
    """[K + 1, V] logits, row 0 for the token after `context`, row i + 1 for that after ids[i]."""
    # the newest token alone, but for a verifying draft model that sat out (a vertical cascade)
    unread = torch.tensor(context[target.length :], device=target.device)
    read = torch.cat([unread, proposal.ids]) if len(proposal.ids) else unread
    if proposal.parents is None:
        logits = target.extend(read)
    else:  # an arm that drafts trees was built for a target that reads them
        newest = len(unread) - 1
        parents = [*range(-1, newest), *(newest + 1 + parent for parent in proposal.parents)]
        logits = cast(TreeBackend, target).extend(read, parents)
    return _penalised(logits[len(unread) - 1 :], context, proposal, sampling)


def clocks_of(job: Job) -> Clocks | None:
    """What all of an answer's tokens are drawn by; None where more than logits and places decides:
    a grammar, a penalty, a filter, or chance of another kind."""
    sampling, chance = job.request.sampling, job.chance
    if job.grammar is not None or sampling.repetition_penalty != 1:
        return None
    if sampling.greedy:
        return Clocks()
    if sampling.unfiltered and type(chance) is Generator:
        return Clocks(sampling.temperature, chance.key)
    return None


def commit(target: Backend, strategy: SpeculativeDecoding, context: list[int], made: Round) -> None:
    """Keep `context`, which is what is accepted after the round, and forget the rest."""
    target.truncate(len(context) - 1)  # the newest token is read with the next draft
    if len(context) <= strategy.drafts_to:
        strategy.drafter.commit(context)
    accepted = min(max(made.verdict.accepted - made.forced, 0), made.own)
    strategy.length.observe(StepStats(made.own, accepted, made.draft_s, made.verify_s))


def _penalised(logits: Tensor, context: list[int], draft: Proposal, sampling: Sampling) -> Tensor:
    if sampling.repetition_penalty == 1:
        return logits
    rows, vocab = logits.shape
    return penalise(logits, sampling, seen_mask(context, draft.ids, rows, vocab, draft.parents))
