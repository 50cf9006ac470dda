"""Counts and seconds of an answer while it is written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from .common.sync import synchronize
from .protocols import Job
from .records import DecodeResult, TokenLogprob

N = TypeVar("N", int, float)


def count_width(widths: list[N], width: int, times: N) -> None:
    """Count passes over `width` tokens at index width - 1."""
    widths += [type(times)(0)] * (width - len(widths))
    widths[width - 1] += times


class Clock:
    """Seconds between marks, the device having caught up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        synchronize(self._device)
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap


@dataclass
class Tally:
    """The fields of DecodeResult while they grow.

    job: what is being answered; its prefill's seconds and pass are counted from the start.
    accepted: at i, how often the (i + 1)-th drafted token of a round was accepted.
    logprobs: of the tokens so far, where they are asked for.
    """

    job: Job
    clock: Clock = field(init=False)
    prefill_s: float = field(init=False)
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)
    target_calls: int = 1
    widths: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock(self.job.target.device)
        self.prefill_s = self.job.prefilled.prefill_s

    def passed(self, width: int) -> None:
        """The target has read `width` tokens in one pass."""
        self.target_calls += 1
        count_width(self.widths, width, 1)

    def accept(self, count: int, of: int) -> None:
        """A round drafted `of` tokens along its longest branch; the first `count` were accepted."""
        self.accepted += [0] * (of - len(self.accepted))
        for position in range(count):
            self.accepted[position] += 1

    def accept_at(self, position: int) -> None:
        """A round's drafted token at `position` (from 0) was accepted, others are not yet known."""
        self.accepted += [0] * (position + 1 - len(self.accepted))
        self.accepted[position] += 1

    def close(
        self,
        arm: str,
        ids: list[int],
        draft_calls: int = 0,
        draft_work: int = 0,
        mean_layers: float | None = None,
    ) -> DecodeResult:
        """The result, `ids` being the new tokens; what is left of the time counts as `other_s`."""
        text = self.job.stopper.text()
        self.other_s += self.clock.lap()
        return DecodeResult(
            arm=arm,
            prompt_ids=list(self.job.prompt_ids),
            ids=ids,
            text=text,
            finish_reason=self.job.stopper.reason,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=sum(self.accepted),
            accepted_per_position=self.accepted,
            target_calls=self.target_calls,
            draft_calls=draft_calls,
            draft_work=draft_work,
            prefill_s=self.prefill_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            other_s=self.other_s,
            mean_layers=mean_layers,
            logprobs=None if self.job.request.logprobs is None else self.logprobs,
            widths=self.widths,
        )
