"""A copy or a model's draft inside a recorded round."""

from __future__ import annotations

import itertools

from torch import Tensor

from ...costs.pass_costs import fastest
from ...device_rounds import DeviceSequence, Shape
from ..device import PRIOR, PRIOR_WEIGHT, REMEMBERED, Chain
from ..max_gram.device import GAIN, LONG_COPY, SHORT_COPY, Copies

MIN_READ = SHORT_COPY + 2  # tokens that such a model reads at least
COPY = 1  # the drafter of a draft by either, where it is not the model


class HybridRoundDraft:
    """A copy where there is a match, else a model's draft (hybrid.py).

    A round makes both, so that the model's tokens cost their time even where a copy is taken: how
    many there are follows from how often that is, how often they are accepted, and what rounds of
    each length took when they were recorded. None after a copy that was accepted whole.

    A shape is (width, drafted by the model, unread by it).
    """

    def __init__(self, copies: Copies, model: Chain) -> None:
        self._copies, self._model = copies, model
        self._begin()

    def _begin(self) -> None:
        self._whole = False
        self._copied = 0.3  # share of rounds that copy
        self._gain = 2 * GAIN  # tokens that a copy gives
        self._right = PRIOR * PRIOR_WEIGHT  # the model's tokens that were accepted lately
        self._tried = PRIOR_WEIGHT  # and those that were verified

    @property
    def calls(self) -> int:
        return self._model.calls

    @property
    def work(self) -> int:
        return self._model.work

    def first(self) -> list[Shape]:
        drafts = [
            (SHORT_COPY, m, self._model.unread(SHORT_COPY, m, MIN_READ))
            for m in range(1, SHORT_COPY + 1)
        ]
        return [(0, 0, 0), (SHORT_COPY, 0, 0), *drafts, (LONG_COPY, 0, 0)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        width, drafted = min(k, LONG_COPY if self._whole else SHORT_COPY), 0
        if not self._whole:
            drafted = self._best(width, seconds)
        unread = self._model.unread(width, drafted, MIN_READ)
        self._model.behind.launched(width, unread)
        return width, drafted, unread

    def _best(self, width: int, seconds: dict[Shape, float]) -> int:
        """How many tokens the model drafts, by the most tokens a second."""
        share = self._right / self._tried
        accepted = [0.0, *itertools.accumulate(share**m for m in range(1, width + 1))]
        timed = {
            m: s for (copied, m, _), s in seconds.items() if copied == SHORT_COPY and m <= width
        }
        tokens = [1 + (1 - self._copied) * accepted[m] + self._copied * self._gain for m in timed]
        return list(timed)[fastest(tokens, list(timed.values()))] if timed else 0

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: DeviceSequence) -> tuple[Tensor, Tensor | None]:
        width, drafted, unread = shape
        made = self._model.drafted(line, drafted, unread)
        if width == 0:
            return made, None
        return self._copies.copied(line, width, made)

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        width, drafted, unread = shape
        self._model.count(drafted, unread)
        own = of != COPY and drafted == width
        self._model.behind.read(accepted, own)
        self._whole = of == COPY and 0 < width == accepted
        if width:
            self._copied += (1 - REMEMBERED) * ((of == COPY) - self._copied)
        if of == COPY:
            self._gain += (1 - REMEMBERED) * (accepted - self._gain)
        right, tried = float(min(accepted, drafted)), float(min(accepted + 1, drafted))
        if of == COPY or not drafted:  # nears the prior, so that a model given up is asked again
            right, tried = (1 - REMEMBERED) * PRIOR * PRIOR_WEIGHT, (1 - REMEMBERED) * PRIOR_WEIGHT
        self._right = REMEMBERED * self._right + right
        self._tried = REMEMBERED * self._tried + tried

    def reset(self, prompt_ids: list[int]) -> None:
        self._copies.reset(prompt_ids)
        self._model.reset(prompt_ids)
        self._begin()
