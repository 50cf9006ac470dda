"""A draft model of its own (D2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .base import DraftingRecipe

if TYPE_CHECKING:
    from ..models.drafts import TargetInfo
    from ..protocols import Backend, Drafter
    from ..sampling.draft_vocab import DraftVocab


class DraftModelRecipe(DraftingRecipe):
    """drafter: a shipped name, a local transformers folder or a hub id."""

    drafter: str

    @property
    def doubts(self) -> bool:
        return True

    def check_target(self, target: TargetInfo) -> None:
        from ..models.drafts import fitting

        fitting(self.name, self.drafter, target)

    def load_model(self, target: Backend, tokenizer: Any) -> tuple[Backend, DraftVocab | None]:
        """The draft model, and the part of the target's vocabulary that it knows (None: all)."""
        from ..models.drafts import find

        return find(self.name, self.drafter, target, tokenizer).load()


class NeuralRecipe(DraftModelRecipe):
    """One token after another."""

    kind: Literal["neural"] = "neural"

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..drafters import NeuralDrafter

        return NeuralDrafter(*self.load_model(target, tokenizer))
