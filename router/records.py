"""Records of one routed request: how it is asked, which arm was chosen, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from collect.features import RequestContext
from decoders.records import DecodeResult

PRINTED_FIRST = ("text", "ids", "prompt_ids", "arm", "propensity")  # of what is printed
HIDDEN = ("result", "scores", "draft_calls", "draft_work", "logprobs", "counted", "upstream")


@dataclass(frozen=True)
class AskOptions:
    """How a request is routed.

    arm: forces an arm, with propensity 1.0.
    dynamic: draw the arm from the policy's distribution instead of taking its best.
    reuse: do not read again what the target still holds of the same beginning, as at the next turn
        of a conversation, or what its engine keeps of earlier prompts of the request's user.
    streamer: a transformers streamer; a RoundStreamer and a ReadStreamer are told more.
    request_id: of the log's line; None makes one up.
    group: requests that depend on each other, as a conversation's turns, share it in the log.
    running: other requests that the machine decodes at the same time, which a policy may read (the
        feature `requests-running`).
    """

    arm: str | None = None
    dynamic: bool = False
    reuse: bool = False
    streamer: Any = None
    request_id: str | None = None
    group: str | None = None
    running: int = 0


@dataclass(frozen=True, eq=False)
class RouteDecision:
    """The arm that answers, known once the prompt was read and before the first token.

    context: what was known of the request.
    propensity: the chance that the arm had of being chosen while other arms are down, 1.0 where it
        was forced or the policy takes its best arm.
    scores: the policy's number for each of its arms, in its order; empty where the arm was forced.
    probabilities: as in `policies.Decision`.
    drawn: the arm was drawn from the policy's distribution.
    kept: no policy was asked, as the arm's server has read the earlier turns of the conversation.
    x: what the policy read; None where the arm was forced.
    embedding: [d] of the request, None where nothing read it.
    policy: the fingerprint of the policy that chose, or its name; None where none did.
    embed_s, policy_s: as in RoutedResult.
    """

    arm: str
    context: RequestContext
    propensity: float = 1.0
    scores: Mapping[str, float] = field(default_factory=dict)
    probabilities: list[float] | None = None
    drawn: bool = False
    kept: bool = False
    x: Any = None
    embedding: Any = None
    policy: str | None = None
    embed_s: float = 0.0
    policy_s: float = 0.0


@dataclass(frozen=True)
class RouteChoice:
    """How a client of a server wants its request's arm to be found.

    arm: None if a policy chooses.
    policy: its registered name; None if no policy is asked.
    reason: best or drawn (by the policy), forced or no-speculation.
    """

    arm: str | None = None
    policy: str | None = None
    reason: str = "best"

    @property
    def dynamic(self) -> bool:
        """The arm is to be drawn from the policy's distribution."""
        return self.reason == "drawn"

    def reason_for(self, decision: RouteDecision) -> str:
        """The reason, once it is known whether the policy drew, as one that learns always does, or
        was not asked because a server has the conversation."""
        if decision.kept:
            return "conversation"
        return "drawn" if self.reason == "best" and decision.drawn else self.reason


@dataclass(frozen=True)
class RoutedResult:
    """An answer, the arm that wrote it and what choosing that arm cost.

    result: the decode itself.
    propensity, scores: as in RouteDecision, the scores alone.
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
        found = dict.fromkeys(PRINTED_FIRST) | decode | choice | {"tokens_per_s": self.tokens_per_s}
        return {n: value for n, value in found.items() if n not in HIDDEN and value is not None}
