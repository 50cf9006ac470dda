"""A table as a language model, small drafters, and the shipped loop over them in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..backends.llama.tree import Tree, require_chain, require_rollback
from ..common.errors import ContextTooLong, DraftpickError
from ..lengths import FixedLength
from ..loop import SpeculativeDecoding
from ..methods.neural.drafter import NeuralDrafter
from ..methods.plain.drafter import NullDrafter
from ..protocols import (
    Backend,
    Drafter,
    DraftLength,
    DraftRequest,
    GrammarState,
    Job,
    Strategy,
    Verifier,
)
from ..records import DecodeResult, Prefilled, Proposal, Request, StepStats
from ..sampling.randomness import Generator, RandomSource
from ..sampling.stopping import Stopper
from ..verify import Coupled


class ToyBackend:
    """Next-token logits looked up by the last two tokens: a second-order Markov chain.

    table: [V, V, V], logits after (previous, last); a prompt's first token counts as its own
    predecessor. The embedding is the last row's softmax. A final state is a row of logits itself,
    the head the identity, so that any drafter over states can be tried on it.
    """

    trees_unsupported_reason: str | None = None

    def __init__(self, table: Tensor, context: int = 512) -> None:
        self.table, self.context = table, context
        self.vocab_size = self.state_size = table.shape[-1]
        self.parameters = table.numel()
        self.device, self.dtype = table.device, table.dtype
        self._ids: list[int] = []
        self._tree: Tree | None = None

    @classmethod
    def random(cls, vocab: int, seed: int, sharpness: float = 2.0) -> ToyBackend:
        """A float64 chain of random logits; greater sharpness is surer of itself."""
        generator = torch.Generator().manual_seed(seed)
        shape = (vocab, vocab, vocab)
        return cls(sharpness * torch.randn(shape, generator=generator, dtype=torch.float64))

    def next_logits(self, context: list[int]) -> Tensor:
        """The logits [V] after a context, whatever was read: what `chance` compares with."""
        return self.table[context[-2:][0], context[-1]]

    @property
    def length(self) -> int:
        return len(self._ids)

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        if not prompt_ids:
            raise DraftpickError("the prompt is empty; give it at least one token")
        self.truncate(0)
        logits = self.extend(torch.tensor(prompt_ids))[-1]
        return Prefilled(logits, logits.softmax(-1).float())

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        if len(self._ids) + len(ids) > self.context:
            raise ContextTooLong(len(self._ids), len(ids), self.context)
        start = len(self._ids)
        if parents is None:
            require_chain(self._tree)
            self._tree = None
            before = list(range(start - 1, start + len(ids) - 1))
        else:
            self._tree = self._tree or Tree(start)
            self._tree.grow(parents)
            base = self._tree.base
            before = [base + parent if parent >= 0 else base - 1 for parent in parents]
        self._ids += ids.tolist()
        rows = []
        for at, last in zip(before, self._ids[start:], strict=True):
            rows.append(self.table[self._ids[at] if at >= 0 else last, last])
        return torch.stack(rows)

    def keep(self, nodes: Sequence[int]) -> None:
        assert self._tree is not None
        self._tree.keep(nodes)
        base = self._tree.base
        self._ids[base:] = [self._ids[base + node] for node in nodes]

    def truncate(self, length: int) -> None:
        require_rollback(length, len(self._ids), self._tree)
        del self._ids[length:]
        self._tree = None

    def keep_states(self) -> None:
        pass  # they are looked up

    def final_states(self, start: int, end: int) -> Tensor:
        before = [self._ids[max(at - 1, 0)] for at in range(start, end)]
        return self.table[before, self._ids[start:end]]

    def embed(self, ids: Tensor) -> Tensor:
        return torch.eye(self.vocab_size, dtype=self.dtype)[ids]

    def head_rows(self, ids: Tensor) -> Tensor:
        return torch.eye(self.vocab_size, dtype=self.dtype)[ids]


def cycle(*tokens: int, vocab: int = 8) -> ToyBackend:
    """Makes a target that goes round these tokens for ever, whatever came before the last."""
    table = torch.zeros(vocab, vocab, vocab, dtype=torch.float64)
    for one, following in zip(tokens, [*tokens[1:], tokens[0]], strict=True):
        table[:, one, following] = 9.0
    return ToyBackend(table)


class Scripted:
    """Drafts the same tokens every round, and notes what it is asked for and told.

    asked: how long the context was, and how many tokens were to be drafted.
    """

    parameters = 0
    context = 1 << 30
    calls = 0

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)
        self.asked: list[tuple[int, int]] = []
        self.committed: list[list[int]] = []

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.calls += 1
        self.asked.append((len(context), asked.k))
        return Proposal(torch.tensor(self.tokens[: asked.k], dtype=torch.int64))

    def commit(self, context: list[int]) -> None:
        self.committed.append(context)


def neural(vocab: int, seed: int, sharpness: float = 1.0) -> NeuralDrafter:
    """Makes a draft model of a random table."""
    return NeuralDrafter(ToyBackend.random(vocab, seed, sharpness))


class ListedLengths:
    """Draft lengths from a list, over and over: a rule that sits out rounds and comes back."""

    min_confidence = 0.0

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)
        self.reset()

    def next(self) -> int:
        self._round += 1
        return self._lengths[(self._round - 1) % len(self._lengths)]

    def observe(self, stats: StepStats) -> None:
        pass

    def reset(self) -> None:
        self._round = 0


def speculative(
    drafter: Drafter, length: DraftLength | int = 2, verifier: Verifier | None = None
) -> SpeculativeDecoding:
    """Makes the shipped loop with a drafter, lossless and of a fixed length unless told."""
    rule = FixedLength(length) if isinstance(length, int) else length
    return SpeculativeDecoding("test", drafter, verifier or Coupled(), rule)


def autoregressive() -> SpeculativeDecoding:
    """Makes plain decoding."""
    return speculative(NullDrafter(torch.device("cpu")), 0)


class Streamed:
    """A streamer of transformers' kind that remembers the prompt, each part of the answer, and
    whether it has ended."""

    def __init__(self) -> None:
        self.prompt: list[int] | None = None
        self.parts: list[list[int]] = []
        self.ended = False

    @property
    def ids(self) -> list[int]:
        return [token for part in self.parts for token in part]

    def put(self, value: Tensor) -> None:
        ids = value.flatten().tolist()
        if self.prompt is None:
            self.prompt = ids
        else:
            self.parts.append(ids)

    def end(self) -> None:
        self.ended = True


def job(
    target: Backend,
    prompt: list[int],
    request: Request,
    *,
    eos_ids: tuple[int, ...] = (),
    tokenizer: Any = None,
    chance: RandomSource | None = None,
    emit: Callable[[list[int]], None] = lambda ids: None,
    grammar: GrammarState | None = None,
) -> Job:
    """Reads a prompt and makes what a strategy is given. emit: is told the ids of every round."""
    prefilled = target.prefill(prompt)
    stopper = Stopper(request, eos_ids, tokenizer)
    chance = chance or Generator(torch.device("cpu"), request.seed)
    return Job(
        target, prompt, prefilled, request, stopper, chance, lambda ids, *_: emit(ids), grammar
    )


def run(
    target: Backend, strategy: Strategy, prompt: list[int], request: Request, **how: Any
) -> DecodeResult:
    """Answers a prompt without an engine. how: as of `job`."""
    return strategy.decode(job(target, prompt, request, **how))
