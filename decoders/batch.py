"""Many prompts at once: what collection asks of an engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arms import AUTOREGRESSIVE
from .backends.base import opening
from .backends.llama import LlamaBackend
from .drafters import MaxGramDrafter
from .errors import DraftpickError
from .loop import Method
from .records import Request, Sampling
from .replay import Replay, replay
from .stack import Guess, Stack, score, write

if TYPE_CHECKING:
    from .engine import Engine


@dataclass(frozen=True)
class BatchOutput:
    """Answers to n prompts. ids: new tokens, end-of-sequence included. embeddings: [n, d] float32.
    Seconds are of the whole batch."""

    ids: list[list[int]]
    embeddings: NDArray[np.float32]
    prefill_s: float
    decode_s: float


class Batch:
    """Batched where the models are native, one by one elsewhere; the answers are the same."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        target = engine.target
        self._target = Stack.of_backend(target) if isinstance(target, LlamaBackend) else None

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> BatchOutput:
        """The target's own answers, greedy or sampled."""
        request = Request(max_new_tokens, Sampling(temperature), seed=seed)
        for prompt in prompts:
            self._engine.check(prompt, request)
        if self._target is None:
            return self._one_by_one(prompts, request)
        return self._write(self._target, prompts, max_new_tokens, temperature, seed)

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> BatchOutput:
        """What the arm's drafter writes on its own, greedily."""
        drafter = self._drafting(name).drafter
        if isinstance(drafter, MaxGramDrafter):
            return self._copied(drafter, prompts, max_new_tokens)
        stack = Stack.of_drafter(drafter)
        if stack is None:
            raise DraftpickError(
                f"arm {name!r} cannot write on its own here: its drafter is not a native model"
            )
        return self._write(stack, prompts, max_new_tokens, 0.0, 0)

    def teacher_forced(
        self, name: str, prompts: list[list[int]], target_ids: list[list[int]]
    ) -> list[Replay]:
        """The arm's loop at temperature 0, replayed along the target's answers."""
        method = self._drafting(name)
        if isinstance(method.drafter, MaxGramDrafter):
            pairs = zip(prompts, target_ids, strict=True)
            return [self._forced_copy(name, prompt, answer) for prompt, answer in pairs]
        stack = Stack.of_drafter(method.drafter)
        if stack is None:
            raise DraftpickError(f"arm {name!r} cannot be replayed: its drafter is not native")
        guesses = score(stack, prompts, target_ids)
        pairs_ = zip(target_ids, guesses, strict=True)
        return [self._forced(name, answer, guess) for answer, guess in pairs_]

    def _drafting(self, name: str) -> Method:
        method = self._engine.method(name)
        if not isinstance(method, Method):
            raise DraftpickError(f"arm {name!r} does not draft, so that nothing can be replayed")
        return method

    def _forced(self, name: str, answer: Sequence[int], guesses: list[Guess]) -> Replay:
        """Guesses are made on the true prefix, which is what a draft stands on as long as it is
        accepted; after its first wrong token the rest only counts as drafted. How much that is, the
        live loop may answer otherwise where `min_confidence` stops a draft."""
        length, costs = self._drafting(name).length, self._engine.cost_table

        def draft(at: int, k: int) -> list[int]:
            run = guesses[at : at + k]
            for count, guess in enumerate(run):
                if guess.confidence < length.min_confidence:
                    return [g.token for g in run[:count]]
            return [g.token for g in run]

        agree = [i == 0 or guesses[i].token == token for i, token in enumerate(answer)]
        return replay(answer, draft, length, agree, costs.draft_s[name], costs.verify)

    def _forced_copy(self, name: str, prompt: list[int], answer: list[int]) -> Replay:
        method, costs = self._drafting(name), self._engine.cost_table
        drafter = method.drafter
        assert isinstance(drafter, MaxGramDrafter)
        drafter.reset(prompt)
        start, agree = opening(self._engine.target, prompt), [True]
        for at in range(1, len(answer)):
            context = start + answer[:at]
            drafter.commit(context)
            agree.append(drafter.guess(context, 1) == answer[at : at + 1])
        drafter.reset(prompt)

        def draft(at: int, k: int) -> list[int]:
            context = start + answer[:at]
            drafter.commit(context)
            return drafter.guess(context, k)

        return replay(answer, draft, method.length, agree, costs.draft_s[name], costs.verify)

    def _copied(
        self, drafter: MaxGramDrafter, prompts: list[list[int]], max_new_tokens: int
    ) -> BatchOutput:
        started = time.perf_counter()
        answers = []
        for prompt in prompts:
            drafter.reset(prompt)
            start = opening(self._engine.target, prompt)
            context = list(start)
            while len(context) < len(start) + max_new_tokens:
                drafter.commit(context)
                token = drafter.guess(context, 1)
                context += token
                if not token or token[0] in self._engine.eos_ids:
                    break
            answers.append(context[len(start) :])
        none = np.zeros((len(prompts), 0), dtype=np.float32)
        return BatchOutput(answers, none, 0.0, time.perf_counter() - started)

    def _write(
        self, stack: Stack, prompts: list[list[int]], most: int, temperature: float, seed: int
    ) -> BatchOutput:
        out = write(stack, prompts, most, self._engine.eos_ids, temperature, seed)
        return BatchOutput(out.ids, out.embeddings.numpy(), out.prefill_s, out.decode_s)

    def _one_by_one(self, prompts: list[list[int]], request: Request) -> BatchOutput:
        ids, embeddings, prefill_s, decode_s = [], [], 0.0, 0.0
        for prompt in prompts:
            prefilled = self._engine.prefill(prompt)
            result = self._engine.decode(AUTOREGRESSIVE, prompt, request, prefilled)
            ids.append(result.ids)
            embeddings.append(prefilled.embedding.cpu().numpy())
            prefill_s += prefilled.prefill_s
            decode_s += result.decode_s
        return BatchOutput(ids, np.stack(embeddings), prefill_s, decode_s)
