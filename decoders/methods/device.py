"""Drafts of a model, token after token, inside a recorded round. Copies are in max_gram/device.py,
a copy or a model's draft in hybrid/device.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from ..device_rounds import WIDEST, DeviceSequence, Make, Shape

PRIOR, PRIOR_WEIGHT = 0.55, 8.0  # of a model's token, and of how many tokens' evidence that is
REMEMBERED = 0.9  # of a model's record by each round; without a draft it nears the prior

Reader = Callable[[list[int]], None]


class Chain:
    """Token after token by one model.

    make: (line, k, unread) -> [k] drafted ids, within a recording, after reading the last `unread`
        tokens of the sequence, some of them perhaps again.
    parameters: of the model, as of a Drafter.
    read: reads a prompt, for one that keeps what it has read and must read every token in turn.

    A shape is (drafted, unread).
    """

    def __init__(self, make: Make, parameters: int, read: Reader | None = None) -> None:
        self._make, self._parameters, self._read = make, parameters, read
        self.calls = 0
        self.behind = DrafterLag(0)

    @property
    def work(self) -> int:
        return self.calls * self._parameters

    def first(self) -> list[Shape]:
        return [(0, 0)]

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        shape = k, self.unread(k, k, 2)
        self.behind.launched(*shape)
        return shape

    def unread(self, width: int, drafted: int, least: int) -> int:
        """Tokens to be read in a round over `width` drafted tokens, so many of them its own; at
        least so many where there are, so that there are few recordings."""
        if self._read is None:
            return int(drafted > 0)
        need, tokens = self.behind.unread(width, drafted), self.behind.tokens
        more = least if need <= least else WIDEST
        return more if need and more <= tokens else min(need, tokens)

    def width(self, shape: Shape) -> int:
        return shape[0]

    def ids(self, shape: Shape, line: DeviceSequence) -> tuple[Tensor, Tensor | None]:
        return self.drafted(line, *shape), None

    def drafted(self, line: DeviceSequence, k: int, unread: int) -> Tensor:
        """[k]."""
        return self._make(line, k, unread) if unread else line.ids[:0]

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        self.count(*shape)
        self.behind.read(accepted, own=True)

    def count(self, drafted: int, unread: int) -> None:
        self.calls += max(drafted, int(unread > 0))

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls = 0
        self.behind = DrafterLag(len(prompt_ids) + 1)
        if self._read is not None:
            self._read(prompt_ids)
            self.calls = 1


class DrafterLag:
    """How many tokens before the newest one a draft model has not read. The host knows it of rounds
    that were read; of those on their way it takes the most that there may be.

    tokens: that the sequence has at least.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._known = 0
        self._flying: deque[tuple[int, int]] = deque()

    def unread(self, width: int, drafted: int) -> int:
        """Tokens to read in the coming round: 0 where it need not, as it drafts none and is still
        near enough after it."""
        behind = self._known
        for flown, read in self._flying:
            behind = max(1, flown) if read else behind + flown + 1
        return behind + 1 if drafted or behind + width + 2 > WIDEST else 0

    def launched(self, width: int, unread: int) -> None:
        """A round over so many drafted tokens, before which the model reads so many."""
        self.tokens += 1
        self._flying.append((width, unread))

    def read(self, accepted: int, own: bool) -> None:
        """Take the oldest off. own: whether the draft was the model's."""
        width, unread = self._flying.popleft()
        self.tokens += accepted
        if not unread:
            self._known += accepted + 1
        else:  # its own last token is not read
            self._known = int(0 < width == accepted) if own else accepted
