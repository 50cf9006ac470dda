"""Continuations of one prompt that share prefixes, over one backend: each token is read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...methods.tree.drafter import read_nodes
from ...protocols import TreeBackend
from ...sampling.draft_vocab import DraftVocab

Ids = tuple[int, ...]  # a continuation: target ids that follow the prompt
PROMPT = -1  # the node that stands for the prompt


class TokenTree:
    """after_prompt: [N] logits that follow the prompt, which `backend` has just read.
    vocab: the part of the target's ids that the backend knows.
    """

    def __init__(
        self, backend: TreeBackend, after_prompt: Tensor, vocab: DraftVocab | None = None
    ) -> None:
        self._backend, self._vocab = backend, vocab
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node, as the backend's
        self._rows = {PROMPT: after_prompt}  # what follows a node

    @property
    def room(self) -> int:
        """Tokens that can still be read."""
        return self._backend.context - self._backend.length

    def has(self, ids: Ids) -> bool:
        """Whether the continuation has been read to its end."""
        return len(self._path(ids)) == len(ids)

    def missing(self, continuations: Iterable[Ids]) -> int:
        """Tokens of these that have not been read."""
        unread = set()
        for ids in continuations:
            unread |= {ids[:end] for end in range(len(self._path(ids)) + 1, len(ids) + 1)}
        return len(unread)

    def read(self, continuations: Iterable[Ids]) -> int:
        """Read in one pass what has not been read of these; how many tokens that was."""
        first, tokens, parents = len(self._nodes), list[int](), list[int]()
        for ids in continuations:
            path = self._path(ids)
            node = path[-1] if path else PROMPT
            for token in ids[len(path) :]:
                parents.append(node)
                node = first + len(tokens)
                tokens.append(token)
                self._nodes[parents[-1], token] = node
        if tokens:
            new = torch.tensor(tokens, device=self._backend.device)
            rows = read_nodes(self._backend, self._vocab, new, parents)
            self._rows |= {first + i: row for i, row in enumerate(rows)}
        return len(tokens)

    def logits(self, continuations: Sequence[Ids]) -> Tensor:
        """[n, N] for what follows each; all have been read, and none was let go since."""
        return torch.stack([self._rows[[PROMPT, *self._path(ids)][-1]] for ids in continuations])

    def keep(self, continuations: Iterable[Ids]) -> None:
        """Forget what is on the way to none of these."""
        paths = [self._path(ids) for ids in continuations]
        kept = sorted({node for path in paths for node in path})
        if len(kept) < len(self._nodes):
            self._backend.keep(kept)
        number = {PROMPT: PROMPT, **{node: i for i, node in enumerate(kept)}}
        self._nodes = {
            (number[parent], token): number[node]
            for (parent, token), node in self._nodes.items()
            if node in number
        }
        ends = {path[-1] if path else PROMPT for path in paths}  # the others' rows have been used
        self._rows = {number[node]: self._rows[node] for node in ends if node in self._rows}

    def _path(self, ids: Ids) -> list[int]:
        """The nodes along a continuation, as far as it has been read."""
        nodes, node = list[int](), PROMPT
        for token in ids:
            if (node, token) not in self._nodes:
                break
            node = self._nodes[node, token]
            nodes.append(node)
        return nodes
