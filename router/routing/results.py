"""What comes of a routed answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from decoders.records import DecodeResult

FIRST = ("text", "ids", "prompt_ids", "arm", "propensity")  # of what is printed
HIDDEN = ("result", "scores", "draft_calls", "draft_work", "logprobs", "counted", "upstream")


@dataclass(frozen=True)
class Chosen:
    """The arm of one answer, known once the prompt was read and before the first token.

    propensity: as in RoutedResult.
    scores: the policy's number for each of its arms; empty where the arm was forced.
    running: other requests that the machine decodes now.
    drawn: whether the arm was drawn from the policy's distribution.
    kept: as in `Pick`.
    """

    arm: str
    propensity: float = 1.0
    scores: Mapping[str, float] = field(default_factory=dict)
    running: int = 0
    drawn: bool = False
    kept: bool = False


@dataclass(frozen=True)
class RoutedResult:
    """An answer, the arm that wrote it and what choosing that arm cost.

    result: the decode itself.
    propensity: the chance that the arm had of being chosen, 1.0 where it was forced or the policy
        takes its best arm.
    scores: the policy's number for each of its arms, in its order; empty where the arm was forced.
    embed_s: seconds to bring the prefill's embedding to the host or, where the policy reads another
        embedder, to embed the query.
    policy_s: seconds inside the policy.
    skipped: arms that the policy wanted first, and why each did not answer; None most often.
    """

    result: DecodeResult
    arm: str
    propensity: float
    scores: list[float]
    embed_s: float
    policy_s: float
    skipped: dict[str, str] | None = None

    @property
    def wall_s(self) -> float:
        """Seconds for the whole answer, the choice of the arm included."""
        return self.result.wall_s + self.embed_s + self.policy_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens over all seconds: prefill, choice and decoding."""
        return len(self.result.ids) / self.wall_s if self.wall_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """The object that `draftpick generate --json` prints: the fields of both records, times in
        seconds, without those that have no value."""
        decode = {each.name: getattr(self.result, each.name) for each in fields(DecodeResult)}
        choice = {each.name: getattr(self, each.name) for each in fields(self)}
        found = dict.fromkeys(FIRST) | decode | choice | {"tokens_per_s": self.tokens_per_s}
        return {n: value for n, value in found.items() if n not in HIDDEN and value is not None}
