"""What earlier answers a collection's arms draft from: at every temperature the target's own to the
queries before, in the order in which they were collected, as if one server had answered them one
after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from decoders.earlier.answers import EarlierAnswers
from decoders.protocols import Drafts, RequestScope, Strategy, enter

if TYPE_CHECKING:
    from decoders.engine import Engine


class Before:
    """Answers by temperature, as many of each as a server keeps by default.

    engine: its arms are collected.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[float, EarlierAnswers] = {}

    def keep(self, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> None:
        """The next answer at a temperature; it comes before all that follow."""
        self._of(temperature).add("", prompt, answer)

    @contextmanager
    def going_on(self, strategy: Strategy, temperature: float) -> Iterator[EarlierAnswers]:
        """Within the block an arm drafts from a copy of what was kept, to which answers may be
        added; it is forgotten at the block's end."""
        engine, held, answers = self._engine, self._engine.earlier, self._of(temperature).copy()
        drafter = strategy.drafter if isinstance(strategy, Drafts) else None
        engine.remember(answers)
        enter(drafter, RequestScope(answers=answers))
        try:
            yield answers
        finally:
            engine.remember(held)
            enter(drafter, RequestScope(answers=held))

    def _of(self, temperature: float) -> EarlierAnswers:
        return self._kept.setdefault(temperature, EarlierAnswers())
