"""Records of a run: one row a question, with every method's answer in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from decoders.records import DecodeResult

ROUTED = "routed"
ORACLE = "oracle"
BASELINE = "autoregressive"
QUIET = 0.25  # cores that others may keep busy while an answer is timed


@dataclass(frozen=True)
class Turn:
    """One turn's answer and its cost. Times are seconds of wall clock.

    result: the decode; its `arm` is the one that wrote it, for `routed` the policy's choice.
    propensity, embed_s, policy_s: as in RoutedResult.
    wall_s: a stop-watch around encoding to text, prefill and choice included.
    retokenised: tokens that the official formula counts for this text.
    """

    result: DecodeResult
    propensity: float
    embed_s: float
    policy_s: float
    wall_s: float
    retokenised: int

    @property
    def decode_s(self) -> float:
        """Seconds after the prompt was read, the choice of the arm included."""
        return self.result.decode_s + self.embed_s + self.policy_s

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Turn:
        return cls(**{**data, "result": DecodeResult(**data["result"])})


@dataclass(frozen=True)
class Answer:
    """A method's answer to all turns of a question, or the error that stopped it.

    others: cores that other processes kept busy meanwhile; None where that is not known.
    """

    turns: tuple[Turn, ...] = ()
    error: str | None = None
    others: float | None = None

    @property
    def disturbed(self) -> bool:
        """Tell whether other processes took so much that its seconds say little."""
        return self.others is not None and self.others > QUIET

    @property
    def tokens(self) -> int:
        """New tokens, end-of-sequence tokens included."""
        return sum(len(turn.result.ids) for turn in self.turns)

    @property
    def decoded(self) -> int:
        """New tokens less the first of each turn, which the prefill gives."""
        return sum(max(len(turn.result.ids) - 1, 0) for turn in self.turns)

    @property
    def wall_s(self) -> float:
        return sum(turn.wall_s for turn in self.turns)

    @property
    def decode_s(self) -> float:
        return sum(turn.decode_s for turn in self.turns)


@dataclass(frozen=True)
class Row:
    """One question.

    order: the methods as they ran.
    tstamp: Unix seconds at its end.
    group: what it shares with other questions, as `Query.group`; None for nothing.
    """

    question_id: str
    task: str
    category: str | None
    reference: str | None
    order: list[str]
    tstamp: float
    answers: dict[str, Answer] = field(default_factory=dict)
    group: str | None = None

    @property
    def source(self) -> str:
        """The unit that is independent of others: its group, else the question itself."""
        return f"question {self.question_id}" if self.group is None else f"group {self.group}"

    @property
    def disturbed(self) -> bool:
        """Tell whether any of its answers was."""
        return any(answer.disturbed for answer in self.answers.values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        answers = {
            method: Answer(
                tuple(map(Turn.from_json, answer["turns"])), answer["error"], answer["others"]
            )
            for method, answer in data["answers"].items()
        }
        return cls(**{**data, "answers": answers})
