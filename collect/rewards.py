"""Rewards: pure, named, versioned functions of stored outcomes.

Raw outcomes are stored, rewards are derived: a new reward never needs a new collection. To add
one, write a function of (Outcome, Context) and name it in REWARDS; raise its version whenever its
numbers change.

A size or latency score c is 0 for the most expensive arm and nears 1 for a free one. Huang et al.
(Context-Aware Assistant Selection, section 3.3) say in prose that alpha -> 1 favours the smallest
drafter. Their formula (2), s = alpha * f + (1 - alpha) * c, says the opposite: at alpha = 1 the
size drops out and only the similarity f is left. We follow the formula: a *lower* alpha favours
cheaper drafters. Alpha is the same for every arm: their experiment with the autoregressive arm
(section 3.4) sets it to 0.5 for all of them, which is the default here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.plugins import watched
from decoders.costs.measured import PLAIN, Costs

from .records import ArmInfo, Outcome

DEFAULT = "modelled"  # what `summary`, `headroom` and `train` take unless another is named
OF_ENDPOINTS = "measured"  # the same for collections of endpoints, which have no costs of passes


@dataclass(frozen=True)
class Context:
    """What a reward may know besides the row.

    arms: those that are chosen from, by name (the most expensive one sets the scale).
    costs: of the collecting machine, for as many answers at once as the row is of.
    autoregressive: the row of the autoregressive arm on the same query at the same temperature, if
        there is one.
    alpha: weight of similarity against cost, in [0, 1].
    """

    arms: Mapping[str, ArmInfo]
    costs: Costs
    autoregressive: Outcome | None = None
    alpha: float = 0.5


@dataclass(frozen=True)
class Reward:
    """A reward's name, version, function, and one line for people.

    uses_alpha: whether Context.alpha changes it.
    needs_measured: whether the collection must have been made with --measure.
    uses_size: whether the arms' `parameters` change it.
    needs_similarity: whether drafters must have written on their own (no --no-similarity).
    needs_costs: whether passes and drafts of the target must have been timed (no endpoints).
    needs_prices: whether the arms must have prices (endpoints alone).
    greedy_only: whether it says something of greedy answers on their own alone, not of those that
        are sampled or written with others.
    """

    name: str
    version: int
    function: Callable[[Outcome, Context], float]
    summary: str
    uses_alpha: bool = False
    needs_measured: bool = False
    uses_size: bool = False
    greedy_only: bool = False
    needs_similarity: bool = False
    needs_costs: bool = False
    needs_prices: bool = False

    def label(self, alpha: float) -> str:
        """Name, version and options, as written into artifacts: "paper@2 alpha=0.5"."""
        return f"{self.name}@{self.version}" + (f" alpha={alpha:g}" if self.uses_alpha else "")


def paper(outcome: Outcome, context: Context) -> float:
    """Huang et al., eq. 2, A.5: alpha * ROUGE-L + (1 - alpha) * c, c = 1 - exp(P_i) / exp(P_max).

    P in billions of parameters, P_max over the arms that are chosen from. In [0, 1]. For small
    models c is nearly flat (135M against 30M: 0 against 0.1); `parameter-ratio` and
    `latency-ratio` are not.
    """
    largest = max(arm.parameters for arm in context.arms.values())
    # exp(P_i - P_max) rather than exp(P_i) / exp(P_max), which overflows above 700 billion.
    return _blend(outcome, context, -math.expm1((outcome.parameters - largest) / 1e9))


def parameter_ratio(outcome: Outcome, context: Context) -> float:
    """The reward `paper` with c = 1 - P_i / P_max, which separates small drafters. In [0, 1]."""
    largest = max(arm.parameters for arm in context.arms.values())
    return _blend(outcome, context, 1 - outcome.parameters / largest if largest else 0.0)


def latency_ratio(outcome: Outcome, context: Context) -> float:
    """The reward `paper` with c = 1 - t_i / t_max, t the measured seconds of one token. In [0, 1].

    The t of an arm without a drafter, as the autoregressive one, is one single-token pass of the
    target.
    """
    seconds = {name: _token_s(arm, context.costs) for name, arm in context.arms.items()}
    slowest = max(seconds.values())
    return _blend(outcome, context, 1 - seconds[outcome.arm] / slowest if slowest > 0 else 0.0)


def acceptance(outcome: Outcome, context: Context) -> float:
    """Accepted over drafted tokens (Huang et al., A.6); 0 where nothing was drafted. In [0, 1]."""
    drafted = _known(outcome.drafted)
    return _known(outcome.accepted) / drafted if drafted else 0.0


def saved_passes(outcome: Outcome, context: Context) -> float:
    """The share of the target's passes that drafting saves: 1 - rounds / (new_tokens - 1).

    Equals 1 - 1 / (tokens per round), so autoregressive decoding has 0. In [0, 1].
    """
    decoded = _known(outcome.new_tokens) - 1
    return 1 - _known(outcome.rounds) / decoded if decoded > 0 else 0.0


def modelled(outcome: Outcome, context: Context) -> float:
    """Speed-up over autoregressive decoding, from exact rounds and measured costs.

    (new_tokens - 1) * (verify(1) + overhead) over the sum of verify(width) over all passes + rounds
    * overhead + steps * draft_s: `Costs.passes_s` sums passes width by width, and
    `Costs.overhead_s` says what a round of plain decoding or of the arm takes besides its pass;
    steps are the drafted tokens, those of its models alone where others are copied. Prefill
    excluded; 1 where the prompt's own pass wrote the whole answer. Of several answers at once, the
    machine's tokens a second over those of plain decoding with as many (goodput): all of it is then
    for all of them. A pass that leaves the target early (CALM) counts as a whole one: only the
    measured rewards see what it saves. Where widths were not counted, every pass is priced at the
    mean width, 1 + drafted / rounds.
    """
    decoded = _known(outcome.new_tokens) - 1
    if decoded <= 0 or context.arms[outcome.arm].autoregressive:
        return 1.0
    costs = context.costs
    arm_s = modelled_s(outcome, costs)
    plain_s = costs.verify_s[0] + costs.overhead_s(PLAIN, outcome.temperature)
    return decoded * plain_s / arm_s if arm_s > 0 else math.nan


def modelled_s(outcome: Outcome, costs: Costs) -> float:
    """Seconds of decoding an answer as `modelled` prices it. costs: for as many answers at once as
    the outcome is of."""
    rounds, drafted = _known(outcome.rounds), _known(outcome.drafted)
    steps = drafted if outcome.calls is None else outcome.calls
    if outcome.widths is not None:
        passes_s = costs.passes_s(outcome.widths, outcome.running + 1)
    else:
        passes_s = rounds * costs.verify(1 + drafted / rounds) if rounds else 0.0
    rounds_s = rounds * costs.overhead_s(outcome.arm, outcome.temperature)
    return passes_s + rounds_s + steps * costs.draft_s.get(outcome.arm, 0.0)


def time_saved(outcome: Outcome, context: Context) -> float:
    """The share of autoregressive decoding's seconds that the arm saves: 1 - 1 / `modelled`.

    Its mean over queries is what a machine saves that writes equally many tokens for each. A mean
    of speed-ups is not: an answer that is copied ten times as fast weighs as much there as many
    that are written a little slower. Below 1; negative where the arm is slower.
    """
    return 1 - 1 / modelled(outcome, context)


def measured(outcome: Outcome, context: Context) -> float:
    """Tokens a second at batch 1 with this arm, its reading of the prompt included.

    NaN where the collection did not measure. Depends on the machine; `measured-speedup` less.
    """
    seconds = _measured_s(outcome)
    return (
        outcome.measured_tokens / seconds if outcome.measured_tokens and seconds > 0 else math.nan
    )


def speed_price(outcome: Outcome, context: Context) -> float:
    """alpha * ln(`measured`) - (1 - alpha) * ln(money for a million tokens of the answer).

    The logarithm of a weighted geometric mean of speed and cheapness: alpha = 1 is speed alone, 0
    money alone, and at 0.5 an arm that is twice as fast at twice the price is as good. The currency
    adds the same to all arms. NaN where the collection did not measure, where the endpoint did not
    count the prompt's tokens, and for an answer that cost nothing.
    """
    recipe = context.arms[outcome.arm].recipe
    if outcome.prompt_tokens is None or not outcome.new_tokens:
        return math.nan
    money = (
        outcome.prompt_tokens * recipe["prompt_price"]
        + outcome.new_tokens * recipe["completion_price"]
    )
    speed = measured(outcome, context)
    if not money > 0 or not speed > 0:
        return math.nan
    price = money / outcome.new_tokens  # prices are for a million tokens already
    return context.alpha * math.log(speed) - (1 - context.alpha) * math.log(price)


def measured_speedup(outcome: Outcome, context: Context) -> float:
    """`measured` over that of the autoregressive arm on the same query, taken minutes apart at
    most and in random order; NaN where either is missing."""
    if context.autoregressive is None:
        return math.nan
    return measured(outcome, context) / measured(context.autoregressive, context)


_OF_SIMILARITY = {"uses_alpha": True, "needs_similarity": True, "greedy_only": True}
_OF_COSTS = {"needs_costs": True}
_OF_TIMES = {"needs_measured": True, "greedy_only": True}
_OF_PRICES = {**_OF_TIMES, "uses_alpha": True, "needs_prices": True}

REWARDS: dict[str, Reward] = {
    name: Reward(name, version, function, summary, **flags)
    for name, version, function, summary, flags in (
        ("paper", 2, paper, "ROUGE-L and exp-scaled size, Huang et al.",
         {**_OF_SIMILARITY, "uses_size": True}),
        ("parameter-ratio", 2, parameter_ratio, "ROUGE-L and relative size",
         {**_OF_SIMILARITY, "uses_size": True}),
        ("latency-ratio", 2, latency_ratio, "ROUGE-L and relative draft time",
         {**_OF_SIMILARITY, **_OF_COSTS}),
        ("acceptance", 2, acceptance, "accepted over drafted tokens", {}),
        ("saved-passes", 2, saved_passes, "share of target passes saved", {}),
        ("modelled", 5, modelled, "speed-up from exact rounds and measured costs", _OF_COSTS),
        ("time-saved", 4, time_saved, "share of plain decoding's time saved, modelled", _OF_COSTS),
        ("measured", 1, measured, "measured tokens a second", _OF_TIMES),
        ("measured-speedup", 1, measured_speedup, "measured speed-up over autoregressive",
         _OF_TIMES),
        ("speed-price", 1, speed_price, "measured speed against the price of an endpoint's tokens",
         _OF_PRICES),
    )
}  # fmt: skip
watched("reward", REWARDS)


def get(reward: str | Reward) -> Reward:
    """The reward of that name, or the one given; raises NoSuchName with the names that exist."""
    if isinstance(reward, Reward):
        return reward
    if reward not in REWARDS:
        raise NoSuchName("reward", reward, tuple(REWARDS))
    return REWARDS[reward]


def default(costs: Costs) -> str:
    """The name of the reward for a collection with these costs, where the user names none."""
    return DEFAULT if costs.verify_s else OF_ENDPOINTS


def check_alpha(alpha: float) -> None:
    """Raise DraftpickError unless alpha is a weight in [0, 1]."""
    if not 0 <= alpha <= 1:
        raise DraftpickError(
            f"alpha must be between 0 (cost alone) and 1 (similarity alone), not {alpha:g}"
        )


def compute(reward: str | Reward, outcome: Outcome, context: Context) -> float:
    """One reward of one row; NaN for an error row.

    reward: a name, or a Reward of one's own. Raises DraftpickError for an unknown name or an alpha
    outside [0, 1].
    """
    reward = get(reward)
    check_alpha(context.alpha)
    return math.nan if outcome.error is not None else reward.function(outcome, context)


def _blend(outcome: Outcome, context: Context, cost_score: float) -> float:
    similarity = math.nan if outcome.rouge_l is None else outcome.rouge_l
    return context.alpha * similarity + (1 - context.alpha) * cost_score


def _token_s(arm: ArmInfo, costs: Costs) -> float:
    return (
        costs.verify_s[0] if arm.autoregressive else costs.draft_s.get(arm.name, costs.verify_s[0])
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _measured_s(outcome: Outcome) -> float:
    if outcome.measured_prefill_s is None or outcome.measured_decode_s is None:
        return math.nan
    return outcome.measured_prefill_s + outcome.measured_decode_s
