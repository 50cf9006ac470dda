"""From an answer of the router to a line of its log."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from collect.features import FEATURES, feature_vector

from ..protocols import RoutingEngine
from ..records import Ask, Pick
from .record import Asked, LoggedDecision, Result, Text, Vector, probabilities
from .writer import DecisionLog

if TYPE_CHECKING:
    from decoders.records import DecodeResult
    from policies import Policy


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

    def answered(self, ask: Ask, pick: Pick, result: DecodeResult) -> None:
        self._write(ask, pick, outcome_of(result, pick.choosing_s), result.text)

    def failed(self, ask: Ask, pick: Pick, error: BaseException) -> None:
        # Its name alone: a message may quote the prompt.
        self._write(ask, pick, Result(error=type(error).__name__), None)

    def _write(self, ask: Ask, pick: Pick, outcome: Result, answer: str | None) -> None:
        try:
            self.log.add(self._decision(ask, pick, outcome, answer))
        except Exception as error:
            self.log.lose(error)

    def _decision(
        self, ask: Ask, pick: Pick, outcome: Result, answer: str | None
    ) -> LoggedDecision:
        policy = None if pick.x is None else self._policy
        sampling = ask.request.sampling
        return LoggedDecision(
            time=datetime.now(UTC),
            id=uuid.uuid4().hex if ask.options.request_id is None else ask.options.request_id,
            group=ask.options.group,
            target=self._engine.target_fingerprint,
            policy=None if policy is None else self._fingerprint or policy.name,
            policy_name=None if policy is None else policy.name,
            arms_fingerprint=self._arms
            if policy is not None
            else self._engine.arms_fingerprint([pick.arm]),
            choice="forced" if policy is None else "drawn" if pick.drawn else "best",
            arm=pick.arm,
            propensity=pick.decision.propensity,
            probabilities={}
            if policy is None
            else probabilities(policy, pick.decision, pick.x, pick.drawn),
            embedder=self._embedder,
            embedding=Vector.of(pick.embedding)
            if self.log.embeddings and pick.embedding is not None
            else None,
            features={} if policy is None else _features(ask, pick),
            request=Asked(
                prompt_tokens=len(ask.prompt_ids),
                max_new_tokens=ask.request.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            ),
            outcome=outcome,
            text=Text(prompt=ask.text, answer=answer) if self.log.text else None,
        )


def outcome_of(result: DecodeResult, choosing_s: float) -> Result:
    """An answer as the log knows it. choosing_s: seconds that embedding and policy took."""
    wall_s, tokens = result.wall_s + choosing_s, len(result.ids) if result.counted else None
    return Result(
        new_tokens=tokens,
        rounds=result.rounds,
        drafted=result.drafted,
        accepted=result.accepted,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        wall_s=wall_s,
        tokens_per_s=None if tokens is None else tokens / wall_s if wall_s > 0 else 0.0,
    )


def _features(ask: Ask, pick: Pick) -> dict[str, float]:
    """All that are known, those that the policy read among them: a later policy may read others."""
    names = tuple(FEATURES)
    values = feature_vector(names, ask.context(pick.cached))
    return dict(zip(names, values.tolist(), strict=True))
