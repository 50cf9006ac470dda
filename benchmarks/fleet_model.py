"""A fleet of replicas that answer in batches, as a discrete-event simulation.

Each replica runs one round after another over all requests that it holds: a round costs one pass of
the target over their rows (the newest token and the draft of each) and the drafting, in the mean
over rounds. A request leaves after its rounds. Between two events nothing changes on a replica, so
its next departure follows from one division, and an event costs what the batch does, not the rounds
in it: processor sharing (Kleinrock, *Queueing Systems* volume 2, chapter 4) at a rate that depends
on who shares.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

DISPATCHES = ("two", "random", "central")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """What one request asks of a replica.

    rounds: passes until it is done.
    drafted: tokens drafted a round, so that it adds 1 + drafted rows to each, in the mean.
    arm: whose drafting is paid once a round for all that use it.
    prompt_s: seconds that reading its prompt keeps the replica from decoding.
    steps: drafted one after another a round, where it is not each of them, as copies are not.
    widths: at index i, the share of its rounds in which it adds i + 1 rows; empty where `drafted`
        is the same in all of them.
    """

    rounds: float
    drafted: float = 0.0
    arm: int = 0
    prompt_s: float = 0.0
    steps: float | None = None
    widths: Sequence[float] | Floats = ()

    @property
    def drafting(self) -> float:
        """Steps of a drafter a round."""
        return self.drafted if self.steps is None else self.steps

    @cached_property
    def shares(self) -> Floats:
        """`widths`; a number that is not whole is taken for the two around it."""
        return np.asarray(self.widths) if len(self.widths) else between(self.drafted)


def between(drafted: float) -> Floats:
    """Shares of widths with this mean, on the two whole numbers around it."""
    below = int(drafted)
    shares = np.zeros(below + 2)
    shares[below:] = (1 - (drafted - below), drafted - below)
    return shares


@dataclass(frozen=True)
class Passes:
    """Seconds of a pass, where the rows that requests add to it vary from round to round: a pass is
    no straight line of its rows, so that the mean of them does not tell its price.

    pass_s: of so many rows, a straight line from `widest` of them on.
    """

    pass_s: Callable[[float], float]
    widest: int = 1

    @cached_property
    def _bends(self) -> Floats:
        """[widest - 1]: how far a pass over 1, 2, ... rows is from the line."""
        return np.array([self.pass_s(w) - self.line(w) for w in range(1, self.widest)])

    @cached_property
    def _slope(self) -> float:
        return self.pass_s(self.widest + 1) - self.pass_s(self.widest)

    @cached_property
    def _start(self) -> float:
        return self.pass_s(self.widest)

    def line(self, rows: Any) -> Any:
        """Of this many rows and more in every round; rows: their mean."""
        return self._start + (rows - self.widest) * self._slope

    def together(self, rows: float, works: Sequence[Work]) -> float:
        """Of a pass for these, whose widths are independent of each other. rows: their mean sum."""
        line: float = self.line(rows)
        within = self.widest - len(works)  # more rows than one a request, off the line
        if within <= 0:
            return line
        total = np.ones(1)
        for work in works:
            total = np.convolve(total, work.shares)[:within]
        start = len(works) - 1
        return line + float(total @ self._bends[start : start + len(total)])

    def alike(self, shares: Floats, most: int) -> Floats:
        """[..., W] to [..., most]: of 1, 2, ... requests whose rows have the same shares."""
        more = (shares * np.arange(shares.shape[-1])).sum(axis=-1)  # rows beyond one, in the mean
        found = np.stack([self.line(n * (1 + more)) for n in range(1, most + 1)], axis=-1)
        total = np.ones((*shares.shape[:-1], 1))
        for n in range(1, min(most, self.widest - 1) + 1):
            total = _convolved(total, shares, self.widest - n)
            bends = self._bends[n - 1 : n - 1 + total.shape[-1]]
            found[..., n - 1] += (total * bends).sum(axis=-1)
        return np.asarray(found)


def _convolved(left: Floats, right: Floats, most: int) -> Floats:
    """[..., a] and [..., b] to [..., min(a + b - 1, most)]."""
    found = np.zeros((*left.shape[:-1], min(left.shape[-1] + right.shape[-1] - 1, most)))
    for i in range(min(right.shape[-1], most)):
        upto = min(left.shape[-1], most - i)
        found[..., i : i + upto] += left[..., :upto] * right[..., i : i + 1]
    return found


@dataclass(frozen=True)
class Load:
    """What a replica holds where a request is about to join.

    requests: that it decodes together, the new one included.
    users: by arm, requests that it decodes now.
    """

    requests: int
    users: Sequence[int]


@dataclass(frozen=True)
class Fleet:
    """Replicas, all alike.

    pass_s, widest: as of `Passes`.
    draft_s: by arm, seconds of one step of its drafter for everybody who uses the arm.
    most: requests decoded together by a replica; the others wait.
    dispatch: "two" (the shorter of two queues drawn at random), "random" (of one), or "central"
        (one queue for all, from which a free place takes the next).
    """

    replicas: int
    pass_s: Callable[[float], float]
    draft_s: Sequence[float] = (0.0,)
    most: int = 1
    dispatch: str = "two"
    widest: int = 1

    @cached_property
    def passes(self) -> Passes:
        return Passes(self.pass_s, self.widest)


@dataclass(frozen=True)
class Served:
    """Seconds by request [n], in the order of arrival. arms: that answered."""

    arrived: Floats
    started: Floats
    done: Floats
    arms: NDArray[np.intp]

    @property
    def waited(self) -> Floats:
        return self.started - self.arrived

    @property
    def took(self) -> Floats:
        return self.done - self.arrived


class _Replica:
    """clock: rounds made since the beginning; a member leaves when the clock is at its mark."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.clock = self.at = self.reading = 0.0
        self.rows = 0.0
        self.step = 1.0
        self.version = 0
        self.members: list[tuple[float, int, Work]] = []
        self.waiting: deque[tuple[int, Work]] = deque()
        self.users = [0] * len(fleet.draft_s)
        self.drafts = [0.0] * len(fleet.draft_s)

    @property
    def load(self) -> Load:
        return Load(min(self.held + 1, self.fleet.most), self.users)

    @property
    def held(self) -> int:
        return len(self.members) + len(self.waiting)

    def advance(self, now: float) -> None:
        passed = now - self.at
        reading = min(self.reading, passed)
        self.reading -= reading
        if self.members:
            self.clock += (passed - reading) / self.step
        self.at = now

    def admit(self, number: int, work: Work) -> None:
        self.reading += work.prompt_s
        heapq.heappush(self.members, (self.clock + work.rounds, number, work))
        self._count(work, 1)

    def release(self) -> int:
        mark, number, work = heapq.heappop(self.members)
        self.clock = mark
        self._count(work, -1)
        return number

    def next_departure(self) -> float:
        left = max(0.0, self.members[0][0] - self.clock)
        return self.at + self.reading + left * self.step

    def _count(self, work: Work, sign: int) -> None:
        self.version += 1
        self.rows += sign * (1 + work.drafted)
        self.users[work.arm] += sign
        self.drafts[work.arm] += sign * work.drafting
        if not self.members:  # sums of floats drift
            self.rows, self.drafts = 0.0, [0.0] * len(self.drafts)
        else:
            drafting = sum(
                drafted / users * cost
                for users, drafted, cost in zip(
                    self.users, self.drafts, self.fleet.draft_s, strict=True
                )
                if users
            )
            passes = self.fleet.passes
            if len(self.members) < passes.widest:  # else their number is enough
                works = [work for _, _, work in self.members]
                self.step = passes.together(self.rows, works) + drafting
            else:
                self.step = passes.line(self.rows) + drafting


