"""Drawing tokens inside recorded rounds.

Every token takes one number of the answer's own sequence of them, as in `randomness.Generator`, so
that a recorded round draws what the ordinary loop draws. The numbers and what is asked for lie on
the device: one recording serves any temperature, top-k and top-p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...records import Sampling
from ...sampling.filters import nucleus
from ...sampling.randomness import Generator, drawn_at

AHEAD = 256  # numbers that are brought to the device at once
GREEDY, DRAWN, FILTERED = "greedy", "drawn", "filtered"  # what a recording does with its scores


class RoundSampling:
    """What the rounds of one sequence are drawn by.

    kind: of the recordings that the present answer needs.
    """

    kind = GREEDY

    def __init__(self, room: int, vocab: int, device: torch.device) -> None:
        """room: tokens that a sequence may have, and those that are drafted behind it."""
        self._vocab, self._chance = vocab, Generator(device, 0)
        self._heights = torch.zeros(room, dtype=torch.float64, device=device)
        self._temperature = torch.ones((), dtype=torch.float64, device=device)
        self._least = torch.zeros(1, dtype=torch.int64, device=device)  # of ascending scores
        self._outside = torch.zeros((), dtype=torch.float64, device=device)  # 1 - top_p
        self._unused = self._filled = 0  # positions in the sequence

    def begin(self, sampling: Sampling, chance: Generator | None, length: int) -> None:
        """The next tokens are those from position `length` on. chance: None where greedy."""
        if sampling.greedy or chance is None:
            self.kind = GREEDY
            return
        self.kind = DRAWN if sampling.unfiltered else FILTERED
        self._temperature.fill_(sampling.temperature)
        kept = sampling.top_k or self._vocab
        self._least.fill_(max(0, self._vocab - kept))
        self._outside.fill_(1 - sampling.top_p)
        self._chance, self._unused, self._filled = chance, length, length

    def ready(self, end: int) -> None:
        """A round is to be launched that draws tokens before position `end` at most."""
        if self.kind == GREEDY or end <= self._filled:
            return
        to = min(end + AHEAD, len(self._heights))
        coming = self._chance.coming(to - self._unused)
        self._heights[self._filled : to] = coming[self._filled - self._unused :]
        self._filled = to

    def used(self, count: int) -> None:
        """So many tokens were kept."""
        if self.kind != GREEDY:
            self._chance.use(count)
            self._unused += count

    def drawn(self, kind: str, logits: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Within a recording: tokens [T] of logits [T, V], which go to the positions count.. of the
        sequence, and their probabilities [T, V], as `filters.probabilities` has them.

        count: int64 [1].
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = scores / self._temperature
        if kind == FILTERED:
            ascending, order = scores.sort(-1)
            least = ascending.index_select(-1, self._least)
            ascending = ascending.masked_fill(ascending < least, -torch.inf)
            scores = nucleus(scores, ascending, order, self._outside)
        probs = scores.softmax(-1)
        place = count + torch.arange(len(probs), device=probs.device)
        return drawn_at(probs, self._heights.index_select(0, place)), probs
