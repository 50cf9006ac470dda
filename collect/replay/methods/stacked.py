"""Drafters that are a stack of layers, a small model or the target's own first layers with an
adapter: an answer is one pass, and many are read together."""

from __future__ import annotations

from decoders.backends.exit_adapter import AdapterHead
from decoders.backends.native import LlamaBackend
from decoders.methods.chain import LATER
from decoders.methods.early_exit.drafter import EarlyExitDrafter
from decoders.methods.neural.drafter import NeuralDrafter

from ..protocols import KnownAnswers
from ..records import ToWrite, Written
from ..replay import ChainReplay, DraftTokens
from ..stack import DraftToken, Stack, score
from ..writer import write


class StackedReplay(ChainReplay):
    """stack: None where the drafter's model is not a native one, or reads only a part of prompts.
    parts: the objects that it is made of, which arms may share.
    """

    @property
    def stack(self) -> Stack | None:
        raise NotImplementedError

    @property
    def parts(self) -> tuple[object, ...]:
        raise NotImplementedError

    def write(self, asked: ToWrite) -> Written | None:
        stack = self.stack
        return None if stack is None else write(stack, *asked[1:])

    def tokens(self, answers: KnownAnswers) -> DraftTokens | None:
        stack = self.stack
        if stack is None:
            return None
        key = tuple(map(id, self.parts))
        if key not in answers.kept:
            answers.kept[key] = self.parts, score(stack, answers)  # with the ids' owners
        scored: list[list[DraftToken]] = answers.kept[key][1]
        return lambda row, at, k: scored[row][at : at + k]


class NeuralReplay(StackedReplay):
    drafter: NeuralDrafter
    later = LATER

    @property
    def stack(self) -> Stack | None:
        model = self.drafter.backend
        if self.drafter.prompt_window is not None or type(model) is not LlamaBackend:
            return None
        return Stack.of_backend(model, self.drafter.vocab)

    @property
    def parts(self) -> tuple[object, ...]:
        model = self.drafter.backend
        return (model.weights if isinstance(model, LlamaBackend) else model), self.drafter.vocab


class EarlyExitReplay(StackedReplay):
    drafter: EarlyExitDrafter

    @property
    def stack(self) -> Stack | None:
        """None also where its target rounds the keys and values that the exit reads."""
        head = self.drafter.head
        if type(head) is not AdapterHead or head.target.eight_bits:
            return None
        return Stack.of_exit(head)

    @property
    def parts(self) -> tuple[object, ...]:
        return (self.drafter.head,)
