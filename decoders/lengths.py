"""Draft lengths: how many tokens a round drafts."""

from __future__ import annotations

import statistics
from collections import deque

from .costs.pass_costs import PassCosts, ProbeSchedule, best_length
from .records import StepStats


class FixedLength:
    """k tokens every round; with min_confidence the drafter stops before a token it gives less
    (transformers' `assistant_confidence_threshold`)."""

    def __init__(self, k: int, min_confidence: float = 0.0) -> None:
        self.k, self.min_confidence = k, min_confidence

    def next(self) -> int:
        return self.k

    def observe(self, stats: StepStats) -> None:
        pass

    def reset(self) -> None:
        pass


class ScheduledLength:
    """Two tokens more after a draft accepted whole, one fewer after any other, from `first` on at
    every query (transformers' `num_assistant_tokens_schedule="heuristic_transient"`); at least 1,
    and here at most `longest`. A round without a draft changes nothing."""

    def __init__(self, first: int, min_confidence: float = 0.0, longest: int = 64) -> None:
        self.first, self.min_confidence, self.longest = first, min_confidence, longest
        self.reset()

    def reset(self) -> None:
        self._k = self.first

    def next(self) -> int:
        return self._k

    def observe(self, stats: StepStats) -> None:
        if stats.drafted == 0:
            return
        step = 2 if stats.accepted == stats.drafted else -1
        self._k = min(max(self._k + step, 1), self.longest)


PRIOR = 0.6  # acceptance rate
RETRY = 512  # rounds
COST, ASSUMED, MEASURED = 0.1, 2, 5  # of a drafted token, in passes over one; rounds


class AdaptiveLength:
    """Longest when drafts are accepted, short when not, none where no draft pays (Leviathan et al.,
    3.4).

    The acceptance rate is a count with a forgetting factor, started at PRIOR with the weight of
    one round of `longest` tokens. While no draft is expected to pay it returns to that, and one
    token is drafted all the same where `ProbeSchedule` says so, or where it would not pay even if
    all of it were accepted, in a few rounds of every RETRY, so that its cost is measured again. A
    drafted token costs the median of the last MEASURED rounds, at first ASSUMED of COST, so that a
    stall changes nothing. Not measured are the first draft of each length, for which something may
    be compiled or recorded, and one after rounds without a draft, which its drafter reads first.

    passes: what the target's passes cost by width; without them a pass of any width is taken to
        cost what the last ones did.
    in_turn: whether the drafter drafts for one answer after the other, which costs more the more
        answers share the target's passes.
    """

    def __init__(
        self,
        longest: int,
        min_confidence: float = 0.0,
        memory: float = 0.9,
        passes: PassCosts | None = None,
    ) -> None:
        self.longest, self.min_confidence = longest, min_confidence
        self.memory, self._passes = memory, passes
        self.in_turn = False
        # of a drafted token by round, in passes over one (in turn: of an answer alone)
        self._costs = deque([COST] * ASSUMED, MEASURED)
        self._lengths = set[int]()  # that were drafted
        self._barred = 0  # rounds that were without a draft for its cost
        self.reset()

    def reset(self) -> None:
        self._right = PRIOR * self.longest
        self._tried = float(self.longest)
        self._probes = ProbeSchedule()
        self._behind = False  # whether the drafter has not read the last rounds

    def apart(self) -> AdaptiveLength:
        other = AdaptiveLength(self.longest, self.min_confidence, self.memory, self._passes)
        other.in_turn = self.in_turn
        return other

    def next(self) -> int:
        acceptance, widths = self._right / self._tried, None
        cost = statistics.median(self._costs)
        if self._passes is not None:  # which may change with what else is decoded
            widths = self._passes.ratios(self.longest)
            cost *= self._passes.turns() if self.in_turn else 1.0
        k = best_length(acceptance, cost, self.longest, widths)
        if k > 0:
            self._probes.reset()
        elif not self._due(best_length(1.0, cost, self.longest, widths) > 0):
            self._behind = True
            self._learn(PRIOR * (1 - self.memory) * self.longest, (1 - self.memory) * self.longest)
            return 0
        return max(1, k)

    def _due(self, may_pay: bool) -> bool:
        """Whether to draft although that is not expected to pay. may_pay: if all is accepted."""
        if may_pay:
            return self._probes.should_probe()
        self._barred += 1
        again = self._barred % RETRY  # the first is not measured, the others decide the median
        return self._barred >= RETRY and again <= MEASURED // 2 + 1

    def observe(self, stats: StepStats) -> None:
        if stats.drafted == 0:
            return
        # nothing is known after the first rejection
        self._learn(stats.accepted, min(stats.accepted + 1, stats.drafted))
        if stats.accepted == 0:
            self._probes.rejected()
        pass_s = stats.verify_s
        if self._passes is not None:
            pass_s = self._passes.verify_s[0] if self.in_turn else self._passes(1)
        new = self._behind or stats.drafted not in self._lengths
        self._behind = False
        self._lengths.add(stats.drafted)
        if pass_s > 0 and not new:
            self._costs.append(stats.draft_s / stats.drafted / pass_s)

    def _learn(self, right: float, tried: float) -> None:
        self._right = self.memory * self._right + right
        self._tried = self.memory * self._tried + tried
