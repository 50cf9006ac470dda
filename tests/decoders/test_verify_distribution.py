"""Rules to the last digit: the distribution at each drafted position is the rule's own.

With two drafted tokens a round and four new ones, the first token is the prompt's and the fourth is
never drafted, whatever was accepted: both follow the target. The second and third are drafted in
every course that the loop can take, so that an answer's distribution is the product of four known
ones. The rules are written here again, on lists of floats and in the papers' words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from typing import Any

import pytest
import torch
from decoder_toys import max_gram, reduced
from torch import Tensor

from decoders.arms import DraftingRecipe
from decoders.lengths import FixedLength
from decoders.papers.rules import deferral, lossy, step
from decoders.papers.rules.deferral import SpeculativeCascade
from decoders.papers.rules.lossy import Lossy
from decoders.protocols import Drafter, Verifier
from decoders.records import Request, Sampling, Verdict
from decoders.testing.chance import Distribution, distance, loop_distribution, transformers_filters
from decoders.testing.toys import ToyBackend, neural, run, speculative

Floats = list[float]
Next = Callable[[list[int]], Tensor]  # context -> logits [V] of what follows
MOST, PROMPT = 4, [0, 1, 0]
EXACT = 1e-9


# -- the rules, once more -------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What a rule may look at: p and q as sampled from, and raw."""

    p: Floats
    q: Floats
    p_raw: Floats
    q_raw: Floats


def entropy(raw: Floats) -> float:
    return -sum(x * log(x) for x in raw if x > 0)


def tv(p: Floats, q: Floats) -> float:
    return sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def solved(low: float, high: float, small_enough: Callable[[float], bool]) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if small_enough(middle) else (low, middle)
    return low


def clipped(s: Seen, cap: float, floor: float) -> Floats:
    return [max(min(b, cap * a), floor * a) for a, b in zip(s.p, s.q, strict=True)]


def star(s: Seen, cap: float) -> Floats:
    return clipped(s, cap, solved(0, 1, lambda floor: sum(clipped(s, cap, floor)) <= 1))


def kl(pi: Floats, p: Floats) -> float:
    return sum(a * log(a / b) for a, b in zip(pi, p, strict=True) if a > 0)


def within(s: Seen, budget: float) -> Floats:
    largest = solved(0, 50, lambda u: kl(star(s, exp(u)), s.p) <= budget)
    return star(s, exp(largest))


def algorithm_4(s: Seen, pi: Floats) -> Floats:
    """What accepting min(1, pi / q) and drawing the rest from norm(max(0, pi - q)) gives."""
    kept = [min(a, b) for a, b in zip(pi, s.q, strict=True)]
    over = [max(0.0, a - b) for a, b in zip(pi, s.q, strict=True)]
    rest = 1 - sum(kept)
    if sum(over) == 0:
        return [a + rest * b for a, b in zip(kept, s.p, strict=True)]
    return [a + rest * b / sum(over) for a, b in zip(kept, over, strict=True)]


def rollback(s: Seen, threshold: float) -> Floats:
    kept = [b if -log(a) < threshold else 0.0 for a, b in zip(s.p_raw, s.q, strict=True)]
    return [a + (1 - sum(kept)) * b for a, b in zip(kept, s.p, strict=True)]


def greedy_rollback(s: Seen, threshold: float) -> Floats:
    drafted, own = s.q.index(1.0), s.p
    return s.q if -log(s.p_raw[drafted]) < threshold else own


