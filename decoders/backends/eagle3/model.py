"""An EAGLE-3 head as a model that drafts, one sequence.

A token is read with the state of the position before it: the target's own, as far as the target has
read, and beyond that what the head's own step before gave. So a draft is a chain or a tree of steps
on its own states; after a round those are forgotten, and the positions that the target has verified
are read anew with the target's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ...common.errors import ContextTooLong, DraftpickError
from ...common.sync import synchronize
from ...protocols import LayerStatesBackend, StateBackend
from ...records import Prefilled
from ..llama.model import Place, chain_place, tree_place
from ..llama.tree import Tree, require_chain
from .head import Eagle3Head

PREFILL_CHUNK = 1024  # tokens of a prompt in a pass


@runtime_checkable
class Eagle3Target(LayerStatesBackend, StateBackend, Protocol):
    """What a head needs of its target. layers: how many it has."""

    @property
    def layers(self) -> int: ...


class Eagle3Backend:
    """Positions are those of the tokens: as many as the target's, or less.

    The first token has no state before it and is only counted. Logits are over the tokens that the
    head scores; those that follow the first token alone are zeros.
    """

    trees_unsupported_reason: str | None = None

    def __init__(self, target: Eagle3Target, head: Eagle3Head) -> None:
        """The target keeps the states that the head reads from its next prompt on."""
        for layer in head.features:
            target.open_exit(layer)
        self.target, self.head = target, head
        self.vocab_size = head.config.draft_vocab
        self.parameters, self.context = head.parameters, target.context
        self.device, self.dtype = target.device, target.dtype
        self.prompts_read = self.reach = 0
        self._cache = head.new_cache()
        size = self.context, head.shape.hidden
        self._own = torch.zeros(size, dtype=self.dtype, device=self.device)
        self._length = self._known = 0  # tokens; those read with the target's states
        self._tree: Tree | None = None

    @property
    def length(self) -> int:
        return self._length

    def prefill(self, prompt_ids: list[int], cached: int = 0) -> Prefilled:
        started = time.perf_counter()
        if not prompt_ids:
            raise DraftpickError("the prompt is empty; give it at least one token")
        self.truncate(cached)
        self.prompts_read += 1
        ids = torch.tensor(prompt_ids, device=self.device)
        while self._length < len(ids):
            start = self._length
            read = self._appended(ids[start : start + PREFILL_CHUNK])
        logits = self._scored(read[-1:])[0]
        synchronize(self.device)
        return Prefilled(logits, read[-1].float(), time.perf_counter() - started)

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        """Append tokens, as a TreeBackend; [T, N]."""
        read = self._appended(ids) if parents is None else self._branched(ids, parents)
        return self._scored(read)

    def truncate(self, length: int) -> None:
        """Keep at most the first `length` positions, and of those what was read with the target's
        states, so that `length` may come out smaller."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate {self._length} positions to {length}")
        self._length = self._known = min(length, self._known)
        if self._known <= 1:  # before the target has read, drafts go on from zeros
            self._own[0] = 0
        self._tree = None

    def keep(self, nodes: Sequence[int]) -> None:
        assert self._tree is not None
        first, slots = self._tree.keep(nodes)
        if slots:
            source = torch.tensor(slots, device=self.device)
            end = first + len(slots)
            self._cache.move(slice(first, end), source)
            self._own[first:end] = self._own[source]
        self._length = self._tree.end + 1

    # -- passes: a token's slot is its position, less one -------------------------------------

    @torch.inference_mode()
    def _appended(self, ids: Tensor) -> Tensor:
        """What `_scored` takes, [T, d], of a chain of tokens."""
        self._require(len(ids))
        require_chain(self._tree)
        self._tree = None
        made: list[Tensor] = []
        if self._length == 0:
            made.append(torch.zeros_like(self._own[:1]))
            self._length = self._known = 1
            ids = ids[1:]
        start = self._length - 1
        known = min(len(ids), max(0, self.target.length - start))
        if known and self._known == self._length:
            layers = (
                self.target.exit_hidden(layer, start, start + known) for layer in self.head.features
            )
            made.append(self._step(ids[:known], self.head.combine(list(layers)), start))
            self._known = self._length = self._length + known
            ids = ids[known:]
        for token in ids.unsqueeze(1):
            start = self._length - 1
            made.append(self._step(token, self._own[max(0, start - 1)].unsqueeze(0), start))
            self._length += 1
        return torch.cat(made)

    @torch.inference_mode()
    def _branched(self, ids: Tensor, parents: Sequence[int]) -> Tensor:
        """Likewise of nodes of a tree, whose parents were read before."""
        self._require(len(ids))
        base = self._length - 1 if self._tree is None else self._tree.base
        first = 0 if self._tree is None else len(self._tree.parents)
        if any(parent >= first for parent in parents):
            raise ValueError("a node's parent must have been read before it; add depth by depth")
        self._tree = self._tree or Tree(base)
        depths, seen = self._tree.grow(parents)
        turned = torch.tensor(depths, device=self.device)
        place = tree_place(self.head.rope, self.head.shape, turned, seen.to(self.device))
        before = torch.tensor([max(0, base + parent) for parent in parents], device=self.device)
        read = self._at(ids, self._own[before], self._length - 1, place)
        self._length += len(ids)
        return read

    def _step(self, ids: Tensor, states: Tensor, start: int) -> Tensor:
        """A chain of tokens [T] with the states [T, d] before them, in slots start.."""
        place = chain_place(self.head.rope, self.head.shape, start, len(ids))
        return self._at(ids, states, start, place)

    def _at(self, ids: Tensor, states: Tensor, start: int, place: Place) -> Tensor:
        t = len(ids)
        slots = self._cache.slots(start, t, place.read(start + t))
        given, made = self.head.step(ids, states, place, slots)
        self._own[start : start + t] = given
        return made

    @torch.inference_mode()
    def _scored(self, read: Tensor) -> Tensor:
        return self.head.score(read)

    def _require(self, more: int) -> None:
        if self._length + more > self.context:
            raise ContextTooLong(self._length, more, self.context)
