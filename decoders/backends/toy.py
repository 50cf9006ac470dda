"""A table as a language model: the fake that tests and examples run on in microseconds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.errors import ContextTooLong, DraftpickError
from ..records import Prefilled
from .llama.tree import Tree, require_chain, require_rollback


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