RULES: dict[str, tuple[dict[str, object], Callable[[Seen], Floats]]] = {
    "lossy": ({"rule": "lossy", "alpha": 0.3}, lambda s: algorithm_4(s, clipped(s, 1 / 0.7, 1))),
    "lossy-beta": (
        {"rule": "lossy", "alpha": 0.5, "beta": 1.25},
        lambda s: algorithm_4(s, clipped(s, 2, 0.8)),
    ),
    "lossy-no-residual": (  # all of q lies above p / beta: what is rejected is the target's
        {"rule": "lossy", "alpha": 0.1, "beta": 1e6},
        lambda s: algorithm_4(s, clipped(s, 1 / 0.9, 1e-6)),
    ),
    "lossy-star": ({"rule": "lossy_star", "alpha": 0.3}, lambda s: star(s, 1 / 0.7)),
    "lossy-budget": ({"rule": "lossy_star", "kl_budget": 0.02}, lambda s: within(s, 0.02)),
    "chow": ({"rule": "chow", "alpha": 0.45}, lambda s: s.q if max(s.q_raw) >= 1 - 0.45 else s.p),
    "chow-log": (
        {"rule": "chow", "alpha": 0.85, "log_loss": True},
        lambda s: s.p if entropy(s.q_raw) > 0.85 else s.q,
    ),
    "diff": (
        {"rule": "diff", "alpha": 0.1},
        lambda s: s.p if max(s.q_raw) < max(s.p_raw) - 0.1 else s.q,
    ),
    "diff-log": (
        {"rule": "diff", "alpha": 0.1, "log_loss": True},
        lambda s: s.p if entropy(s.q_raw) > entropy(s.p_raw) + 0.1 else s.q,
    ),
    "opt": (
        {"rule": "opt", "alpha": 0.4},
        lambda s: s.p if max(s.q_raw) < max(s.p_raw) - 0.4 * tv(s.p, s.q) else s.q,
    ),
    "opt-log": (
        {"rule": "opt", "alpha": 0.4, "log_loss": True},
        lambda s: s.p if entropy(s.q_raw) > entropy(s.p_raw) + 0.4 * tv(s.p, s.q) else s.q,
    ),
    "bild-star": (
        {"rule": "bild_star", "alpha": 1.2},
        lambda s: s.p if -log(s.p_raw[s.q_raw.index(max(s.q_raw))]) > 1.2 else s.q,
    ),
    "bild": ({"rule": "bild", "rollback": 1.2}, lambda s: rollback(s, 1.2)),
}
DETERMINISTIC = [name for name in RULES if name.startswith(("lossy", "bild"))]

SAMPLINGS = {
    "plain": Sampling(1.0),
    "cold": Sampling(0.6),
    "top_k": Sampling(1.2, top_k=2),
    "nucleus": Sampling(1.0, top_p=0.8),
    "penalty": Sampling(0.8, repetition_penalty=1.7),
}


def verifier_of(name: str) -> Verifier:
    return DraftingRecipe(kind="test", verifier=RULES[name][0]).verifier.build()


# -- and the distribution they give an answer -----------------------------------------------------


def filtered(logits: Next, context: list[int], sampling: Sampling) -> tuple[Floats, Floats]:
    """(as sampled from, raw) after `context`; both after the repetition penalty."""
    penalty = transformers_filters(replace(sampling, temperature=1.0, top_k=0, top_p=1.0))
    ids, scores = torch.tensor([context]), logits(context).unsqueeze(0)
    raw = penalty(ids, scores)[0].softmax(-1)
    if sampling.greedy:
        return torch.eye(len(raw), dtype=raw.dtype)[raw.argmax()].tolist(), raw.tolist()
    return transformers_filters(sampling)(ids, scores)[0].softmax(-1).tolist(), raw.tolist()


def answer_distribution(
    target: Next,
    draft: Next,
    position: Callable[[Seen], Floats],
    sampling: Sampling,
    prompt: list[int] = PROMPT,
    bar: float = 0.0,
) -> Distribution:
    """Second and third token as `position` says, where the draft clears the bar; else the
    target's."""
    distribution: Distribution = {}

    def go_on(made: tuple[int, ...], weight: float) -> None:
        if len(made) == MOST:
            distribution[made] = weight
            return
        context = [*prompt, *made]
        p, p_raw = filtered(target, context, sampling)
        if len(made) in (1, 2):
            q, q_raw = filtered(draft, context, sampling)
            if max(q_raw) >= bar:
                p = position(Seen(p, q, p_raw, q_raw))
        for token, share in enumerate(p):
            if share > 0:
                go_on((*made, token), weight * share)

    go_on((), 1.0)
    return distribution


