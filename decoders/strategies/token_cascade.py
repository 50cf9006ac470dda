"""Token cascade with Chow's rule (D9; Narasimhan et al., Faster Cascades via Speculative Decoding,
Algorithm 2 and equation 2): the target writes the tokens that the draft model is unsure of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..chance import Chance
from ..drafters import begin
from ..loop import Clock
from ..protocols import Backend, Drafter, Emit, opening, work
from ..records import DecodeResult, Prefilled, Request
from ..sampling import choose, penalised
from ..stopping import Stopper
from .tally import Books


@dataclass(frozen=True)
class TokenCascade:
    """One token at a time: the draft model's where its greatest raw probability is at least
    1 - alpha, else the target's.

    A target pass reads all that the target has not seen, so there are as many of them as deferred
    tokens; a deferred first token costs none, the prompt's own pass has given its logits. In the
    result, drafted counts the tokens at which the draft model was asked (all of them), accepted
    those that it wrote; a round ends with a token of the target's, the first begins with the second
    token, as in the loop.
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
        start = opening(target, prompt_ids)
        context = list(start)
        run, within = 0, False  # drafted tokens since the target's last; whether a round goes on
        while not stopper.reason:
            books.other_s += books.clock.lap()
            first = len(context) == len(start)
            proposal = self.drafter.propose(context, 1, request.sampling, chance, 1 - self.alpha)
            tokens = proposal.ids.tolist()  # empty where the draft model is less sure
            books.draft_s += books.clock.lap()
            books.drafted += 1
            if not first and not within:
                books.rounds, within = books.rounds + 1, True
            if tokens:
                books.stands(run)
                run += 1
            else:
                logits = prefilled.logits
                if not first:
                    unread = torch.tensor(context[target.length :], device=target.device)
                    logits = target.extend(unread)[-1]
                    books.target_calls += 1
                logits = penalised(logits, context, request.sampling)
                tokens = [choose(logits, request.sampling, chance)]
                books.verify_s += books.clock.lap()
                run, within = 0, False
            context += stopper.admit(tokens)
            emit(tokens)
            if not stopper.reason:
                target.truncate(target.length)  # what an early exit ran ahead is forgotten
                self.drafter.commit(context)
        ids = context[len(start) :]
        calls, spent = self.drafter.calls, work(self.drafter)
        return books.close(self.name, prompt_ids, ids, stopper, calls, spent)
