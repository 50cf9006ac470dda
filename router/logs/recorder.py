"""From an answer of the router to a line of its log."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Literal

from collect.features import FEATURES, RequestContext, feature_vector
from decoders.common.errors import Cancelled, DraftpickError, NotANumber, UpstreamError
from decoders.records import DecodeResult, Request
from policies import Policy

from ..protocols import Elsewhere, RoutingEngine
from ..records import AskOptions, RouteDecision
from .record import Asked, LoggedDecision, Result, Text, Vector, probabilities
from .writer import DecisionLog


class Recorder:
    """Writes a router's decisions to a log; nothing that goes wrong here reaches the answer.

    embedder: name of the space of the embeddings.
    """

    def __init__(
        self, log: DecisionLog, engine: RoutingEngine, policy: Policy | None, embedder: str
    ) -> None:
        self.log = log
        self._engine, self._policy, self._embedder = engine, policy, embedder
        self._arms = engine.arms_fingerprint(policy.arms) if policy is not None else ""

    def write(
        self,
        decision: RouteDecision,
        request: Request,
        options: AskOptions,
        outcome: Result,
        text: str | None,
        answer: str | None = None,
    ) -> None:
        """text: of the query. answer: None where there is none."""
        try:
            policy = None if decision.x is None else self._policy
            context, chances = decision.context, decision.probabilities
            line = LoggedDecision(
                time=datetime.now(UTC),
                id=uuid.uuid4().hex if options.request_id is None else options.request_id,
                group=options.group,
                target=self._engine.target_fingerprint,
                policy=decision.policy,
                policy_name=None if policy is None else policy.name,
                arms_fingerprint=self._arms
                if policy is not None
                else self._engine.arms_fingerprint([decision.arm]),
                choice=_choice(decision),
                arm=decision.arm,
                propensity=decision.propensity,
                probabilities={}
                if policy is None
                else probabilities(policy, decision.arm, chances, decision.x, decision.drawn),
                embedder=self._embedder,
                embedding=Vector.of(decision.embedding)
                if self.log.embeddings and decision.embedding is not None
                else None,
                features={} if policy is None else _features(context),
                request=Asked(
                    prompt_tokens=len(context.prompt_ids),
                    max_new_tokens=context.max_new_tokens,
                    temperature=context.temperature,
                    top_p=request.sampling.top_p,
                    top_k=request.sampling.top_k,
                    seed=None if request.sampling.greedy else request.seed,
                ),
                outcome=outcome,
                text=self._text(decision, text, answer) if self.log.text else None,
            )
            self.log.add(line)
        except Exception as error:
            self.log.lose(error)

    def _text(self, decision: RouteDecision, text: str | None, answer: str | None) -> Text:
        elsewhere = isinstance(self._engine, Elsewhere)
        ids = None if elsewhere else list(decision.context.prompt_ids)
        return Text(prompt=text, prompt_ids=ids, answer=answer)


def _choice(decision: RouteDecision) -> Literal["drawn", "best", "forced", "kept"]:
    if decision.x is None:
        return "kept" if decision.kept else "forced"
    return "drawn" if decision.drawn else "best"


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


def failure_of(error: BaseException) -> Result:
    """Outcome of an answer that ended so, as the log knows it: without the message, which may quote
    the prompt."""
    from decoders.models.memory import OutOfMemory

    of_arm = UpstreamError | NotANumber | OutOfMemory
    of_others = OSError | DraftpickError | Cancelled
    failed = isinstance(error, Exception) and not isinstance(error, of_others)
    return Result(error=type(error).__name__, arm_failed=failed or isinstance(error, of_arm))


def _features(context: RequestContext) -> dict[str, float]:
    """All that are known, those that the policy read among them: a later policy may read others."""
    names = tuple(FEATURES)
    return dict(zip(names, feature_vector(names, context).tolist(), strict=True))
