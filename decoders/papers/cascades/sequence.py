"""Sequence cascade with Chow's rule (D10; Narasimhan et al., Faster Cascades via Speculative
Decoding, equation 1): the draft model's whole answer, or the target's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...lengths import FixedLength
from ...loop import Drafting, SpeculativeDecoding
from ...methods.neural.drafter import NeuralDrafter
from ...methods.plain.drafter import NullDrafter
from ...protocols import AnswerWriter, Backend, DraftRequest, Job, decoder_prefix
from ...records import DecodeResult, Sampling
from ...sampling.filters import penalise, seen_mask
from ...sampling.randomness import RandomSource
from ...sampling.stopping import Stopper
from ...tally import Tally
from ...verify import Lossless


@dataclass(frozen=True)
class SequenceCascade(Drafting):
    """The draft model's answer is accepted where its probability is at least 1 - alpha: the mean of
    its tokens' (geometric), or unnormalised, as the paper states it, their product.

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
        answer = self._write(start, sampling, job.stopper.fresh(), job.chance)
        logs = self._log_probabilities(start, answer, sampling)
        accepted = self._certainty(logs) >= 1 - self.alpha
        tally.draft_s += tally.clock.lap()
        calls = self.drafter.calls + 1  # with the pass that scored the answer
        spent = calls * self.drafter.parameters
        if accepted:
            job.emit(job.stopper.admit(answer))
            tally.rounds = min(1, len(answer) - 1)  # as if the prompt's pass had given the first
            tally.drafted, tally.accepted = len(answer), [1] * len(answer)
            return tally.close(self.name, answer, calls, spent)
        parts = NullDrafter(job.target.device), Lossless(), FixedLength(0)
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

    def _certainty(self, logs: Tensor) -> float:
        return math.exp(float(logs.mean() if self.normalised else logs.sum()))
