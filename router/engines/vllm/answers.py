"""The end of each decision: counted while a request runs, logged and learnt from at its end."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from decoders.arms import AUTOREGRESSIVE, ArmRecipe
from decoders.arms.file import LoadedFingerprints
from decoders.common.errors import DraftpickError
from decoders.common.files import check_folder
from policies import Policy

from ...logs.record import Asked, LoggedDecision, Result, Vector
from ...logs.writer import DecisionLog
from ...routing.learning import Learning
from .choosing import Choice
from .options import Options, within
from .rows import TrackedRequest


@dataclass
class Stretch:
    """A stretch of an answer that one arm drafts for: the whole, unless arms are chosen again.

    context_tokens: before its first token.
    started, last: when its first and its last tokens came, in seconds of a monotonic clock.
    new_tokens, rounds, drafted, accepted: as in a log's result; the first token is the one that was
        there when the arm was chosen.
    error: name of what went wrong in the arm; None where nothing did.
    """

    choice: Choice
    context_tokens: int
    started: float
    last: float = 0.0
    new_tokens: int = 1
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    error: str | None = None

    @property
    def arm(self) -> str:
        """The arm that drafts: the chosen one, until it has failed."""
        return self.choice.arm if self.error is None else AUTOREGRESSIVE

    def add(self, request: TrackedRequest, ends: Sequence[int], now: float) -> None:
        """A step. ends: tokens that end an answer; what the step gave after one is dropped."""
        came = request.came
        self.rounds += 1
        self.new_tokens += next(
            (at for at, token in enumerate(came, 1) if token in ends), len(came)
        )
        self.drafted += len(request.verified)
        self.accepted += min(len(came) - 1, len(request.verified))
        self.last = now


class Answers:
    """Logs and learns; nothing that goes wrong here reaches the engine.

    target: names the model and its precision.
    log, learning: None for neither.
    """

    def __init__(
        self,
        target: str,
        arms: Mapping[str, ArmRecipe],
        embedder: str | None,
        log: DecisionLog | None = None,
        learning: Learning | None = None,
    ) -> None:
        self._target = hashlib.sha256(target.encode()).hexdigest()[:16]
        self._arms, self._embedder = arms, embedder
        self._log, self._learning = log, learning
        self._fingerprints = LoadedFingerprints()

    def ended(self, request: TrackedRequest) -> None:
        """Its stretch is over."""
        stretch: Stretch = request.stretch
        request.stretch = None
        result, choice = outcome_of(stretch), stretch.choice
        if self._learning is not None and choice.x is not None:
            self._learning.learn(choice.x, choice.arm, result, choice.propensity)
        if self._log is None:
            return
        try:
            self._log.add(self._line(request.id, stretch, result))
        except Exception as trouble:
            self._log.lose(trouble)

    def _line(self, group: str, stretch: Stretch, result: Result) -> LoggedDecision:
        assert self._log is not None
        choice = stretch.choice
        chosen_from = {name: self._arms[name] for name in choice.probabilities}
        keep = self._log.embeddings and choice.embedding is not None
        return LoggedDecision(
            time=datetime.now(UTC),
            id=uuid.uuid4().hex,
            group=group,
            target=self._target,
            policy=choice.policy[0],
            policy_name=choice.policy[1],
            arms_fingerprint=self._fingerprints.of(chosen_from),
            choice="drawn" if choice.drawn else "best",
            arm=choice.arm,
            propensity=choice.propensity,
            probabilities=choice.probabilities,
            embedder=self._embedder,
            embedding=Vector.of(choice.embedding) if keep else None,
            features=choice.features,
            request=Asked(prompt_tokens=stretch.context_tokens),
            outcome=result,
        )

    def save(self) -> None:
        if self._learning is not None:
            self._learning.save()


def log_and_learning(
    options: Options, place: Path, policy: Policy | None
) -> tuple[DecisionLog | None, Learning | None]:
    """The log, and what learns, where the options ask for them.

    place: of the options' file. policy: the one that chooses; None for rules.

    Raises DraftpickError for a folder that takes no files and for rules that are to learn, and as
    `Learning`.
    """
    log = learning = None
    if options.log is not None:
        log = DecisionLog(within(place, options.log), embeddings=options.log_embeddings)
    if options.learn is not None:
        if policy is None:
            raise DraftpickError(
                "`learn` needs a policy that learns; train one with draftpick train --policy "
                "thompson"
            )
        folder = within(place, options.learn)
        check_folder(folder, "`learn`")
        learning = Learning(policy, folder=folder)
    return log, learning


def outcome_of(stretch: Stretch) -> Result:
    """A stretch as the log knows it. Seconds are counted from its first token on: a proposer does
    not see when a request came."""
    if stretch.error is not None:
        return Result(error=stretch.error, arm_failed=True)
    seconds = max(stretch.last - stretch.started, 0.0)
    rate = (stretch.new_tokens - 1) / seconds if seconds else 0.0
    return Result(
        new_tokens=stretch.new_tokens,
        rounds=stretch.rounds,
        drafted=stretch.drafted,
        accepted=stretch.accepted,
        decode_s=seconds,
        wall_s=seconds,
        tokens_per_s=rate,
    )
