"""The target's own first layers with an adapter along known answers."""

from __future__ import annotations

from ...backends.early_exit import AdapterHead
from ...drafters import EarlyExitDrafter
from ..stack import Stack
from .stacked import StackedReplay


class EarlyExitReplay(StackedReplay):
    drafter: EarlyExitDrafter

    @property
    def stack(self) -> Stack | None:
        head = self.drafter.head
        return Stack.of_exit(head) if type(head) is AdapterHead else None

    @property
    def parts(self) -> tuple[object, ...]:
        return (self.drafter.head,)
