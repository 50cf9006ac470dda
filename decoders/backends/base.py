"""The seam between the loop and a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..records import Prefilled


@runtime_checkable
class Backend(Protocol):
    """One sequence being decoded by one model. The cache is the backend's own.

    Positions 0..length-1 are held; `extend` appends, `truncate` takes back. After `prefill` they
    are those of `opening`: the prompt, unless an encoder reads it apart (EncoderDecoder).
    """

    vocab_size: int
    parameters: int
    context: int
    device: torch.device
    dtype: torch.dtype

    @property
    def length(self) -> int:
        """Positions held in the cache."""
        ...

    def prefill(self, prompt_ids: list[int]) -> Prefilled:
        """Forget everything, read `prompt_ids` [S], S >= 1."""
        ...

    def extend(self, ids: Tensor) -> Tensor:
        """Append `ids` [T] int64; logits [T, V] float32 or the model's dtype, row i for what
        follows ids[i]. T >= 1 and length + T <= context."""
        ...

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions; 0 <= length <= self.length."""
        ...


@runtime_checkable
class EncoderDecoder(Backend, Protocol):
    """A backend that reads the prompt apart, in an encoder: its positions are the decoder's, which
    begin with `start_id`. context: bounds the prompt and the decoder's positions each."""

    start_id: int


def opening(backend: Backend, prompt_ids: list[int]) -> list[int]:
    """The sequence that the answer goes on from, a token for each position that `prefill` fills:
    the prompt, or an encoder-decoder's start token alone."""
    return [backend.start_id] if isinstance(backend, EncoderDecoder) else list(prompt_ids)


@runtime_checkable
class TreeBackend(Backend, Protocol):
    """A backend whose sequence may end in a tree: several continuations that share prefixes.

    The tree begins where the sequence ends when `extend` is first given parents. Its nodes are
    numbered from 0 in the order in which they are read, over all calls, until the sequence is
    truncated or a chain is appended; for either, what was kept must be a path. `length` counts
    every node.
    """

    @property
    def no_trees(self) -> str | None:
        """Why this model cannot read one, in a few words; None where it can."""
        ...

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        """parents: [T] the node that each of `ids` follows, -1 for what comes before the tree; one
        of `ids` may follow an earlier one. None appends a chain, as in Backend."""
        ...

    def keep(self, nodes: Sequence[int]) -> None:
        """Keep these nodes of the tree, in growing order and each with its ancestors, and forget
        the others; nodes[i] becomes node i."""
        ...

    def truncate(self, length: int) -> None:
        """As in Backend; a tree with branches can only be taken back whole."""
        ...


@runtime_checkable
class LayeredBackend(Backend, Protocol):
    """A backend whose tokens may leave before its last layer."""

    def extend_until(
        self, token: int, leaves: Callable[[Tensor, Tensor, int], bool]
    ) -> tuple[Tensor, int]:
        """Append one token, run through no more layers than it needs.

        leaves(h, below, depth): whether to stop at [d] after `depth` layers, `below` being [d]
        before the last of them; not asked after the last layer. The layers above get keys and
        values of the state it stopped at. Returns that state [d] and how many layers it took.
        """
        ...

    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., d] after any layer, by the final norm and head."""
        ...


@runtime_checkable
class ExitBackend(Backend, Protocol):
    """A backend whose lower layers may run ahead of the rest, so that an early exit can draft.

    What they have run ahead, `extend` finds done when it is given the same tokens; `truncate` takes
    it back, also where `length` stays.
    """

    @property
    def lower_parameters(self) -> int:
        """Weights that `lower` reads for a token: of the layers below the exit; 0 where none is
        open."""
        ...

    @property
    def ahead(self) -> int:
        """Positions that the layers below the exit have seen; `length` where none runs ahead."""
        ...

    def open_exit(self, exit_layer: int) -> None:
        """From the next prompt on, keep the states after `exit_layer` layers. Raises DraftpickError
        where there is no layer above it, or an exit after another one is open."""
        ...

    def exit_hidden(self, start: int, end: int) -> Tensor:
        """States [end - start, d] after the exit layer, of positions already run."""
        ...

    def lower(self, ids: Tensor) -> Tensor:
        """Run `ids` [T] through the layers below the exit only, ahead of `length`; their [T, d]."""
        ...


@runtime_checkable
class StateBackend(Backend, Protocol):
    """A backend that hands on its final states, so that a drafter can go on from them.

    A final state [d] is what the head reads, after the last norm: `final_states(...) @
    head_rows(ids).T` are the logits of `ids`, but for a bias or scale that a model gives its
    logits. Of a token that left early, it is what `read_out` made of the state it left with.
    """

    state_size: int  # d

    def keep_states(self) -> None:
        """From the next prompt on, keep final states. Where they are kept already, nothing changes;
        else what the backend holds is forgotten."""
        ...

    def final_states(self, start: int, end: int) -> Tensor:
        """[end - start, d] of positions that were read, in a sequence that ends in no branches."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """[T] -> [T, d], as the first layer is given them."""
        ...

    def head_rows(self, ids: Tensor) -> Tensor:
        """The head's rows [n, d] of `ids` [n], as an ordinary tensor."""
        ...