def simulate(
    fleet: Fleet,
    arrivals: Sequence[float] | Floats,
    work_of: Callable[[int, Load], Work],
    rng: np.random.Generator,
) -> Served:
    """Serve every request.

    arrivals: [n] seconds, ascending.
    work_of: a request's number and the load where it will be decoded -> its work; so an arm can be
        chosen by the load.
    """
    if fleet.dispatch not in DISPATCHES:
        raise ValueError(f"dispatch is one of {', '.join(DISPATCHES)}, not {fleet.dispatch!r}")
    n = len(arrivals)
    started, done, arms = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.intp)
    replicas = [_Replica(fleet) for _ in range(fleet.replicas)]
    places = list(range(fleet.replicas)) * fleet.most  # free, of a central queue
    queue: deque[int] = deque()
    pairs = rng.integers(fleet.replicas, size=(n, 2)).tolist()
    events: list[tuple[float, int, int]] = []  # departures: when, replica, version

    def begin(number: int, index: int, work: Work, now: float) -> None:
        started[number], arms[number] = now, work.arm
        replicas[index].admit(number, work)

    def expect(index: int) -> None:
        replica = replicas[index]
        if replica.members:
            heapq.heappush(events, (replica.next_departure(), index, replica.version))

    def arrive(number: int, now: float) -> None:
        if fleet.dispatch == "central":
            if not places:
                queue.append(number)
                return
            index = places.pop()
        else:
            index, other = pairs[number]
            if fleet.dispatch == "two" and replicas[other].held < replicas[index].held:
                index = other
        replica = replicas[index]
        replica.advance(now)
        work = work_of(number, replica.load)
        if len(replica.members) < fleet.most:
            begin(number, index, work, now)
            expect(index)
        else:
            replica.waiting.append((number, work))

    def depart(index: int, now: float) -> None:
        replica = replicas[index]
        replica.advance(now)
        done[replica.release()] = now
        if replica.waiting:
            number, work = replica.waiting.popleft()
            begin(number, index, work, now)
        elif queue:
            number = queue.popleft()
            begin(number, index, work_of(number, replica.load), now)
        elif fleet.dispatch == "central":
            places.append(index)
        expect(index)

    for number, now in enumerate(arrivals):
        while events and events[0][0] <= now:
            when, index, version = heapq.heappop(events)
            if replicas[index].version == version:
                depart(index, when)
        arrive(number, float(now))
    while events:
        when, index, version = heapq.heappop(events)
        if replicas[index].version == version:
            depart(index, when)
    return Served(np.asarray(arrivals, dtype=np.float64), started, done, arms)


def daily(rate: float, day_s: float, days: float, swing: float, rng: np.random.Generator) -> Floats:
    """Arrivals of a Poisson process whose rate goes up and down once a day, by thinning (Lewis and
    Shedler, 1979).

    rate: requests a second on average.
    day_s: seconds of a day; days: how many.
    swing: of the rate around its average, 0 to 1: 0.5 gives three times as much at noon as at
        night.
    """
    if not 0 <= swing <= 1:
        raise ValueError(f"the swing is a share from 0 to 1, not {swing:g}")
    highest, horizon = rate * (1 + swing), day_s * days
    times = np.sort(rng.uniform(0, horizon, rng.poisson(highest * horizon)))
    curve = (1 - swing * np.cos(2 * np.pi * times / day_s)) / (1 + swing)
    kept: Floats = times[rng.uniform(size=len(times)) < curve]
    return kept
