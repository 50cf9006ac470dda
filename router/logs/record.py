"""A line of the log: what was known when an arm was chosen, how it was chosen, what it gave."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from policies import Policy

FORMAT = 1  # as `LoggedDecision.format`
NEAR = 1e-6  # how far rounding may take probabilities from their sum
OF_OTHERS = frozenset([
    "Cancelled", "KeyboardInterrupt", "SystemExit", "GreenletExit", "OSError", "ConnectionError",
    "BrokenPipeError", "ConnectionResetError", "TimeoutError", "DraftpickError", "ContextTooLong",
    "GrammarError", "StillCompiling", "ArmDown", "LoadFailed", "NoSuchName", "PolicyError",
])  # fmt: skip
"""Errors that say nothing of the arm, in lines that know their names alone."""


class _Part(BaseModel):
    """Fields of a later version of the same format are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Vector(_Part):
    """An embedding.

    dtype: numpy's name, "<f2" unless a value is too large for it.
    base64: the bytes.
    """

    dtype: Literal["<f2", "<f4"]
    base64: str

    @classmethod
    def of(cls, values: Any) -> Vector:
        """values: [d] float32."""
        wide = np.asarray(values, dtype="<f4")
        with np.errstate(over="ignore"):
            narrow = wide.astype("<f2")
        fits = np.isfinite(narrow).all() or not np.isfinite(wide).all()
        held: NDArray[Any] = narrow if fits else wide
        name: Literal["<f2", "<f4"] = "<f2" if fits else "<f4"
        return cls(dtype=name, base64=base64.b64encode(held.tobytes()).decode("ascii"))

    @model_validator(mode="after")
    def _is_one(self) -> Vector:
        self.array()
        return self

    def array(self) -> NDArray[np.float32]:
        """[d] float32. Raises ValueError where the bytes are no such vector."""
        held = np.frombuffer(base64.b64decode(self.base64, validate=True), dtype=self.dtype)
        return held.astype(np.float32)


class Asked(_Part):
    """The request, without its words; None for what was not known where the arm was chosen, as
    inside another engine.

    prompt_tokens: of the prompt, or of the whole chat.
    seed: by which the answer was drawn; None too where nothing was.
    """

    prompt_tokens: int
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


class Result(_Part):
    """The arm's outcome; all but `error` is None where it failed.

    rounds, drafted, accepted, prefill_s, decode_s: as in `decoders.DecodeResult`.
    wall_s: seconds for the whole answer, the choice of the arm included.
    tokens_per_s: new_tokens / wall_s; both None too where an endpoint did not count its tokens.
    error: the exception's name.
    arm_failed: whether it says something of the arm: not that somebody went away, or asked for what
        cannot be. None where only its name is known.
    """

    new_tokens: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    wall_s: float | None = None
    tokens_per_s: float | None = None
    error: str | None = None
    arm_failed: bool | None = None

    @property
    def failed(self) -> bool:
        """There is no answer, for a fault of the arm."""
        if self.arm_failed is None:
            return self.error is not None and self.error not in OF_OTHERS
        return self.arm_failed


class Text(_Part):
    """The texts; only if the log keeps them.

    prompt: the last user message.
    prompt_ids: all that the target read; None where another server reads it.
    answer: None where the arm failed.
    """

    prompt: str | None = None
    prompt_ids: list[int] | None = None
    answer: str | None = None


