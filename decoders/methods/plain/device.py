"""Plain decoding in recorded rounds."""

from __future__ import annotations

from torch import Tensor

from ...backends.cuda.rounds import Line, Shape


class Nothing:
    """No draft: plain decoding."""

    calls = work = 0

    def first(self) -> list[Shape]:
        return [(0,)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        return (0,)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: Line) -> tuple[Tensor, Tensor | None]:
        return line.ids[:0], None

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        pass

    def reset(self, prompt_ids: list[int]) -> None:
        pass
