"""Cascades that choose between both models at every token (Narasimhan et al., Faster Cascades via
Speculative Decoding, Algorithms 2 and 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...common.errors import NotANumber
from ...loop import Drafting
from ...methods.catch_up import begin
from ...protocols import DraftRequest, Job, decoder_prefix, enter
from ...records import DecodeResult
from ...sampling.filters import choose, confidence, penalised
from ...tally import Tally


@dataclass(frozen=True)
class TokenCascade(Drafting):
    """One token at a time by Chow's rule (D9, equation 2): the draft model's where its greatest raw
    probability is at least 1 - alpha, else the target's.

    A target pass reads all that the target has not seen, so there are as many of them as deferred
    tokens; a deferred first token costs none, the prompt's own pass has given its logits. In the
    result, drafted counts the tokens at which the draft model was asked (all of them), accepted
    those that it wrote; a round ends with a token of the target's, the first begins with the second
    token, as in the loop.
    """

    alpha: float

    @torch.inference_mode()
    def decode(self, job: Job) -> DecodeResult:
        target, sampling, stopper = job.target, job.request.sampling, job.stopper
        tally = Tally(job)
        enter(self.drafter, job.scope)
        begin(self.drafter, target, job.prompt_ids)
        tally.prefill_s += tally.clock.lap()
        start = decoder_prefix(target, job.prompt_ids)
        context = list(start)
        run, within = 0, False  # drafted tokens since the target's last; whether a round goes on
        while not stopper.reason:
            tally.other_s += tally.clock.lap()
            first = len(context) == len(start)
            asked = DraftRequest(1, sampling, job.chance, min_confidence=1 - self.alpha)
            proposal = self.drafter.propose(context, asked)
            tokens = proposal.ids.tolist()  # empty where the draft model is less sure
            tally.draft_s += tally.clock.lap()
            tally.drafted += 1
            if not first and not within:
                tally.rounds, within = tally.rounds + 1, True
            accepted = len(tokens)
            if tokens:
                tally.accept_at(run)
                run += 1
            else:
                logits = job.prefilled.logits
                if not first:
                    unread = torch.tensor(context[target.length :], device=target.device)
                    logits = target.extend(unread)[-1]
                    tally.passed(len(unread))
                logits = penalised(logits, context, sampling)
                tokens = [choose(logits, sampling, job.chance)]
                tally.verify_s += tally.clock.lap()
                run, within = 0, False
            context += stopper.admit(tokens)
            job.emit(tokens, accepted, 1)
            if not stopper.reason:
                target.truncate(target.length)  # what an early exit ran ahead is forgotten
                self.drafter.commit(context)
        return self.close(tally, context[len(start) :])


@dataclass(frozen=True)
class OracleCascade(Drafting):
    """One token at a time by the Diff rule (D11, equation 5): the target's where the draft model's
    greatest raw probability is below the target's own by more than alpha, else the draft model's.
    Both models run at every position: it shows what a rule could reach, and is never fast.

    In the result drafted counts every token, accepted those that the draft model wrote; a round is
    a pass of the target.
    """

    alpha: float

    @torch.inference_mode()
    def decode(self, job: Job) -> DecodeResult:
        target, sampling, stopper = job.target, job.request.sampling, job.stopper
        tally = Tally(job)
        enter(self.drafter, job.scope)
        begin(self.drafter, target, job.prompt_ids)
        tally.prefill_s += tally.clock.lap()
        start, logits = decoder_prefix(target, job.prompt_ids), job.prefilled.logits
        context = list(start)
        while True:
            tally.other_s += tally.clock.lap()
            logits = penalised(logits, context, sampling)
            sure = confidence(logits)
            if math.isnan(sure):
                raise NotANumber
            least = max(0.0, sure - self.alpha)
            tally.verify_s += tally.clock.lap()
            asked = DraftRequest(1, sampling, job.chance, min_confidence=least)
            tokens = self.drafter.propose(context, asked).ids.tolist()
            tally.draft_s += tally.clock.lap()
            tally.drafted += 1
            accepted = len(tokens)
            if tokens:
                tally.accept_at(0)
            else:
                tokens = [choose(logits, sampling, job.chance)]
                tally.verify_s += tally.clock.lap()
            context += stopper.admit(tokens)
            job.emit(tokens, accepted, 1)
            if stopper.reason:
                break
            self.drafter.commit(context)
            tally.other_s += tally.clock.lap()
            unread = torch.tensor(context[target.length :], device=target.device)
            logits = target.extend(unread)[-1]
            target.truncate(len(context) - 1)  # an early exit drafts from the newest token on
            tally.verify_s += tally.clock.lap()
            tally.rounds += 1
            tally.passed(len(unread))
        return self.close(tally, context[len(start) :])
