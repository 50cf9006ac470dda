"""A tree of drafts from a model of its own, every node of which has children.

At the leading depths a node has several: at temperature 0 the most likely tokens, else those that
are the first by their place's clocks. The drafter reads each depth in one tree pass. Where the lead
alone has children, `widened.py` makes a tree of a chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...common.errors import DraftpickError
from ...protocols import DraftRequest, RequestScope, TreeBackend
from ...records import Proposal
from ...requests.reading import PromptReader
from ...sampling.draft_vocab import DraftVocab
from ...sampling.filters import chosen, confidence, penalise, seen_mask
from ...sampling.tree_shape import TreeShape, lead_first


class TreeDrafter:
    """Drafts a tree.

    branch: children of each node at the leading depths.
    slots: positions that the target's cache holds; where a tree does not fit any more, a chain is
        drafted.
    later: unread tokens that are left to the next draft; two are the most that a round leaves to a
        model whose cache keeps what was accepted.
    """

    def __init__(
        self,
        backend: TreeBackend,
        vocab: DraftVocab | None,
        branch: tuple[int, ...],
        slots: int,
        later: int = 2,
    ) -> None:
        self.backend, self.vocab = backend, vocab
        self.shape = TreeShape(branch, every=True)
        self.parameters = backend.parameters
        self.context = backend.context
        self.calls = 0
        self._later = later
        self._slots = min(slots, backend.context)
        self._device = backend.device
        self._prompts = PromptReader(backend, None if vocab is None else vocab.translate)
        self._scope = RequestScope()
        self._nothing = torch.empty(0, dtype=torch.int64, device=backend.device)
        known = backend.vocab_size if vocab is None else vocab.size - 1
        if max(branch, default=1) > known:
            raise DraftpickError(
                f"a tree with {max(branch)} children a node needs a drafter that knows as "
                f"many tokens, not {known}; lower `branch`"
            )
        self._forget(0)

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope

    def reset(self, prompt_ids: list[int]) -> None:
        self._prompts.read(prompt_ids, self._scope)
        self.calls = 1
        self._forget(self.backend.length)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        """A tree at most `asked.k` deep. It ends above a depth to which every node gives less than
        `min_confidence`."""
        k, sampling, least = asked.k, asked.sampling, asked.min_confidence
        fits = len(context) + self.shape.nodes(k) <= self._slots
        shape = self.shape if fits else TreeShape((), every=True)
        names = None if self.vocab is None else self.vocab.to_target
        tokens: list[Tensor] = []  # by depth, [G * width] target ids
        parents: list[int] = []
        growing = [-1]  # the nodes that have children
        logits = self._feed(context[self.backend.length :])  # [G, N], theirs
        self._forget(len(context))
        for depth in range(k):
            if sampling.repetition_penalty != 1:
                drafted = torch.cat(tokens) if tokens else self._nothing
                vocab = logits.shape[-1] if self.vocab is None else self.vocab.target_vocab
                seen = seen_mask(context, drafted, len(parents) + 1, vocab, tuple(parents))
                seen = seen[[node + 1 for node in growing]]  # [G, V]
                logits = penalise(logits, sampling, seen if names is None else seen[:, names])
            if least > 0 and max(map(confidence, logits)) < least:
                break
            width = shape.width(depth)
            places = torch.full((len(logits),), len(context) + depth, device=logits.device)
            made = chosen(logits, sampling, asked.chance, places, names, width).flatten()
            tokens.append(made if names is None else names[made])
            first, parents = len(parents), parents + [p for p in growing for _ in range(width)]
            if depth + 1 < k:
                growing = list(range(first, len(parents)))
                logits = self._read(tokens[-1], parents[first:])
        if not tokens:
            return Proposal(self._nothing)
        order, placed = lead_first(parents)
        return Proposal(torch.cat(tokens)[order], parents=placed)

    def commit(self, context: list[int]) -> None:
        kept = self._walk(context[self._base : -1])
        if self._nodes:
            self.backend.keep(kept)
        self.backend.truncate(min(self._base + len(kept), len(context) - 1))
        if len(context) - self.backend.length > self._later:  # it sat out
            self._feed(context[self.backend.length : -1])
        self._forget(self.backend.length)
        self._prompts.holds(context)

    def _forget(self, base: int) -> None:
        """Nothing is drafted; what is committed and was read ends at `base`."""
        self._base = base
        self._nodes: list[Tensor] = []  # by depth, the drafted tokens that the drafter has read
        self._parents: list[int] = []  # theirs

    def _feed(self, tokens: list[int]) -> Tensor:
        """Append a chain of target ids; [1, N] logits for what follows the last."""
        self.calls += 1
        ids = torch.tensor(tokens, device=self._device)
        return read_nodes(self.backend, self.vocab, ids, None)[-1:]

    def _read(self, tokens: Tensor, parents: list[int]) -> Tensor:
        """Append drafted nodes [G] target ids; [G, N] logits."""
        self.calls += 1
        self._nodes.append(tokens)
        self._parents += parents
        return read_nodes(self.backend, self.vocab, tokens, parents)

    def _walk(self, tokens: list[int]) -> list[int]:
        """The nodes that the drafter has read along `tokens`, as far as they go.

        Drafted ids are read from the device, which has nothing to do at this point.
        """
        drafted = torch.cat(self._nodes).tolist() if self._nodes else []
        known = {key: node for node, key in enumerate(zip(self._parents, drafted, strict=True))}
        nodes, node = [], -1
        for token in tokens:
            if (node, token) not in known:
                break
            node = known[node, token]
            nodes.append(node)
        return nodes


def read_nodes(
    backend: TreeBackend, vocab: DraftVocab | None, tokens: Tensor, parents: list[int] | None
) -> Tensor:
    """Append target ids [T] as nodes, or as a chain without parents; [T, N] logits over the tokens
    that may be drafted."""
    if vocab is None:
        return backend.extend(tokens, parents)
    return backend.extend(vocab.from_target[tokens], parents)[:, : vocab.size - 1]
