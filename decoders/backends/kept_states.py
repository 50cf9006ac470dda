"""States that a backend keeps of what it has read: those after its last layer, and after others."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from .llama.exit_head import check_exit


class KeptStates(ABC):
    """What StateBackend and LayerStatesBackend ask for. Of an encoder-decoder positions and layers
    are the decoder's."""

    layers: int
    context: int
    state_size: int
    dtype: torch.dtype
    device: torch.device

    def __init__(self) -> None:
        self._final: Tensor | None = None  # [context, d] states after the final norm
        self._exits: dict[int, Tensor] = {}  # layer, ascending -> [context, d] states after it

    @abstractmethod
    def truncate(self, length: int) -> None: ...

    def keep_states(self) -> None:
        if self._final is None:
            self.truncate(0)
            self._final = self._room()

    def final_states(self, start: int, end: int) -> Tensor:
        assert self._final is not None
        return self._final[start:end]

    def open_exit(self, exit_layer: int) -> None:
        """Keep the states after `exit_layer` layers, so that an exit can read them."""
        check_exit(exit_layer, self.layers)
        if exit_layer not in self._exits:  # else a prompt may have been read since
            self._exits[exit_layer] = self._room()
            self._exits = dict(sorted(self._exits.items()))

    def exit_hidden(self, exit_layer: int, start: int, end: int) -> Tensor:
        """States [end - start, d] after the exit layer, of positions that were run."""
        return self._exits[exit_layer][start:end]

    def _room(self) -> Tensor:
        size = (self.context, self.state_size)
        return torch.zeros(size, dtype=self.dtype, device=self.device)

    def _kept(self) -> list[Tensor]:
        """All that are kept, the final ones last."""
        return [*self._exits.values(), *([] if self._final is None else [self._final])]