def check(distribution: Distribution, truth: Distribution) -> None:
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)
    assert sum(truth.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(distribution, truth) < EXACT


TARGET = ToyBackend.random(3, seed=14, sharpness=1.0)
DRAFT = ToyBackend.random(3, seed=75, sharpness=1.0)


def distribution_of(
    verifier: Verifier,
    sampling: Sampling,
    drafter: Drafter | None = None,
    prompt: list[int] = PROMPT,
    bar: float = 0.0,
) -> Distribution:
    strategy = speculative(drafter or neural(3, seed=75), FixedLength(2, bar), verifier)
    return loop_distribution(ToyBackend(TARGET.table), strategy, prompt, Request(MOST, sampling))


def truth_of(
    name: str, sampling: Sampling, prompt: list[int] = PROMPT, bar: float = 0.0
) -> Distribution:
    models = TARGET.next_logits, DRAFT.next_logits
    return answer_distribution(*models, RULES[name][1], sampling, prompt, bar)


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", ["plain", "cold"])
@pytest.mark.parametrize("name", RULES)
def test_each_drafted_position_follows_the_rule(name: str, sampling: str) -> None:
    chosen = SAMPLINGS[sampling]
    distribution = distribution_of(verifier_of(name), chosen)
    check(distribution, truth_of(name, chosen))
    # and neither model's own: the thresholds above decide now one way, now the other
    models = TARGET.next_logits, DRAFT.next_logits
    for alone in (lambda s: s.p, lambda s: s.q):
        assert distance(distribution, answer_distribution(*models, alone, chosen)) > 1e-3


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", ["top_k", "nucleus", "penalty"])
@pytest.mark.parametrize("name", ["lossy", "lossy-star", "diff", "opt-log", "bild-star", "bild"])
def test_with_filters_and_penalty(name: str, sampling: str) -> None:
    distribution = distribution_of(verifier_of(name), SAMPLINGS[sampling])
    check(distribution, truth_of(name, SAMPLINGS[sampling]))


@pytest.mark.every(2)
@pytest.mark.parametrize("penalty", [1.0, 1.7])
@pytest.mark.parametrize("name", RULES)
def test_greedy_as_the_rule_says(name: str, penalty: float) -> None:
    """Thirty targets and as many drafters; the rules' own distribution is then a single answer."""
    sampling, changed = Sampling(repetition_penalty=penalty), 0
    position = RULES[name][1]
    if name.startswith("lossy"):
        position = lambda s: s.p  # noqa: E731 - one-hots leave nothing to give away
    if name == "bild":
        position = partial(greedy_rollback, threshold=1.2)
    for seed in range(30):
        target = ToyBackend.random(3, seed, sharpness=1.0)
        draft = ToyBackend.random(3, 100 + seed, sharpness=1.0)
        strategy = speculative(neural(3, seed=100 + seed), 2, verifier_of(name))
        result = run(target, strategy, PROMPT, Request(MOST, sampling))
        own, other = target.next_logits, draft.next_logits
        [(ids, weight)] = answer_distribution(own, other, position, sampling).items()
        assert (tuple(result.ids), weight) == (ids, 1.0)
        [greedy] = answer_distribution(own, other, lambda s: s.p, sampling)
        changed += ids != greedy
    assert changed == 0 if name.startswith("lossy") else changed > 3


@pytest.mark.parametrize("name", ["lossy", "lossy-star", "chow", "opt", "bild-star", "bild"])
def test_a_reduced_vocabulary(name: str) -> None:
    """What the drafter cannot say has no probability, raw or not."""
    table = ToyBackend.random(3, seed=8, sharpness=1.0).table  # 0, 2, and "other"

    def draft(context: list[int]) -> Tensor:
        to_draft = [0, 2, 1]
        previous, last = (to_draft[i] for i in context[-2:])
        logits = table[previous, last]
        return torch.stack([logits[0], torch.tensor(-torch.inf), logits[1]])

    sampling, drafter = SAMPLINGS["plain"], reduced([0, 2], 3, seed=8)
    truth = answer_distribution(TARGET.next_logits, draft, RULES[name][1], sampling)
    check(distribution_of(verifier_of(name), sampling, drafter), truth)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_deterministic_draft_is_a_one_hot(name: str) -> None:
    follows = [1, 2, 0]  # a bigram table; no n-gram of nine is ever found

    def draft(context: list[int]) -> Tensor:
        return torch.full((3,), -torch.inf).index_fill(0, torch.tensor(follows[context[-1]]), 0.0)

    sampling, drafter = SAMPLINGS["cold"], max_gram(follows, shortest=9)
    truth = answer_distribution(TARGET.next_logits, draft, RULES[name][1], sampling)
    check(distribution_of(verifier_of(name), sampling, drafter), truth)


@pytest.mark.parametrize("sampling", ["plain", "nucleus"])
@pytest.mark.parametrize("name", ["bild", "opt"])
def test_where_the_drafter_falls_back_the_target_writes(name: str, sampling: str) -> None:
    chosen, bar = SAMPLINGS[sampling], 0.55
    distribution = distribution_of(verifier_of(name), chosen, bar=bar)
    truth = truth_of(name, chosen, bar=bar)
    check(distribution, truth)
    assert distance(distribution, truth_of(name, chosen)) > 1e-3


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "verifier",
    [
        {"rule": "lossy", "alpha": 0.0},
        {"rule": "lossy_star", "alpha": 0},
        {"rule": "lossy_star", "kl_budget": 0.0},
        {"rule": "bild", "rollback": 0},
        "lossless",
    ],
    ids=str,
)
def test_rules_that_say_lossless_are(verifier: object) -> None:
    recipe = DraftingRecipe(kind="test", verifier=verifier)
    assert recipe.lossless and recipe.verifier.build().lossless
    models = TARGET.next_logits, DRAFT.next_logits
    for sampling in (SAMPLINGS["cold"], SAMPLINGS["nucleus"]):
        distribution = distribution_of(recipe.verifier.build(), sampling)
        check(distribution, answer_distribution(*models, lambda s: s.p, sampling))


