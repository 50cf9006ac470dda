"""One request of the router: how it is asked, and which arm was picked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collect.features import RequestContext

if TYPE_CHECKING:
    from decoders.records import Request
    from policies import Decision


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
    """

    arm: str | None = None
    dynamic: bool = False
    reuse: bool = False
    streamer: Any = None
    request_id: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Ask:
    """A request with its options.

    text: the last user message, which an embedder other than the target's own reads.
    running: other requests that the machine decodes at the same time.
    """

    prompt_ids: Sequence[int]
    request: Request
    options: AskOptions = AskOptions()
    text: str | None = None
    running: int = 0

    def context(self, cached: int) -> RequestContext:
        """What features are of. cached: as in `RequestContext`."""
        request = self.request
        return RequestContext(
            self.prompt_ids,
            request.max_new_tokens,
            request.sampling.temperature,
            self.running,
            cached,
        )


@dataclass(frozen=True, eq=False)
class Pick:
    """The arm that answers, and how it was chosen.

    decision: the policy's, or of a forced arm that arm alone. Its probabilities are those while
        other arms are down.
    x: what the policy read; None where the arm was forced.
    embedding: [d] of the request, None where nothing read it.
    cached: tokens of the prompt that the target did not read again.
    drawn: the arm was drawn from the policy's distribution.
    kept: no policy was asked, as the arm's server has read the earlier turns of the conversation.
    embed_s, policy_s: as in `RoutedResult`.
    """

    decision: Decision
    x: Any = None
    embedding: Any = None
    drawn: bool = False
    embed_s: float = 0.0
    policy_s: float = 0.0
    kept: bool = False
    cached: int = 0

    @property
    def arm(self) -> str:
        return self.decision.arm

    @property
    def choosing_s(self) -> float:
        """Seconds that embedding and policy took."""
        return self.embed_s + self.policy_s
