"""Prompt lookup inside a recorded round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...costs.pass_costs import ProbeSchedule
from ...device_rounds import BEFORE, DeviceSequence, Shape
from ..device import REMEMBERED

SHORT_COPY, LONG_COPY = 7, 15  # tokens: a pass takes eight or sixteen in one step of its kernels
FROM_TABLE = 4  # tokens in a row that are taken from a table of token pairs
GAIN = 1.0  # tokens that a draft by copying gives, until it is known


class Copies:
    """Prompt lookup (drafter.py): what followed the longest earlier match of the last
    tokens, and on into what is copied; where nothing matches, the token that follows the last one
    most often, and so on.

    after: int64 [n], the token that follows each of the first n most often, 0 where none is known;
        None for no table.
    by_cost: draft SHORT_COPY tokens where that pays, by what was accepted lately and what rounds
        took when they were recorded; LONG_COPY ones after a draft that was accepted whole; and
        where it does not pay, when `ProbeSchedule` says so. Without it as many as are asked for.
    """

    work = 0

    def __init__(
        self,
        shortest: int,
        longest: int,
        earliest: bool = False,
        after: Tensor | None = None,
        by_cost: bool = True,
    ) -> None:
        assert longest <= BEFORE
        self._by_cost = by_cost
        self._shortest, self._longest, self._earliest = shortest, longest, earliest
        self._table = after
        self.reset([])

    def first(self) -> list[Shape]:
        return [(0,), *((k,) for k in (SHORT_COPY, LONG_COPY) if self._by_cost)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        if not self._by_cost:
            return (k,)
        if self._whole:
            return (min(k, LONG_COPY),)
        short, plain = ((min(k, width),) for width in (SHORT_COPY, 0))
        if k and short in seconds and 1 + self._gain < seconds[short] / seconds[plain]:
            return short if self._probes.should_probe() else plain
        self._probes.reset()
        return short

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: DeviceSequence) -> tuple[Tensor, Tensor | None]:
        (k,) = shape
        if k == 0:
            return line.ids[:0], None
        return self.copied(line, k)[0], None

    def copied(
        self, line: DeviceSequence, k: int, draft: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[k] ids, and [1] whether they are copied. draft: [m <= k] what is taken where nothing
        matches, instead of the table's tokens."""
        if line.copy is not None:
            made, found = line.ids.new_empty(k), line.ids.new_empty(1)
            matches = self._shortest, self._longest, self._earliest
            line.copy(line.ids, line.state, line.room, matches, self._table, draft, made, found)
            return made, found
        source, matched = self.match(line)
        steps = torch.arange(k, device=matched.device)
        copy = line.ids.index_select(0, source + steps % (line.count - source))
        if draft is None:
            draft = self._tabled(line, min(k, FROM_TABLE))
        other = F.pad(draft, (0, k - len(draft)))
        return torch.where(matched > 0, copy, other), (matched > 0).long()

    def _tabled(self, line: DeviceSequence, most: int) -> Tensor:
        """The tokens that the table has in turn after the newest one."""
        token, tabled = line.newest(1), [line.ids[:0]]
        while self._table is not None and len(tabled) <= most:
            last = len(self._table) - 1
            token = torch.where(token > last, 0, self._table[token.clamp(max=last)])
            tabled.append(token)
        return torch.cat(tabled)

    def match(self, line: DeviceSequence) -> tuple[Tensor, Tensor]:
        """[1] where the longest earlier match of the last tokens was followed by a token, and [1]
        how long it is; of equal ones the latest, or the earliest. (0, 0) where none is."""
        n = self._longest
        # row i is what stands before position i, its last token last
        room = line.room
        grams = line.padded[BEFORE - n :].unfold(0, n, 1)[:room]  # [room, n]
        place, back = (torch.arange(m, device=grams.device) for m in (room, n))
        differs = grams != grams.index_select(0, line.count)
        same = n - 1 - torch.where(differs, back, -1).amax(1)  # tokens that agree from the end on
        known = (same >= self._shortest) & (place < line.count)
        rank = -place if self._earliest else place
        best = torch.where(known, same * room + rank, -room).argmax(0, keepdim=True)
        found = known.index_select(0, best)
        return best * found, same.index_select(0, best) * found

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        self.calls += 1
        self._whole = 0 < shape[0] == accepted
        if shape[0]:
            self._gain += (1 - REMEMBERED) * (accepted - self._gain)
            if accepted == 0:
                self._probes.rejected()

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls, self._whole = 0, False
        self._probes, self._gain = ProbeSchedule(), GAIN
