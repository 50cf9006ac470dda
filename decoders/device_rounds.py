"""Drafting inside recorded rounds: what a method's device form is given, and what it answers.

backends/cuda/rounds.py runs them; nothing here depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

WIDEST = 17  # tokens; a wider pass is not recorded
BEFORE = 16  # at least the longest match of a copy

Shape = tuple[int, ...]  # what a round drafts, as its draft counts it; equal ones share a recording


# (logits [T, N], places int64 [T], names int64 [N] or None) -> [T] indices into the rows, as the
# answer's tokens are chosen
Chooser = Callable[[Tensor, Tensor, Tensor | None], Tensor]


# ([1, N] logits, tokens drafted before, their ids [N] or None) -> [1] the drafted token's id
DraftChooser = Callable[[Tensor, int, Tensor | None], Tensor]


def first_likeliest(logits: Tensor, places: Tensor, names: Tensor | None = None) -> Tensor:
    """Choose where nothing is drawn."""
    return logits.argmax(-1)


@dataclass(frozen=True)
class DeviceSequence:
    """The sequence on the device, as a round sees it.

    padded: int64 [BEFORE + room + WIDEST], BEFORE numbers that are no token and then the tokens;
        what lies beyond the sequence's end is left of rejected drafts.
    state: int64 [3], how many tokens the sequence has, the newest one, which the target has not
        read, and its position.
    room: at least as many positions as the sequence has tokens.
    read: positions that a pass reads (RecordedPasses.positions).
    copy: a kernel (backends/cuda/round_kernels.py) that copies as `Copies` in
        methods/max_gram/device.py does; None where PyTorch's operators have to.
    choose: the answer's tokens, and so those that are drafted for it.
    """

    padded: Tensor
    state: Tensor
    room: int
    read: int
    copy: Callable[..., None] | None = None
    choose: Chooser = first_likeliest

    def drafted(self, logits: Tensor, ahead: int, names: Tensor | None) -> Tensor:
        """[1, N] logits -> [1] the drafted token's id. ahead: drafted tokens before it.
        names: int64 [N], what `logits` are of; None for the ids 0..N-1."""
        token = self.choose(logits, self.count + ahead, names)
        return token if names is None else names[token]

    @property
    def ids(self) -> Tensor:
        return self.padded[BEFORE:]

    @property
    def count(self) -> Tensor:
        """[1]."""
        return self.state[:1]

    @property
    def start(self) -> Tensor:
        """[1]."""
        return self.state[2:]

    def newest(self, tokens: int) -> Tensor:
        """The last few ids [tokens]."""
        if tokens == 1:
            return self.state[1:2]
        back = torch.arange(1 - tokens, 1, device=self.state.device)
        return self.ids.index_select(0, self.start + back)


# (sequence, k, unread) -> [k] drafted ids, within a recording, after reading the sequence's last
# `unread` tokens, some of them perhaps again
Make = Callable[[DeviceSequence, int, int], Tensor]


class RoundDraft(Protocol):
    """A drafter inside a recorded round.

    calls, work: of what drafts, in this answer; as of a Drafter and the function `work`.
    """

    @property
    def calls(self) -> int: ...

    @property
    def work(self) -> int: ...

    def first(self) -> list[Shape]:
        """Shapes that are recorded before the first answer; the first of them drafts nothing."""

    def next(self, k: int, seconds: dict[Shape, float]) -> Shape:
        """What the coming round drafts, which is launched next: at most k tokens. seconds: of a
        round of each shape that is recorded."""

    def width(self, shape: Shape) -> int:
        """Tokens drafted."""

    def ids(self, shape: Shape, line: DeviceSequence) -> tuple[Tensor, Tensor | None]:
        """Within a recording, which may run it more than once: the drafted ids [width], and int64
        [1] that says which of several drafters they are of."""

    def learn(self, shape: Shape, of: int, accepted: int) -> None:
        """Learn from a draft's end. of: which drafter's it was."""

    def reset(self, prompt_ids: list[int]) -> None:
        """A new answer begins, to a prompt that may have to be read."""


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter whose drafts need not the host."""

    def round_draft(self) -> RoundDraft | None:
        """What drafts for it inside a recorded round; None where nothing
        can, on this device or with these options."""


class Passes(Protocol):
    """A model's passes inside other recordings."""

    def drafted(
        self, ids: Tensor, k: int, choose: Callable[[Tensor, int], Tensor], start: Tensor, read: int
    ) -> Tensor:
        """Read `ids` [U] at the positions from `start` [1] on, then draft k >= 1 tokens; [k], of
        which the last is not read.

        choose: ([1, N] logits, tokens drafted before) -> [1] id.
        read: positions that a pass reads.
        """


@runtime_checkable
class RecordedModel(Protocol):
    """A backend whose passes may be recorded. recorded: None where they are not."""

    @property
    def recorded(self) -> Passes | None: ...

    def draft(self, ids: Tensor, k: int, known: int) -> Tensor:
        """Append `ids` [U], then the greedy answer's first k - 1 tokens; all k of them [k], found
        among the first `known` ids, in one recorded pass."""
