"""How likely each token of a sampled answer is to be accepted from a drafter: for collection.

One pass of the target and one of the drafter over answers that are known give p and q of each of
their tokens (`expected.py` goes on from there). Where many rows are read at once, rounded weights
give way to those that prompts are read with, as in `stack.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..backends.weights.packed import linear
from ..drafters import NeuralDrafter, RecurrentDrafter
from ..protocols import Backend, Drafter, StateBackend, opening
from ..sampling.draft_vocab import DraftVocab
from .stack import Stack, states_before
from .unrolled import ROWS

if TYPE_CHECKING:
    from ..backends.recurrent.head import RecurrentHead

AT_ONCE = 256  # rows whose logits are held


class Tried(NamedTuple):
    """An answer's token as a drafter might have drafted it, given all before it.

    chance: that it is accepted, min(1, q / p).
    confidence: of the drafter's likeliest token there, raw.
    """

    chance: float
    confidence: float


# (row, at, k) -> the k tokens that follow the first `at` >= 1 of answers[row], as a draft
Tries = Callable[[int, int, int], list[Tried]]


class Along:
    """Answers that the target gave, and what it made of each of their tokens; computed once for
    all drafters, when first asked for.

    stack: the target's, None where it is read one answer at a time.
    """

    def __init__(
        self,
        target: Backend,
        stack: Stack | None,
        prompts: list[list[int]],
        answers: list[list[int]],
    ) -> None:
        self.target, self.prompts, self.answers = target, prompts, answers
        self._stack = stack
        self._log_p: dict[float, list[Tensor]] = {}

    @cached_property
    def states(self) -> list[Tensor]:
        """Per answer [n, d], the target's final state in front of each token."""
        if self._stack is not None:
            return states_before(self._stack, self.prompts, self.answers)
        assert isinstance(self.target, StateBackend)
        states = []
        for prompt, answer in zip(self.prompts, self.answers, strict=True):
            self._read(prompt, answer)
            end = len(opening(self.target, prompt)) - 1 + len(answer)
            states.append(self.target.final_states(end - len(answer), end).clone())
        return states

    def log_p(self, temperature: float) -> list[Tensor]:
        """Per answer [n], log p of each token; but for the first where there is no stack, which is
        never drafted."""
        if temperature not in self._log_p:
            self._log_p[temperature] = self._scored(temperature)
        return self._log_p[temperature]

    def _scored(self, temperature: float) -> list[Tensor]:
        pairs = zip(self.prompts, self.answers, strict=True)
        if self._stack is not None:
            return [log_q for log_q, _ in scores(self._stack, self.states, self.answers,
                                                 temperature)]  # fmt: skip
        return [after(self._read(*pair), pair[1], None, temperature)[0] for pair in pairs]

    @torch.inference_mode()
    def _read(self, prompt: list[int], answer: list[int]) -> Tensor:
        """[n - 1, V] logits for all tokens but the first."""
        self.target.prefill(prompt)
        if len(answer) < 2:
            return torch.empty(0, self.target.vocab_size, device=self.target.device)
        return self.target.extend(torch.tensor(answer[:-1], device=self.target.device))


def tries(model: Drafter, along: Along, temperature: float) -> Tries | None:
    """Of a drafter that draws one token after the other; None for any other, whose drafts cannot be
    told from the answers alone."""
    if type(model) is RecurrentDrafter and isinstance(along.target, StateBackend):
        return UnrolledAlong(model.head, along, temperature)
    answers, prompts = along.answers, along.prompts
    stack = Stack.of_drafter(model)
    if stack is not None:
        scored = scores(stack, states_before(stack, prompts, answers), answers, temperature)
    elif type(model) is NeuralDrafter:
        scored = [_alone(model, *pair, temperature) for pair in zip(prompts, answers, strict=True)]
    else:
        return None
    made = [
        tried(log_q, log_p, sure)
        for (log_q, sure), log_p in zip(scored, along.log_p(temperature), strict=True)
    ]
    return lambda row, at, k: made[row][at : at + k]


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
        pairs = zip(torch.split(rows, AT_ONCE), torch.split(ids, AT_ONCE), strict=True)
        parts = [score(linear(h, stack.head), part, stack.vocab, temperature) for h, part in pairs]
        made.append((torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])))
    return made


def score(
    logits: Tensor, ids: Tensor, vocab: DraftVocab | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Of [n, N] logits over draft tokens: log q of the target's ids [n], -inf for those that the
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
    """As `score`, of a whole answer [n] whose first token has no logits: log 1, not confident."""
    ids = torch.tensor(answer[1:], dtype=torch.int64, device=logits.device)
    log_q, sure = score(logits, ids, vocab, temperature)
    none = log_q.new_zeros(min(1, len(answer)))
    return torch.cat([none, log_q]), torch.cat([none, sure])


def tried(log_q: Tensor, log_p: Tensor, sure: Tensor) -> list[Tried]:
    """All [n]."""
    chances = (log_q - log_p).clamp(max=0).exp()
    return list(map(Tried, chances.tolist(), sure.tolist()))


@torch.inference_mode()
def _alone(
    model: NeuralDrafter, prompt: list[int], answer: list[int], temperature: float
) -> tuple[Tensor, Tensor]:
    """One answer, read by a model of any backend."""
    model.reset(prompt)
    device = model.backend.device
    if len(answer) < 2:
        logits = torch.empty(0, 1, device=device)
    else:
        logits = model.logits(torch.tensor(answer[:-1], device=device))
    return after(logits, answer, model.vocab, temperature)


class UnrolledAlong:
    """What a recurrent drafter makes of the answers' own tokens from every place on: each draft
    goes on from the target's state where its round begins, and the cell reads the true tokens.

    All places of all answers take a step together, as deep as is asked for.
    """

    def __init__(self, head: RecurrentHead, along: Along, temperature: float) -> None:
        self._head, self._temperature, self._first = head, temperature, [0]
        for answer in along.answers:
            self._first.append(self._first[-1] + len(answer))
        self._state = torch.cat(along.states)
        ids = [token for answer in along.answers for token in answer]
        self._ids = torch.tensor(ids, dtype=torch.int64, device=self._state.device)
        self._log_p = torch.cat(along.log_p(temperature))
        self._tried: list[list[Tried]] = []  # by depth, then by place

    def __call__(self, row: int, at: int, k: int) -> list[Tried]:
        place = self._first[row] + at - 1
        while len(self._tried) < k:
            self._deepen()
        return [tried[place] for tried in self._tried[:k]]

    @torch.inference_mode()
    def _deepen(self) -> None:
        """One token further from every place; what crosses into the next answer is never asked."""
        depth = len(self._tried)
        read, meant = self._ids.roll(-depth), self._ids.roll(-depth - 1)
        log_p = self._log_p.roll(-depth - 1)
        states, made = [], list[Tried]()
        for part in torch.split(torch.arange(len(read), device=read.device), ROWS):
            state, logits = self._head.step(self._state[part], read[part])
            log_q, sure = score(logits, meant[part], self._head.vocab, self._temperature)
            states.append(state)
            made += tried(log_q, log_p[part], sure)
        self._state = torch.cat(states)
        self._tried.append(made)
