"""What a run writes down: one row a question, with every method's answer in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ROUTED = "routed"
BASELINE = "autoregressive"


@dataclass(frozen=True)
class Turn:
    """One turn's answer and its cost. Times are seconds of wall clock.

    arm: the arm that wrote it (for `routed`, the one the policy chose). wall_s: a stop-watch
    around encoding to text, prefill and choice included. retokenised: tokens that the official
    formula counts for this text. draft_calls, draft_work: None in rows of earlier versions. The
    other fields are those of decoders' DecodeResult.
    """

    arm: str
    propensity: float
    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str
    rounds: int
    drafted: int
    accepted: int
    accepted_per_position: list[int]
    target_calls: int
    prefill_s: float
    draft_s: float
    verify_s: float
    other_s: float
    embed_s: float
    policy_s: float
    wall_s: float
    retokenised: int
    draft_calls: int | None = None
    draft_work: int | None = None

    @property
    def decode_s(self) -> float:
        """Seconds after the prompt was read, the choice of the arm included."""
        return self.draft_s + self.verify_s + self.other_s + self.embed_s + self.policy_s


@dataclass(frozen=True)
class Answer:
    """A method's answer to all turns of a question, or the error that stopped it."""

    turns: tuple[Turn, ...] = ()
    error: str | None = None

    @property
    def tokens(self) -> int:
        """New tokens, end-of-sequence tokens included."""
        return sum(len(turn.ids) for turn in self.turns)

    @property
    def decoded(self) -> int:
        """New tokens less the first of each turn, which the prefill gives."""
        return sum(max(len(turn.ids) - 1, 0) for turn in self.turns)

    @property
    def wall_s(self) -> float:
        return sum(turn.wall_s for turn in self.turns)

    @property
    def decode_s(self) -> float:
        return sum(turn.decode_s for turn in self.turns)


@dataclass(frozen=True)
class Row:
    """One question. order: the methods as they ran. tstamp: Unix seconds at its end."""

    question_id: str
    task: str
    category: str | None
    reference: str | None
    order: list[str]
    tstamp: float
    answers: dict[str, Answer] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        answers = {
            method: Answer(tuple(Turn(**turn) for turn in answer["turns"]), answer["error"])
            for method, answer in data["answers"].items()
        }
        return cls(**{**data, "answers": answers})
