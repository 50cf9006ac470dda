"""From an answer of the router to a line of its log."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from collect.features import FEATURES, RequestContext, feature_vector

from ..protocols import RoutingEngine
from .record import Asked, LoggedDecision, Result, Text, Vector
from .writer import DecisionLog

if TYPE_CHECKING:
    from decoders.records import DecodeResult, Request
    from policies import Policy


@dataclass(frozen=True, eq=False)
class Choice:
    """How one arm came to answer.

    x: what the policy read; None where the arm was forced.
    embedding: [d] of the request, None where nothing read it.
    dynamic: the arm was drawn from the policy's distribution.
    chances: of each of the policy's arms, where not all of them could answer or the policy may have
        changed since; None for the policy's own.
    """

    arm: str
    propensity: float = 1.0
    x: Any = None
    embedding: Any = None
    dynamic: bool = False
    chances: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Asking:
    """One request, as the log knows it.

    id: None makes one up.
    group: as in LoggedDecision.
    words: the last user message.
    running: other requests that the machine decodes at the same time.
    """

    prompt_ids: Sequence[int]
    request: Request
    id: str | None = None
    group: str | None = None
    words: str | None = None
    running: int = 0


class Recorder:
    """Writes a router's decisions to a log; nothing that goes wrong here reaches the answer.

    embedder: name of the space of the embeddings.
    """

    def __init__(
        self, log: DecisionLog, engine: RoutingEngine, policy: Policy | None, embedder: str
    ) -> None:
        self.log = log
        self._engine, self._policy, self._embedder = engine, policy, embedder
        # A policy of a kind that cannot be stored is known by its name.
        self._fingerprint = getattr(policy, "fingerprint", None) if policy is not None else None
        self._arms = engine.arms_fingerprint(policy.arms) if policy is not None else ""

    def answered(
        self, asking: Asking, choice: Choice, result: DecodeResult, choosing_s: float
    ) -> None:
        """choosing_s: seconds that embedding and policy took."""
        outcome = outcome_of(result, choosing_s)
        self._write(asking, choice, outcome, result.text)

    def failed(self, asking: Asking, choice: Choice, error: BaseException) -> None:
        # Its name alone: a message may quote the prompt.
        self._write(asking, choice, Result(error=type(error).__name__), None)

    def _write(self, asking: Asking, choice: Choice, outcome: Result, answer: str | None) -> None:
        try:
            self.log.add(self._decision(asking, choice, outcome, answer))
        except Exception as error:
            self.log.lose(error)

    def _decision(
        self, asking: Asking, choice: Choice, outcome: Result, answer: str | None
    ) -> LoggedDecision:
        policy = None if choice.x is None else self._policy
        sampling = asking.request.sampling
        return LoggedDecision(
            time=datetime.now(UTC),
            id=uuid.uuid4().hex if asking.id is None else asking.id,
            group=asking.group,
            target=self._engine.target_fingerprint,
            policy=None if policy is None else self._fingerprint or policy.name,
            policy_name=None if policy is None else policy.name,
            arms_fingerprint=self._arms
            if policy is not None
            else self._engine.arms_fingerprint([choice.arm]),
            choice="forced" if policy is None else "drawn" if choice.dynamic else "best",
            arm=choice.arm,
            propensity=choice.propensity,
            probabilities={} if policy is None else _probabilities(policy, choice),
            embedder=self._embedder,
            embedding=Vector.of(choice.embedding)
            if self.log.embeddings and choice.embedding is not None
            else None,
            features={} if policy is None else _features(asking),
            request=Asked(
                prompt_tokens=len(asking.prompt_ids),
                max_new_tokens=asking.request.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            ),
            outcome=outcome,
            text=Text(prompt=asking.words, answer=answer) if self.log.text else None,
        )


def outcome_of(result: DecodeResult, choosing_s: float) -> Result:
    """An answer as the log knows it. choosing_s: seconds that embedding and policy took."""
    wall_s, tokens = result.wall_s + choosing_s, len(result.ids)
    return Result(
        new_tokens=tokens,
        rounds=result.rounds,
        drafted=result.drafted,
        accepted=result.accepted,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        wall_s=wall_s,
        tokens_per_s=tokens / wall_s if wall_s > 0 else 0.0,
    )


def _probabilities(policy: Policy, choice: Choice) -> dict[str, float]:
    """What the arm was drawn from; all on one arm where the best was taken."""
    if choice.chances is not None:
        return dict(choice.chances)
    if choice.dynamic:
        return dict(zip(policy.arms, map(float, policy.distribution(choice.x)[0]), strict=True))
    return {arm: float(arm == choice.arm) for arm in policy.arms}


def _features(asking: Asking) -> dict[str, float]:
    """All that are known, those that the policy read among them: a later policy may read others."""
    sampling = asking.request.sampling
    context = RequestContext(
        asking.prompt_ids, asking.request.max_new_tokens, sampling.temperature, asking.running
    )
    names = tuple(FEATURES)
    return dict(zip(names, feature_vector(names, context).tolist(), strict=True))
