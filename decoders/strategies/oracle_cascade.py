"""Oracle cascade with the Diff rule (D11; Narasimhan et al., Faster Cascades via Speculative
Decoding, Algorithm 3 and equation 5). It runs both models at every position, so it shows what a
deferral rule could reach, and is never fast."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..chance import Chance
from ..drafters import begin
from ..loop import Clock
from ..protocols import Backend, Drafter, Emit, opening, work
from ..records import DecodeResult, Prefilled, Request
from ..sampling import choose, confidence, penalised
from ..stopping import Stopper
from .tally import Books


@dataclass(frozen=True)
class OracleCascade:
    """One token at a time: the target's where the draft model's greatest raw probability is below
    the target's own by more than alpha, else the draft model's.

    In the result drafted counts every token, accepted those that the draft model wrote; a round is
    a pass of the target.
    """

    name: str
    drafter: Drafter
    alpha: float

    @property
    def parameters(self) -> int:
        return self.drafter.parameters

    @property
    def context(self) -> int:
        return self.drafter.context

    @torch.inference_mode()
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
        books = Books(Clock(target.device), prefilled.prefill_s)
        begin(self.drafter, target, prompt_ids)
        books.prefill_s += books.clock.lap()
        start, logits = opening(target, prompt_ids), prefilled.logits
        context = list(start)
        while True:
            books.other_s += books.clock.lap()
            logits = penalised(logits, context, request.sampling)
            least = max(0.0, confidence(logits) - self.alpha)
            books.verify_s += books.clock.lap()
            tokens = self.drafter.propose(context, 1, request.sampling, chance, least).ids.tolist()
            books.draft_s += books.clock.lap()
            books.drafted += 1
            if tokens:
                books.stands(0)
            else:
                tokens = [choose(logits, request.sampling, chance)]
                books.verify_s += books.clock.lap()
            context += stopper.admit(tokens)
            emit(tokens)
            if stopper.reason:
                break
            self.drafter.commit(context)
            books.other_s += books.clock.lap()
            unread = torch.tensor(context[target.length :], device=target.device)
            logits = target.extend(unread)[-1]
            target.truncate(len(context) - 1)  # an early exit drafts from the newest token on
            books.verify_s += books.clock.lap()
            books.rounds += 1
            books.target_calls += 1
        ids = context[len(start) :]
        calls, spent = self.drafter.calls, work(self.drafter)
        return books.close(self.name, prompt_ids, ids, stopper, calls, spent)
