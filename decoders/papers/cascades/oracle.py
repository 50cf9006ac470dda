"""Oracle cascade with the Diff rule (D11; Narasimhan et al., Faster Cascades via Speculative
Decoding, Algorithm 3 and equation 5). It runs both models at every position, so it shows what a
deferral rule could reach, and is never fast."""

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
class OracleCascade(Drafting):
    """One token at a time: the target's where the draft model's greatest raw probability is below
    the target's own by more than alpha, else the draft model's.

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
