"""The target's own first layers as drafter (D18)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from ..errors import DraftpickError
from .base import DraftingRecipe

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..drafters import Drafter


class EarlyExitRecipe(DraftingRecipe):
    """drafter: an exit adapter, a shipped name or a local folder."""

    kind: Literal["early_exit"] = "early_exit"
    drafter: str

    @property
    def on_target(self) -> bool:
        return True

    def prepare(self, target: Backend) -> None:
        """A target that cannot have an exit is left alone: the arm says so when it is asked for,
        the others work."""
        from ..backends.early_exit import ADAPTER
        from ..backends.llama import LlamaBackend
        from .checkpoints import folder_of

        if isinstance(target, LlamaBackend):
            folder = folder_of(self.name, self.drafter, ADAPTER)
            config = json.loads((folder / "config.json").read_text())
            if config["exit_layer"] < target.shape.layers:
                target.open_exit(config["exit_layer"])

    def make_drafter(self, target: Backend, tokenizer: Any) -> Drafter:
        from ..backends.early_exit import ADAPTER, Adapter
        from ..backends.llama import LlamaBackend
        from ..drafters import EarlyExitDrafter
        from .checkpoints import draft_vocab_of, folder_of

        if not isinstance(target, LlamaBackend):
            raise DraftpickError(
                f"arm {self.name!r}: an early exit needs the native backend, which this target "
                "does not fit or --backend hf has switched off; choose another arm"
            )
        folder = folder_of(self.name, self.drafter, ADAPTER)
        vocab = draft_vocab_of(self.name, folder, target)
        try:
            return EarlyExitDrafter(target, Adapter.load(folder, target), vocab)
        except ValueError as error:
            raise DraftpickError(f"arm {self.name!r}: {error}") from error
