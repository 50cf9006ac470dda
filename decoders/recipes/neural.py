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
        from .. import targets
        from ..drafters import NeuralDrafter
        from .checkpoints import (
            common_vocab,
            draft_vocab_of,
            folder_of,
            require_same_reading,
            require_same_tokenizer,
        )

        folder = folder_of(self.name, self.drafter, "config.json")
        require_same_reading(self.name, folder, target)
        vocab = draft_vocab_of(self.name, folder, target)
        backend = targets.load_backend(folder, target.device, target.dtype)
        if vocab is None:
            require_same_tokenizer(self.name, folder, backend, target, tokenizer)
            vocab = common_vocab(backend, target)
        return NeuralDrafter(backend, vocab)
