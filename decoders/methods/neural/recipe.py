"""A draft model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ...recipes.base import DraftingRecipe
from ...recipes.model_name import ModelName

if TYPE_CHECKING:
    from ...models.drafts import TargetInfo
    from ...protocols import Backend, Drafter
    from ...sampling.draft_vocab import DraftVocab


class DraftModelRecipe(DraftingRecipe):
    """drafter: a shipped name, a local transformers folder or a hub id.
    fetch: whether a model that is known by name may be fetched for this arm; with false it has to
        be on disk, and elsewhere the arm is down.
    """

    drafter: ModelName
    fetch: bool = True
    doubts: ClassVar[bool] = True

    @property
    def found(self) -> str:
        """`drafter`. Raises DraftpickError where it would have to be fetched, but may not."""
        from ...zoo.catalogue import require_on_disk

        if not self.fetch:
            require_on_disk(self.name, self.drafter)
        return self.drafter

    def check_target(self, target: TargetInfo) -> None:
        self.check_same_tokenizer(target)

    def check_same_tokenizer(self, target: TargetInfo) -> None:
        """Check as `check_target`; no model with another tokenizer will do."""
        from ...models.drafts import fitting

        fitting(self.name, self.found, target)

    def load_model(self, target: Backend, tokenizer: Any) -> tuple[Backend, DraftVocab | None]:
        """The draft model, and the part of the target's vocabulary that it knows (None: all)."""
        from ...models.drafts import find

        return find(self.name, self.found, target, tokenizer).load()


class NeuralRecipe(DraftModelRecipe):
    """One token after another.

    translate: how the drafts of a model with another tokenizer are carried over: "text" encodes
        the text of its likeliest tokens, "tokens" keeps to those that both vocabularies have, and
        "auto" takes text at temperature 0 and tokens above it. Unused where the tokenizers agree.
    prompt_window: tokens of a prompt that the model reads, the last ones; None for all. A model
        with another tokenizer, an encoder, and one whose rounds are recorded on a GPU read all.
    """

    kind: Literal["neural"] = "neural"
    translate: Literal["auto", "text", "tokens"] = "auto"
    prompt_window: int | None = Field(default=None, ge=1)

    def check_target(self, target: TargetInfo) -> None:
        from .translation import foreign

        if foreign(self.name, self.found, target) is None:
            super().check_target(target)

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ...models.drafts import TargetInfo
        from .drafter import NeuralDrafter
        from .translation import foreign

        model = foreign(self.name, self.found, TargetInfo.of(target, tokenizer))
        if model is not None:
            return model.load(target, self.translate)
        return NeuralDrafter(*self.load_model(target, tokenizer), self.prompt_window)
