"""A draft model of its own (D2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .base import DraftingRecipe

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..drafters import Drafter


class NeuralRecipe(DraftingRecipe):
    """drafter: a shipped name, a local transformers folder or a hub id."""

    kind: Literal["neural"] = "neural"
    drafter: str

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..drafters import NeuralDrafter
        from .checkpoints import find

        return NeuralDrafter(*find(self.name, self.drafter, target, tokenizer).load())
