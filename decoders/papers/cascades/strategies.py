"""Cascades of two models that do not verify (Narasimhan et al., Faster Cascades via Speculative
Decoding): they choose at every token (Algorithms 2 and 3), or for the whole answer (equation 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...common.errors import NotANumber
from ...lengths import FixedLength
from ...loop import Drafting, SpeculativeDecoding
from ...methods.chain import begin
from ...methods.neural.drafter import NeuralDrafter
from ...methods.plain.drafter import NullDrafter
from ...protocols import AnswerWriter, Backend, Drafter, DraftRequest, Job, decoder_prefix, enter
from ...records import DecodeResult, Sampling
from ...sampling.filters import choose, confidence, penalise, penalised, seen_mask
from ...sampling.randomness import Apart, RandomSource
from ...sampling.stopping import Stopper
from ...tally import Tally
from ...verify import Coupled


def _begun(drafter: Drafter, job: Job) -> tuple[Tally, list[int]]:
    """The tally of an answer, and the sequence that it goes on from; the drafter is asked for the
    first token too."""
    tally, start = Tally(job), decoder_prefix(job.target, job.prompt_ids)
    enter(drafter, job.scope)
    begin(drafter, job.target, job.prompt_ids)
    tally.prefill_s += tally.clock.lap()
    return tally, start


@dataclass(frozen=True)
class TokenCascade(Drafting):
    """One token at a time by Chow's rule (equation 2): the draft model's where its greatest raw
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
        tally, start = _begun(self.drafter, job)
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
                tokens = [choose(logits, sampling, job.chance, len(context))]
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
    """One token at a time by the Diff rule (equation 5): the target's where the draft model's
    greatest raw probability is below the target's own by more than alpha, else the draft model's.
    Both models run at every position: it shows what a rule could reach, and is never fast.

    In the result drafted counts every token, accepted those that the draft model wrote; a round is
    a pass of the target.
    """

    alpha: float

    @torch.inference_mode()
    def decode(self, job: Job) -> DecodeResult:
        target, sampling, stopper = job.target, job.request.sampling, job.stopper
        (tally, start), logits = _begun(self.drafter, job), job.prefilled.logits
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
                tokens = [choose(logits, sampling, job.chance, len(context))]
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


@dataclass(frozen=True)
class SequenceCascade(Drafting):
    """Chow's rule: the draft model's answer is accepted where its probability is at least
    1 - alpha: the mean of its tokens' (geometric), or unnormalised, as the paper states it, their
    product.

    Nothing is emitted before that is known. In the result drafted counts the draft model's tokens;
    accepted is all of them or none.
    """

    drafter: NeuralDrafter
    alpha: float
    normalised: bool = True
    writers: dict[Backend, AnswerWriter] = field(default_factory=dict, compare=False, repr=False)

    @torch.inference_mode()
    def decode(self, job: Job) -> DecodeResult:
        sampling, tally = job.request.sampling, Tally(job)
        self.drafter.enter(job.scope)
        self.drafter.reset(job.prompt_ids)
        start = decoder_prefix(job.target, job.prompt_ids)
        self.drafter.commit(start)
        tally.prefill_s += tally.clock.lap()
        apart = Apart(job.chance, job.target.context)  # or the target's would follow its rejection
        answer = self._write(start, sampling, job.stopper.fresh(), apart)
        logs = self._log_probabilities(start, answer, sampling)
        certainty = math.exp(float(logs.mean() if self.normalised else logs.sum()))
        accepted = certainty >= 1 - self.alpha
        tally.draft_s += tally.clock.lap()
        calls = self.drafter.calls + 1  # with the pass that scored the answer
        spent = calls * self.drafter.parameters
        if accepted:
            job.emit(job.stopper.admit(answer))
            tally.rounds = min(1, len(answer) - 1)  # as if the prompt's pass had given the first
            tally.drafted, tally.accepted = len(answer), [1] * len(answer)
            return tally.close(self.name, answer, calls, spent)
        parts = NullDrafter(job.target.device), Coupled(), FixedLength(0)
        alone = SpeculativeDecoding(self.name, *parts, writers=self.writers)
        result = alone.decode(job)
        return replace(
            result,
            drafted=len(answer),
            accepted_per_position=[0] * len(answer),
            draft_calls=calls,
            draft_work=spent,
            prefill_s=result.prefill_s + tally.prefill_s - job.prefilled.prefill_s,
            draft_s=result.draft_s + tally.draft_s,
        )

    def _write(
        self, start: list[int], sampling: Sampling, stopper: Stopper, chance: RandomSource
    ) -> list[int]:
        context = list(start)
        while not stopper.reason:
            context += stopper.admit(
                self.drafter.propose(context, DraftRequest(1, sampling, chance)).ids.tolist()
            )
            self.drafter.commit(context)
        return context[len(start) :]

    def _log_probabilities(self, start: list[int], answer: list[int], sampling: Sampling) -> Tensor:
        """[n] each token's, at temperature 1 and unfiltered, after any repetition penalty."""
        vocab, device = self.drafter.vocab, self.drafter.backend.device
        ids = torch.tensor(answer, device=device)
        self.drafter.backend.truncate(len(start) - 1)
        logits = self.drafter.logits(torch.tensor([start[-1], *answer[:-1]], device=device))
        if sampling.repetition_penalty != 1:
            width = logits.shape[-1] if vocab is None else vocab.target_vocab
            seen = seen_mask(start, ids[:-1], len(answer), width)
            logits = penalise(logits, sampling, seen if vocab is None else seen[:, vocab.to_target])
        drafted = ids if vocab is None else vocab.from_target[ids]
        return logits.float().log_softmax(-1).gather(1, drafted.unsqueeze(1)).squeeze(1)
