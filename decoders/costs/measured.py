"""Costs of decoding on one machine: measured once and stored with a collection."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DraftpickError
from ..common.text import from_json
from .pass_costs import PassCosts

MEASUREMENTS = 5  # that costs are measured, to see how far they can be trusted
PLAIN = "autoregressive"  # the arm without drafts, whose rounds speed-ups are over


@dataclass(frozen=True)
class Costs:
    """Seconds, of one target and the arms on it.

    verify_s: at index i, one pass of the target over i + 1 tokens.
    draft_s: by arm, one drafted token; an arm without a drafter is left out.
    at_once: by a number of answers that are written at once, what the same takes for all of them:
        i + 1 tokens, a drafted one, or a round, of each.
    round_s, drawn_round_s: by arm, what a round takes besides its pass and its drafted tokens, at
        temperature 0 and above it: choosing tokens, looking for copies. Empty where unknown.
    repeats: each measurement that these costs are made of, to show how far they can be trusted;
        empty where they were measured once.
    """

    verify_s: tuple[float, ...]
    draft_s: dict[str, float]
    at_once: dict[int, Costs] = field(default_factory=dict)
    round_s: dict[str, float] = field(default_factory=dict)
    drawn_round_s: dict[str, float] = field(default_factory=dict)
    repeats: tuple[Costs, ...] = ()

    @classmethod
    def of_repeats(cls, repeats: Sequence[Costs]) -> Costs:
        """Their medians. repeats: at least one, of the same arms and numbers of answers."""
        made = _medians(repeats)
        return replace(made, repeats=tuple(repeats)) if len(repeats) > 1 else made

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Costs:
        """Raises KeyError, TypeError or ValueError where it is no such record."""
        shared = dict(record.get("at_once", {})).items()
        return cls(
            tuple(map(float, record["verify_s"])),
            _by_arm(record["draft_s"]),
            {int(answers): cls.from_json(costs) for answers, costs in shared},
            _by_arm(record.get("round_s", {})),
            _by_arm(record.get("drawn_round_s", {})),
            tuple(cls.from_json(costs) for costs in record.get("repeats", ())),
        )

    def pooled(self, shapes: Mapping[str, str]) -> Costs:
        """The same with the median over all arms of one shape for each of them: what differs
        between them is error. shapes: arm -> a name that arms of its shape share."""

        def pool(seconds: Mapping[str, float]) -> dict[str, float]:
            found: dict[str, list[float]] = {}
            for arm, value in seconds.items():
                found.setdefault(shapes.get(arm, arm), []).append(value)
            return {arm: statistics.median(found[shapes.get(arm, arm)]) for arm in seconds}

        rounds = pool(self.round_s), pool(self.drawn_round_s)
        return replace(self, draft_s=pool(self.draft_s), round_s=rounds[0], drawn_round_s=rounds[1])

    def of_answers(self, answers: int) -> Costs:
        """Costs of a number of concurrent answers; KeyError if they are unknown. Endpoints have the
        same at any number."""
        return self if answers == 1 or not self.verify_s else self.at_once[answers]

    def of(self, arms: Collection[str]) -> Costs:
        """The same for these arms alone, and for plain decoding."""

        def kept(seconds: Mapping[str, float]) -> dict[str, float]:
            return {arm: s for arm, s in seconds.items() if arm in arms or arm == PLAIN}

        at_once = {answers: costs.of(arms) for answers, costs in self.at_once.items()}
        rounds = kept(self.round_s), kept(self.drawn_round_s)
        repeats = tuple(costs.of(arms) for costs in self.repeats)
        return Costs(self.verify_s, kept(self.draft_s), at_once, *rounds, repeats)

    def verify(self, width: float) -> float:
        """Seconds of one target pass over `width` tokens, which need not be whole."""
        return PassCosts(self.verify_s)(width)

    def passes_s(self, widths: Sequence[float], answers: int = 1) -> float:
        """Seconds of an answer's passes, priced width by width: v is no straight line.

        widths: at index i, how many of them read i + 1 tokens.
        answers: that share each pass (these costs are of as many); the others' widths are taken to
            be drawn from the same ones, independently.
        """
        counts = np.asarray(widths, dtype=np.float64)
        rounds = float(counts.sum())
        if rounds <= 0:
            return 0.0
        shares = _mean_of(counts / rounds, answers)  # at i, that the mean width is 1 + i / answers
        return rounds * float(shares @ _prices(self.verify_s, answers, len(shares)))

    def overhead_s(self, arm: str, temperature: float) -> float:
        """Seconds of a round besides its pass, drawn or not; plain decoding's for an arm whose own
        is unknown."""
        seconds = self.drawn_round_s if temperature > 0 else self.round_s
        return seconds.get(arm, seconds.get(PLAIN, 0.0))


def _medians(repeats: Sequence[Costs]) -> Costs:
    def median(of: Callable[[Costs], Mapping[str, float]]) -> dict[str, float]:
        arms = dict.fromkeys(arm for one in repeats for arm in of(one))
        return {arm: statistics.median(of(r)[arm] for r in repeats if arm in of(r)) for arm in arms}

    widest = max(len(one.verify_s) for one in repeats)
    passes = tuple(
        statistics.median(one.verify_s[i] for one in repeats if i < len(one.verify_s))
        for i in range(widest)
    )
    at_once = {
        answers: _medians([one.at_once[answers] for one in repeats])
        for answers in repeats[0].at_once
    }
    return Costs(
        passes,
        median(lambda one: one.draft_s),
        at_once,
        median(lambda one: one.round_s),
        median(lambda one: one.drawn_round_s),
    )


def _mean_of(shares: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """Probabilities of the mean of independent draws, in steps of 1 / draws, from [n] probabilities
    of 0 .. n - 1; by the convolution theorem."""
    if draws == 1:
        return shares
    size = draws * (len(shares) - 1) + 1
    if size == 1:
        return shares
    found: NDArray[np.float64] = np.fft.irfft(np.fft.rfft(shares, size) ** draws, size)
    return found


@lru_cache(64)
def _prices(verify_s: tuple[float, ...], answers: int, count: int) -> NDArray[np.float64]:
    """[count] seconds of passes over 1, 1 + 1 / answers, 1 + 2 / answers ... tokens."""
    passes = PassCosts(verify_s)
    return np.array([passes(1 + i / answers) for i in range(count)])


def _by_arm(record: Any) -> dict[str, float]:
    return {str(arm): float(seconds) for arm, seconds in dict(record).items()}


def read_costs(path: Path) -> Costs:
    """The costs in a JSON file: a collection's manifest, or what `draftpick costs` wrote."""
    try:
        record = from_json(path.read_text(encoding="utf-8"))
        costs = Costs.from_json(record.get("costs", record))
    except OSError as error:
        raise DraftpickError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        costs = Costs((), {})
    if not costs.verify_s or min(costs.verify_s) <= 0:
        raise DraftpickError(
            f"{path} holds no measured costs; give the manifest.json of a folder that "
            "`draftpick collect` wrote, or a file of `draftpick costs`"
        )
    return costs
