"""Counts and seconds of an answer that the speculative loop does not write."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..loop import Clock
from ..records import DecodeResult
from ..stopping import Stopper


@dataclass
class Books:
    """The fields of DecodeResult while they grow. stood: at i, how often the (i + 1)-th drafted
    token of a round stood. target_calls begins with the prompt's own pass."""

    clock: Clock
    prefill_s: float
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    stood: list[int] = field(default_factory=list)
    target_calls: int = 1

    def stands(self, position: int) -> None:
        """A round's token at `position` (from 0) stood."""
        self.stood += [0] * (position + 1 - len(self.stood))
        self.stood[position] += 1

    def close(
        self,
        arm: str,
        prompt_ids: list[int],
        ids: list[int],
        stopper: Stopper,
        draft_calls: int = 0,
        draft_work: int = 0,
        mean_layers: float | None = None,
    ) -> DecodeResult:
        text = stopper.text()
        self.other_s += self.clock.lap()
        return DecodeResult(
            arm=arm,
            prompt_ids=list(prompt_ids),
            ids=ids,
            text=text,
            finish_reason=stopper.reason,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=sum(self.stood),
            accepted_per_position=self.stood,
            target_calls=self.target_calls,
            draft_calls=draft_calls,
            draft_work=draft_work,
            prefill_s=self.prefill_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            other_s=self.other_s,
            mean_layers=mean_layers,
        )