# -- the check itself can fail --------------------------------------------------------------------


def scaled_confidence(
    target: Tensor, draft: Tensor, target_raw: Tensor, draft_raw: Tensor
) -> Tensor:
    return deferral.deferral(target, draft, target, draft, rule="diff", alpha=0.1)


def raw_variation(target: Tensor, draft: Tensor, target_raw: Tensor, draft_raw: Tensor) -> Tensor:
    cost = 0.4 * deferral.total_variation(target_raw, draft_raw)
    defer = deferral.loss(draft_raw, False) > deferral.loss(target_raw, False) + cost
    return torch.where(defer.unsqueeze(-1), target, draft)


class DrawsFromPi(Lossy):
    """Wrong on purpose: after a rejection draws from pi, not from the residual."""

    def verify(self, *given: Any) -> Verdict:
        proposal, target_logits, sampling, chance, _ = given
        target = step.target_distribution(target_logits, sampling)
        draft = step.draft_distribution(proposal, target)
        pi = self.mixture(target[:-1], draft)
        accepted = step.leading(chance.accept(step.acceptance(pi, draft, proposal.ids)))
        following = torch.cat([pi, target[-1:]])
        return step.verdict(proposal, accepted, chance.draw(step.at(following, accepted)))


MUTANTS: dict[str, tuple[str, Verifier]] = {
    "no-residual": ("lossy-star", DrawsFromPi(partial(lossy.lossy_star, alpha=0.3))),
    "scaled-confidence": ("diff", SpeculativeCascade(scaled_confidence)),
    "raw-variation": ("opt", SpeculativeCascade(raw_variation)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant: str) -> None:
    name, wrong = MUTANTS[mutant]
    distribution = distribution_of(wrong, SAMPLINGS["cold"])
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-9)  # a distribution, but another
    assert distance(distribution, truth_of(name, SAMPLINGS["cold"])) > 1e-4
