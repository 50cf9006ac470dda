"""How likely each token of a known answer is to be accepted from a drafter, and what the target
made of it.

One pass of the target and one of the drafter over known answers give p and q of each of their
tokens (`expected.py` goes on from there). Where many rows are read at once, rounded weights give
way to those that prompts are read with, as in `stack.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoders.backends.weights.packed import linear
from decoders.protocols import Backend, StateBackend, decoder_prefix
from decoders.sampling.draft_vocab import DraftVocab

from .protocols import KnownAnswers
from .stack import LOGITS_AT_ONCE, Stack, states_before


class AcceptanceTrial(NamedTuple):
    """An answer's token as a drafter might have drafted it, given all before it.

    chance: that it is accepted, min(1, q / p).
    confidence: of the drafter's most likely token there, raw.
    """

    chance: float
    confidence: float


# (row, at, k) -> the k tokens that follow the first `at` >= 1 of answers[row], as a draft; fewer
# where the answer has no more
AcceptanceTrials = Callable[[int, int, int], list[AcceptanceTrial]]


@torch.inference_mode()
def scores(
    stack: Stack,
    states: Sequence[Tensor],
    answers: Sequence[Sequence[int]],
    temperature: float,
) -> list[tuple[Tensor, Tensor]]:
    """Per answer, log q of each of its n tokens [n] and the confidence there [n].

    states: of each answer [n, d], in front of each token, as the head reads them.
    """
    made = []
    for rows, answer in zip(states, answers, strict=True):
        ids = torch.tensor(answer, dtype=torch.int64, device=rows.device)
        split = (torch.split(each, LOGITS_AT_ONCE) for each in (rows, ids))
        pairs = zip(*split, strict=True)
        parts = [score(linear(h, stack.head), part, stack.vocab, temperature) for h, part in pairs]
        made.append((torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])))
    return made


def score(
    logits: Tensor, ids: Tensor, vocab: DraftVocab | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score [n, N] logits over draft tokens: log q of the target's ids [n], -inf for those that the
    draft vocabulary lacks, and the confidence [n]."""
    raw = logits if logits.dtype == torch.float64 else logits.float()
    sure = (raw.amax(-1) - raw.logsumexp(-1)).exp()
    own = ids if vocab is None else vocab.from_target[ids]
    has = own < raw.shape[-1]
    cooled = raw / temperature
    log_q = cooled.gather(1, (own * has).unsqueeze(1)).squeeze(1) - cooled.logsumexp(-1)
    return log_q.masked_fill(~has, -torch.inf), sure


def after(
    logits: Tensor, answer: list[int], vocab: DraftVocab | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Score a whole answer [n] whose first token has no logits: log 1, not confident."""
    ids = torch.tensor(answer[1:], dtype=torch.int64, device=logits.device)
    log_q, sure = score(logits, ids, vocab, temperature)
    none = log_q.new_zeros(min(1, len(answer)))
    return torch.cat([none, log_q]), torch.cat([none, sure])


def tried(log_q: Tensor, log_p: Tensor, sure: Tensor) -> list[AcceptanceTrial]:
    """All [n]."""
    chances = (log_q - log_p).clamp(max=0).exp()
    return list(map(AcceptanceTrial, chances.tolist(), sure.tolist()))


def trials_along(
    scored: Sequence[tuple[Tensor, Tensor]], answers: KnownAnswers, temperature: float
) -> AcceptanceTrials:
    """scored: per answer, log q of each token [n] and the confidence there [n]."""
    made = [
        tried(log_q, log_p, sure)
        for (log_q, sure), log_p in zip(scored, answers.log_p(temperature), strict=True)
    ]
    return lambda row, at, k: made[row][at : at + k]


class TeacherForcing:
    """What the target made of each token of its answers (`KnownAnswers`).

    stack: the target's, None where it is read one answer at a time.
    states: as in KnownAnswers, where they are known already.
    """

    def __init__(
        self,
        target: Backend,
        stack: Stack | None,
        prompts: list[list[int]],
        answers: list[list[int]],
        states: list[Tensor] | None = None,
    ) -> None:
        self.target, self.prompts, self.ids = target, prompts, answers
        self._stack, self._states = stack, states
        self._log_p: dict[float, list[Tensor]] = {}
        self.kept: dict[Hashable, Any] = {}

    @property
    def batched(self) -> bool:
        return self._stack is not None

    @cached_property
    def states(self) -> list[Tensor]:
        if self._states is not None:
            return self._states
        if self._stack is not None:
            return states_before(self._stack, self.prompts, self.ids)
        assert isinstance(self.target, StateBackend)
        states = []
        for prompt, answer in zip(self.prompts, self.ids, strict=True):
            self._read(prompt, answer)
            end = len(decoder_prefix(self.target, prompt)) - 1 + len(answer)
            states.append(self.target.final_states(end - len(answer), end).clone())
        return states

    def log_p(self, temperature: float) -> list[Tensor]:
        if temperature not in self._log_p:
            self._log_p[temperature] = self._scored(temperature)
        return self._log_p[temperature]

    def forget_scores(self) -> None:
        """Scores are as wide as the vocabulary; the states that they are made of stay."""
        self._log_p.clear()

    def _scored(self, temperature: float) -> list[Tensor]:
        pairs = zip(self.prompts, self.ids, strict=True)
        if self._stack is not None:
            scored = scores(self._stack, self.states, self.ids, temperature)
            return [log_q for log_q, _ in scored]
        return [after(self._read(*pair), pair[1], None, temperature)[0] for pair in pairs]

    @torch.inference_mode()
    def _read(self, prompt: list[int], answer: list[int]) -> Tensor:
        """[n - 1, V] logits for all tokens but the first."""
        self.target.prefill(prompt)
        if len(answer) < 2:
            return torch.empty(0, self.target.vocab_size, device=self.target.device)
        return self.target.extend(torch.tensor(answer[:-1], device=self.target.device))
