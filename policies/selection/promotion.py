"""Promotion: a policy takes another one's place by what both earn on queries new to both."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import PolicyError
from ..evaluation.bounds import MIN_BOUNDED_GROUPS, Gain, gain_of, resamples
from ..evaluation.evaluate import aligned
from ..evaluation.scale import relative
from ..evaluation.units import best_fixed_index, independent, units_of
from ..fixed import ConstantPolicy
from ..records import Policy, RewardTable
from .crossfit import best_fixed, earned, gains_by_costs, too_few, usable


@dataclass(frozen=True)
class PairedComparison:
    """A candidate next to the one whose place it wants.

    other: who that is, in words.
    gain: the candidate's reward less the other's, paired by query, with one-sided bounds that hold
        with 95 % over all looks.
    other_mean: what the other one earns.
    margin: how much worse the candidate may be, in units of the reward.
    alike: the share of rows on which both take the same arm.
    left_out: words about rows that did not count or failed; empty where there were none.
    look: the how-manieth comparison this is of those that share the 5 % of errors; None for the
        only one.
    reward: its name, whose scale says what a gain is in proportion.
    """

    other: str
    gain: Gain
    other_mean: float
    margin: float
    alike: float
    left_out: str
    look: int | None = None
    reward: str = ""

    @property
    def passed(self) -> bool:
        """Tell whether the candidate is not worse by more than the margin, with confidence."""
        return self.gain.low >= -self.margin - 1e-12  # rounding is no loss

    def verdict(self, candidate: str) -> str:
        """The comparison in a sentence."""
        gain, on = self.gain, f"on {self.gain.queries} queries"
        if self.alike == 1:
            return f"{candidate} takes the same arms as {self.other} {on}"
        share = relative(gain.mean, self.other_mean, self.reward)
        percent = "" if share is None else f" ({abs(share):.1%})"
        which = "more" if gain.mean >= 0 else "less"
        text = f"{candidate} earns {abs(gain.mean):.4g}{percent} {which} than {self.other} {on}"
        if gain.low >= 0:
            return f"{text}, at least {gain.low:.4g} more {self._surely}"
        if self.passed:
            return f"{text}, at most {-gain.low:.4g} less {self._surely} (margin {self.margin:g})"
        if gain.high < 0:
            return f"{text}, at least {-gain.high:.4g} less {self._surely}"
        more = "" if gain.needed is None else f"; about {gain.needed:,} queries would settle it"
        return f"{text}, but perhaps up to {-gain.low:.4g} less{more}"

    @property
    def _surely(self) -> str:
        if self.look is None:
            return "with 95% confidence"
        return f"with 95% confidence over all looks, of which this is number {self.look}"


@dataclass(frozen=True)
class LossBound:
    """The bound on what a policy's answers lose.

    most: on average; 0 where no lossy arm is taken, infinite where nothing bounds it.
    confidence: 0 where the bound holds in expectation over calibrations.
    """

    most: float
    confidence: float

    def __str__(self) -> str:
        """Say in words what its answers do."""
        if self.most == 0:
            return "loses nothing"
        if math.isinf(self.most):
            return "takes lossy arms without a bound"
        sure = f"with {100 * self.confidence:.4g}% confidence" if self.confidence else "on average"
        return f"loses at most {self.most:g} {sure}"

    def looser(self, other: LossBound) -> bool:
        """Tell whether it allows more than the other, or with less confidence."""
        return self.most > other.most or self.confidence < other.confidence


def loss_bound(policy: Policy, lossless: Collection[str]) -> LossBound:
    """The bound of a policy under risk control, and of others by the arms that they may take.

    lossless: arms that lose nothing.
    """
    guarantee = getattr(policy, "guarantee", None)
    if guarantee is not None and guarantee.threshold is not None:
        return LossBound(guarantee.max_loss, guarantee.confidence or 0.0)
    taken = getattr(policy, "lossless", policy.arms)
    if isinstance(policy, ConstantPolicy):
        chances = policy.arrays()["probs"]
        taken = [arm for arm, chance in zip(policy.arms, chances, strict=True) if chance > 0]
    free = set(taken) <= set(lossless)
    return LossBound(0.0, 1.0) if free else LossBound(math.inf, 0.0)


def check_margin(margin: float) -> None:
    """Raise PolicyError for what is no margin."""
    if not 0 <= margin < math.inf:
        raise PolicyError(f"the margin must be 0 or more, not {margin:g}")


def compare_on(
    candidate: Policy,
    table: RewardTable,
    other: Policy | None = None,
    other_table: RewardTable | None = None,
    *,
    named: str = "the champion",
    margin: float = 0.0,
    seed: int = 0,
    look: int | None = None,
) -> PairedComparison:
    """Compare two policies on the rows that their tables share, each taking its most likely arm; a
    query counts once, and a failed answer as the worst of its query.

    other: None for the arm that is best on these very rows, which is slightly optimistic.
    other_table: of the same collection and reward, with what the other policy reads; None where
        that is the same.
    named: the other one, in words.
    look: where several comparisons, at a growing collection or of many candidates, are to be wrong
        with a chance of 5 % in all: the how-manieth this is, from 1. It has 1 / (look (look + 1))
        of that, as those sum to 1. None for one that stands alone.

    Raises PolicyError for another reward, for an arm that has none, for fewer than 59 queries in
    common, or groups of them, and for a margin below 0.
    """
    check_margin(margin)
    theirs = table if other_table is None else other_table
    if (theirs.reward_name, theirs.arms) != (table.reward_name, table.arms):
        raise PolicyError(
            f"the tables differ in reward or arms ({table.reward_name}, {theirs.reward_name}); "
            "derive both from one collection"
        )
    places = {query: i for i, query in enumerate(theirs.query_ids)}
    shared = [i for i, query in enumerate(table.query_ids) if query in places]
    found = usable(table.rows(shared)) if shared else None
    units = independent(0) if found is None else units_of(found.table)
    if found is None or units.groups < MIN_BOUNDED_GROUPS:
        raise PolicyError(too_few(units, "to compare policies on", MIN_BOUNDED_GROUPS))
    rows = found.table
    ours = aligned(candidate, rows)
    if other is None:
        named = f"the best fixed arm ({rows.arms[best_fixed_index(rows)]})"
        chosen = best_fixed(rows, rows)
    else:
        chosen = aligned(other, theirs.rows([places[query] for query in rows.query_ids]))
    mine = units.by_query(earned(rows, ours))
    base = units.by_query(earned(rows, chosen))
    gone = len(table) + len(theirs) - 2 * len(shared)
    words = [f"{gone} rows that only one policy can read are left out"] if gone else []
    return PairedComparison(
        other=named,
        gain=gain_of(
            mine - base,
            units,
            resamples(units, seed),
            look * (look + 1) if look else 1,
            gains_by_costs(rows, ours, chosen, units),
        ),
        other_mean=float(base.mean()),
        margin=margin,
        alike=float((ours.argmax(axis=1) == chosen.argmax(axis=1)).mean()),
        left_out="; ".join(filter(None, [*words, found.words()])),
        look=look,
        reward=rows.reward_name,
    )
