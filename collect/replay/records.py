"""What replaying an arm along known answers gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from decoders.protocols import Backend


@dataclass(frozen=True)
class Replay:
    """An arm's loop along one answer, the target's or its own.

    agree: per answer token, whether the drafter would have proposed it there given everything
        before it (the first is the prefill's own and True); empty for an arm whose answers are its
        own, above temperature 0, and where nothing drafts.
    rounds: passes of the target after the prompt's.
    drafted, accepted: as in DecodeResult.
    calls: steps that the models of its drafter took; None where each drafted token is one, as it
        is not where tokens are copied too.
    widths: at index i, how many of the rounds read i + 1 tokens; empty where nobody counted.
    """

    agree: list[bool]
    rounds: int
    drafted: int
    accepted: int
    calls: int | None = None
    widths: list[int] = field(default_factory=list)

    @classmethod
    def without_drafts(cls, answer: Sequence[int]) -> Replay:
        """The target alone: the prompt's own pass gives the first token, each round one more."""
        rounds = max(len(answer) - 1, 0)
        return cls(agree=[], rounds=rounds, drafted=0, accepted=0, widths=[rounds])


class ToWrite(NamedTuple):
    """Prompts that a drafter answers on its own, greedily. target: its arm's."""

    target: Backend
    prompts: list[list[int]]
    max_new_tokens: int
    eos_ids: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """Answers to n prompts. Seconds are of the whole batch.

    ids: new tokens, end-of-sequence included.
    embeddings: [n, d] float32, each prompt's last state as the head reads it; None where the target
        did not read them.
    replays: for an arm whose answers are its own, not the target's, what it did to write each; None
        for others (see `Batch.replay`).
    states: of each answer [T, d], the state in front of each of its T tokens; None where they were
        not kept.
    """

    ids: list[list[int]]
    embeddings: NDArray[np.float32] | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    replays: list[Replay] | None = None
    states: list[Tensor] | None = None
