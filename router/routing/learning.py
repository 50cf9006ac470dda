"""A router that learns: every answer becomes a reward, and the policy's next choice knows it."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError, NoSuchName
from policies import LearningPolicy, Policy, PolicyError

from ..logs.record import LOG_REWARDS, Result

SPEEDS = ("tokens_per_s", "decode_tokens_per_s")
OF_SPEED = ("modelled", "measured", "measured-speedup")  # rewards of a collection
UNIT_ROWS = 20  # answers by which a speed's unit is known


class Learning:
    """Teaches an online policy what the answers of a router earned.

    policy: as `draftpick train --policy thompson` makes one.
    reward: a name in LOG_REWARDS; None for the policy's own where a log has it, else
        decode_tokens_per_s.
    folder: where the policy is saved, None for nowhere.
    every: answers between two saves, so that a kill loses at most that many.
    failed: how many answers could not be learned from.

    A policy that was trained on speed-ups learns from tokens a second in a unit of its own: the
    first UNIT_ROWS answers' tokens a second over what the policy expected of them. The unit is
    estimated again at every start, so that a policy can move to another machine.

    Raises PolicyError for a policy that does not learn, NoSuchName for an unknown reward,
    DraftpickError for one that says something else than what the policy was trained on.
    """

    def __init__(
        self,
        policy: Policy,
        reward: str | None = None,
        folder: str | Path | None = None,
        every: int = 20,
    ) -> None:
        self.policy = online(policy)
        trained = self.policy.origin.reward_name.partition("@")[0]
        if reward is None:
            reward = trained if trained in LOG_REWARDS else "decode_tokens_per_s"
        if reward not in LOG_REWARDS:
            raise NoSuchName("reward of a log", reward, tuple(LOG_REWARDS))
        if reward != trained and not (reward in SPEEDS and trained in OF_SPEED):
            raise DraftpickError(
                f"the policy was trained on the reward {trained!r}, and {reward!r} says something "
                f"else; train it on {' or '.join(OF_SPEED)} to learn from "
                f"{' or '.join(SPEEDS)}, or on {reward!r} itself where collections have it"
            )
        if every < 1:
            raise DraftpickError(f"a policy is saved every 1 or more answers, not {every}")
        self.reward = reward
        self.folder = None if folder is None else Path(folder)
        self.every = every
        self.failed = 0
        self._unit: float | None = 1.0 if reward == trained else None
        self._waiting: list[tuple[Any, str, float, float, bool]] = []
        self._unsaved = 0
        self._lock = threading.Lock()

    def learn(self, x: Any, arm: str, outcome: Result, propensity: float) -> None:
        """One answer, or one that failed, which teaches something if the arm did. x: what the
        policy read.

        Never raises: the first failure is reported on standard error, and all are counted.
        """
        try:
            with self._lock:
                self.take(x, arm, outcome, propensity)
                if self.folder is not None and self._unsaved >= self.every:
                    self._save()
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                print(
                    f"warning: nothing was learned from an answer ({error}); answering goes on, "
                    "and further failures are not reported",
                    file=sys.stderr,
                    flush=True,
                )

    def take(
        self, x: Any, arm: str, outcome: Result, propensity: float, *, own: bool = True
    ) -> bool:
        """Learn in one thread, without saving; raises what goes wrong. Returns whether there was a
        reward to learn from."""
        value = LOG_REWARDS[self.reward](outcome)
        if math.isnan(value) and not outcome.failed:
            return False
        self._waiting.append((x, arm, value, propensity, own))
        if self._unit is None and len(self._waiting) >= UNIT_ROWS:
            self.settle()
        if self._unit is not None:
            self._flush(self._unit)
        return True

    def settle(self) -> None:
        """Find the unit by the answers that there are, and learn from them."""
        if self._unit is None:
            seen = expected = 0.0
            for x, arm, value, _, _ in self._waiting:
                if not math.isnan(value):
                    seen += value
                    expected += float(self.policy.scores(x)[0, self.policy.arms.index(arm)])
            if seen <= 0 or expected <= 0:
                return
            self._unit = seen / expected
        self._flush(self._unit)

    def _flush(self, unit: float) -> None:
        waiting, self._waiting = self._waiting, []
        for x, arm, value, propensity, own in waiting:
            self.policy.update(x, arm, value / unit, propensity, own=own)
            self._unsaved += 1

    def save(self) -> None:
        """Save all that was learned, where there is a folder."""
        with self._lock:
            self.settle()
            if self.folder is not None:
                self._save()

    def _save(self) -> None:
        assert self.folder is not None
        self._unsaved = 0
        self.policy.save(self.folder)


def online(policy: Policy) -> LearningPolicy:
    """The policy itself; raises PolicyError where it does not learn."""
    if not isinstance(policy, LearningPolicy):
        raise PolicyError(
            f"the policy {policy.name!r} does not learn while it serves; train one that does: "
            "draftpick train --rewards DIR --policy thompson --no-guard --out policy"
        )
    return policy