class LoggedDecision(_Part):
    """One line.

    format: of the line; raised when the meaning of a field changes.
    time: when the answer was there.
    id: of the request.
    group: rows of one conversation share it; None for a request of its own.
    target: fingerprint of weights and precision.
    policy, policy_name: the policy's fingerprint and name; None where no policy chose.
    arms_fingerprint: of the recipes of the arms that were chosen from; where no policy chose, of
        the arm's own.
    choice: "drawn" from the policy's distribution, "best" of it, "forced" by the caller, or "kept"
        from the conversation's earlier turn, whose server has read it.
    probabilities: arm -> the chance that it had: of the draw, all on one for the best; empty where
        no policy chose.
    propensity: that of the arm taken, 1.0 where no policy chose.
    embedder: the space of the embedding.
    embedding: of the request; None unless the log was asked to keep it.
    features: what else was known of the request, by name.
    """

    format: Literal[1] = 1
    time: AwareDatetime
    id: str
    group: str | None = None
    target: str
    policy: str | None = None
    policy_name: str | None = None
    arms_fingerprint: str
    choice: Literal["drawn", "best", "forced", "kept"]
    arm: str
    propensity: float = Field(gt=0, le=1)
    probabilities: dict[str, float]
    embedder: str | None = None
    embedding: Vector | None = None
    features: dict[str, float] = Field(default_factory=dict)
    request: Asked
    outcome: Result
    text: Text | None = None

    @property
    def chosen(self) -> bool:
        """Whether a policy chose the arm."""
        return self.choice in ("drawn", "best")

    @model_validator(mode="after")
    def _agrees(self) -> LoggedDecision:
        if not self.chosen:
            return self
        chances = self.probabilities
        if self.arm not in chances:
            raise ValueError(f"the arm {self.arm!r} is none of those with a probability")
        if min(chances.values()) < 0 or abs(sum(chances.values()) - 1) > NEAR * len(chances):
            raise ValueError("the probabilities are below 0 or do not sum to 1")
        if not math.isclose(chances[self.arm], self.propensity, abs_tol=NEAR):
            raise ValueError("the propensity is not the probability of the arm")
        return self


def probabilities(
    policy: Policy, arm: str, chances: Sequence[float] | None, x: Any, drawn: bool
) -> dict[str, float]:
    """What an arm was taken from, as of `LoggedDecision`.

    chances: as `policies.Decision.probabilities`.
    x: what the policy read.
    """
    if chances is None and not drawn:
        return {each: float(each == arm) for each in policy.arms}
    if chances is None:
        chances = policy.distribution(x)[0]
    return dict(zip(policy.arms, map(float, chances), strict=True))


# Rewards of one logged answer: higher is better, nan where it has none.


def tokens_per_s(outcome: Result) -> float:
    """New tokens over all seconds of the answer: prompt, choice and decoding."""
    return math.nan if outcome.tokens_per_s is None else outcome.tokens_per_s


def log_tokens_per_s(outcome: Result) -> float:
    """Its natural logarithm: a difference of 0.01 is one percent, for slow and fast answers."""
    speed = tokens_per_s(outcome)
    return math.log(speed) if speed > 0 else math.nan


def decode_tokens_per_s(outcome: Result) -> float:
    """New tokens after the first over the seconds of decoding: no prompt, no choice."""
    if outcome.new_tokens is None or not outcome.decode_s or outcome.new_tokens < 2:
        return math.nan
    return (outcome.new_tokens - 1) / outcome.decode_s


def saved_passes(outcome: Result) -> float:
    """1 - rounds / (new_tokens - 1), as in `collect.rewards`: it has no timing noise."""
    if outcome.rounds is None or outcome.new_tokens is None:
        return math.nan
    decoded = outcome.new_tokens - 1
    return 1 - outcome.rounds / decoded if decoded > 0 else 0.0


def acceptance(outcome: Result) -> float:
    """Accepted over drafted tokens, as in `collect.rewards`; 0 where nothing was drafted."""
    if outcome.drafted is None or outcome.accepted is None:
        return math.nan
    return outcome.accepted / outcome.drafted if outcome.drafted else 0.0


TIMED = ("tokens_per_s", "log_tokens_per_s", "decode_tokens_per_s")
LOG_REWARDS: dict[str, Callable[[Result], float]] = {
    "tokens_per_s": tokens_per_s,
    "log_tokens_per_s": log_tokens_per_s,
    "decode_tokens_per_s": decode_tokens_per_s,
    "saved-passes": saved_passes,
    "acceptance": acceptance,
}
