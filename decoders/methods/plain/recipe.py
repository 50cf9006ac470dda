"""No drafting: the loop with an empty proposal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...recipes.base import ArmRecipe

if TYPE_CHECKING:
    from ...protocols import Backend, Strategy


class AutoregressiveRecipe(ArmRecipe):
    """One target pass a token."""

    kind: Literal["autoregressive"] = "autoregressive"
    lossless: ClassVar[bool] = True
    takes_grammars: ClassVar[bool] = True

    def build(self, target: Backend, tokenizer: Any) -> Strategy:
        from ...lengths import FixedLength
        from ...loop import SpeculativeDecoding
        from ...verify import Coupled
        from .drafter import NullDrafter

        return SpeculativeDecoding(self.name, NullDrafter(target.device), Coupled(), FixedLength(0))
