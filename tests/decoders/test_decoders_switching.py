"""Choosing the drafter anew within an answer: Hedge by hand, every part's score beside the draft it
would have made, the distribution walked, who leads when. Its promises as an arm are asked in
test_decoders_contract.py, its replay in test_decoders_batch.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_toys import (
    CPU,
    autoregressive,
    distance,
    greedy,
    hybrid,
    loop_distribution,
    max_gram,
    native,
    neural,
    recurrent,
    reference_distribution,
    run,
    speculative,
    switching,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoders_exact_distribution import PROMPT, SAMPLINGS, check, toy_logits

from decoders.arms import recipe
from decoders.backends.toy import ToyBackend
from decoders.common.errors import DraftpickError
from decoders.costs.passes import PassCosts
from decoders.drafters import RecurrentDrafter, SwitchingDrafter
from decoders.drafters.hedge import Hedge
from decoders.drafters.horizontal import HorizontalDrafter, Part
from decoders.drafters.switching import Start
from decoders.drafters.vertical import VerticalDrafter
from decoders.lengths import FixedLength
from decoders.offline.costs import measure
from decoders.protocols import DraftRequest, ScorableDrafter
from decoders.records import Proposal, Request, Sampling
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.filters import probabilities
from decoders.sampling.randomness import Generator

Tiny = Callable[..., Path]

# -- Hedge ----------------------------------------------------------------------------------------


def even(*experts: int) -> dict[int, float]:
    return dict.fromkeys(experts, 0.0)


def test_three_rounds_by_hand() -> None:
    """AdaHedge of two experts: the first round shares the weight, what follows has a rate."""
    hedge = Hedge[int](2)
    assert hedge.weights(even(0, 1)) == [0.5, 0.5]
    assert hedge.leader(even(1, 0)) == 1  # the first on a tie
    hedge.learn({0: 1.0, 1: 3.0})  # the mean is 2, the mix 3: at an infinite rate the best leader's
    rate = math.log(2) / 1.0
    weight = 1 / (1 + math.exp(-2 * rate))
    assert weight == pytest.approx(0.8)
    assert hedge.weights(even(0, 1)) == pytest.approx([1 - weight, weight])
    hedge.learn({0: 2.0, 1: 1.0})
    mix = math.log((1 - weight) * 2**2 + weight * 2**1) / rate  # exp(rate) is 2
    mean = (1 - weight) * 2 + weight * 1
    rate = math.log(2) / (1.0 + mix - mean)
    share = 1 / (1 + math.exp(rate * 1))  # of the first, behind by 2 - 1
    assert hedge.weights(even(0, 1)) == pytest.approx([share, 1 - share])
    hinted = 1 / (1 + math.exp(rate * (1 - 3)))
    assert hedge.weights({0: 3.0, 1: 0.0}) == pytest.approx([hinted, 1 - hinted])
    assert hedge.leader({0: 3.0, 1: 0.0}) == 0


def test_what_is_older_counts_less() -> None:
    hedge, lasting = Hedge[int](2, memory=5), Hedge[int](2)
    for each in (hedge, lasting):
        for _ in range(20):
            each.learn({0: 1.0, 1: 2.0})
        for _ in range(10):
            each.learn({0: 2.0, 1: 1.0})
    assert hedge.leader(even(0, 1)) == 0 and lasting.leader(even(0, 1)) == 1


def test_who_sits_out_keeps_what_it_had() -> None:
    hedge = Hedge[int](3, memory=10)
    for _ in range(5):
        hedge.learn({0: 1.0, 1: 2.0, 2: 1.5})
    assert hedge.leader(even(0, 1, 2)) == 1 and hedge.leader(even(0, 2)) == 2
    for _ in range(60):
        hedge.learn({0: 2.0, 2: 1.0})
    assert hedge.leader(even(0, 2)) == 0
    alone = Hedge[int](2)
    for _ in range(5):
        alone.learn({0: 1.0, 1: 2.0})
    for _ in range(60):
        alone.learn({0: 5.0})  # what it gains by itself says nothing of the other
    assert alone.leader(even(0, 1)) == 1
    assert hedge.weights(even(1)) == [1.0]
    assert sum(hedge.weights(even(0, 1, 2))) == pytest.approx(1)


def regret(rounds: list[list[float]]) -> float:
    """Of drawing by weight, to the best expert in hindsight."""
    hedge, got, each = Hedge[int](3), 0.0, [0.0] * 3
    for gains in rounds:
        weights = hedge.weights(even(0, 1, 2))
        got += sum(w * g for w, g in zip(weights, gains, strict=True))
        each = [total + g for total, g in zip(each, gains, strict=True)]
        hedge.learn(dict(enumerate(gains)))
    return max(each) - got


def bound(n: int) -> float:
    """Of gains in 0..1 (de Rooij et al., theorem 8)."""
    return math.sqrt(n * math.log(3)) + 16 / 3 * math.log(3) + 2


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=200))
@settings(max_examples=50, deadline=None)
def test_regret_is_bounded(rounds: list[list[float]]) -> None:
    assert regret(rounds) <= bound(len(rounds)) + 1e-9


def test_regret_is_bounded_where_the_leader_always_loses() -> None:
    rounds = [[0.5, 0.0, 0.0], *[[float(t % 2 == one) for one in (1, 0, 2)] for t in range(2000)]]
    assert regret(rounds) <= bound(len(rounds)) < 500


# -- scores beside the drafts themselves ----------------------------------------------------------


def alone(drafter: RecurrentDrafter, context: list[int], k: int, sampling: Sampling) -> Proposal:
    """What it drafts after `context`, of which the target has read all but the last token."""
    drafter.target.prefill(context[:-1])
    return drafter.propose(context, DraftRequest(k, sampling, Generator(CPU, 0)))


@pytest.mark.parametrize("vocab", [None, [0, 2, 5, 7, 9, 11]])
def test_a_greedy_score_is_how_far_the_draft_would_have_come(
    vocab: list[int] | None, tiny: Tiny
) -> None:
    target = native(tiny(), torch.float64)
    drafter = recurrent(target, 1, None if vocab is None else DraftVocab(vocab, 16))
    context = run(target, autoregressive(), [3, 1, 4], Request(30)).ids
    drafts = {at: min(4, len(context) - at) for at in range(2, len(context))}
    target.prefill(context[:-1])
    before = drafter.calls
    scores = drafter.acceptance(context, drafts, Sampling(), {})
    assert 1 <= drafter.calls - before <= 4
    right = 0
    for (at, k), chances in zip(drafts.items(), scores, strict=True):
        made = alone(drafter, context[:at], k, Sampling()).ids.tolist()
        accepted = next((i for i in range(k) if made[i] != context[at + i]), k)
        assert len(chances) == k
        assert next((i for i in range(k) if chances[i] != 1.0), k) == accepted
        right += accepted
    assert right > 0


def test_a_sampled_score_is_the_chance_of_acceptance() -> None:
    """Averaged over what the target may draw, sum(min(p, q)), at each depth of a true draft."""
    target, sampling = ToyBackend.random(4, seed=3, sharpness=1.0), Sampling(0.8, top_k=3)
    drafter = recurrent(target, 2)
    context = [0, 1, 3, 2]
    target.prefill(context)
    p = probabilities(target.final_states(3, 4), sampling)[0]
    made = alone(drafter, context, 1, sampling)
    assert made.probs is not None
    expected = float(torch.minimum(p, made.probs[0]).sum())
    total = 0.0
    for token in range(4):
        ((chance,),) = drafter.acceptance([*context, token], {4: 1}, sampling, {4: float(p[token])})
        total += float(p[token]) * chance
    assert total == pytest.approx(expected, abs=1e-9)
    ((unknown,),) = drafter.acceptance([*context, 2], {4: 1}, sampling, {})
    assert unknown == pytest.approx(float(made.probs[0, 2]))  # as of a target that was certain


def test_the_loop_tells_what_the_target_gave() -> None:
    target, sampling = ToyBackend.random(4, seed=3, sharpness=1.0), Sampling(0.9, top_p=0.9)
    seen = list[tuple[list[int], int]]()

    class Noting(SwitchingDrafter):
        def observe(self, context: list[int], logits: torch.Tensor, sampling: Sampling) -> None:
            super().observe(context, logits, sampling)
            fresh, given = ToyBackend(target.table), self._answer.likelihood
            for place in range(len(context) - len(logits), len(context)):
                p = probabilities(fresh.prefill(context[:place]).logits.unsqueeze(0), sampling)
                assert given[place] == pytest.approx(float(p[0, context[place]]))
            seen.append((list(context), len(logits)))

    parts: Any = [recurrent(target, 2), max_gram(shortest=1)]
    noting = switching(*parts)
    noting.__class__ = Noting
    result = run(target, speculative(noting, 3), PROMPT, Request(20, sampling, seed=2))
    assert sum(count for _, count in seen) == len(seen[-1][0]) - len(PROMPT) - 1
    assert len(result.ids) == 20 and result.accepted > 0


# -- lossless -------------------------------------------------------------------------------------

HOW: dict[str, dict[str, Any]] = {
    "leader": {},
    "quick": {"memory": 1.0},
    "drawn": {"drawn": True, "none": False},
    "once": {"after": 2, "none": False},
}


@pytest.mark.parametrize("sampling", ["plain", "all"])
@pytest.mark.parametrize("how", HOW)
def test_the_distribution_is_the_target_s(how: str, sampling: str) -> None:
    """Of so few tokens that all can be walked, and so many that the choice learns in between."""
    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    request, parts = Request(4 if "drawn" in HOW[how] else 5, SAMPLINGS[sampling]), set[int]()

    class Noting(SwitchingDrafter):
        def _choose(self, start: Start, asked: DraftRequest) -> int:
            part = super()._choose(start, asked)
            parts.add(part)
            return part

    drafter = switching(max_gram(shortest=1), recurrent(target, 2), **HOW[how])
    drafter.__class__ = Noting
    distribution = loop_distribution(target, speculative(drafter, 2), PROMPT, request)
    check(distribution, reference_distribution(toy_logits(target), PROMPT, request))
    assert len(parts) > 1


def test_a_choice_that_looks_at_the_drafts_is_caught() -> None:
    """Of two drawn drafts it keeps the one it likes better: it was not drawn from what it says."""
    target, request = ToyBackend.random(3, seed=3, sharpness=1.0), Request(3, Sampling(1.0))

    class Looking(SwitchingDrafter):
        def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
            drafts = [part.propose(context, asked) for part in self.parts]
            return max(drafts, key=lambda made: made.ids.tolist())

    looking = switching(recurrent(target, 2), recurrent(target, 5), none=False)
    looking.__class__ = Looking
    distribution = loop_distribution(target, speculative(looking, 1), PROMPT, request)
    truth = reference_distribution(toy_logits(target), PROMPT, request)
    assert distance(distribution, truth) > 1e-3


def test_a_model_that_switches_inside_a_hybrid_keeps_the_distribution() -> None:
    target, request = ToyBackend.random(3, seed=4, sharpness=1.0), Request(4, Sampling(1.0))
    drafter = hybrid(switching(recurrent(target, 2), recurrent(target, 5), none=False))
    distribution = loop_distribution(target, speculative(drafter, 2), PROMPT, request)
    check(distribution, reference_distribution(toy_logits(target), PROMPT, request))


@pytest.mark.parametrize("cascade", ["verified", "after another", "before another"])
def test_a_cascade_keeps_the_distribution(cascade: str) -> None:
    """Where what it has seen may be taken back."""
    target = ToyBackend.random(3, seed=4, sharpness=1.0)
    request = Request(4, Sampling(1.0))
    drafter, other = switching(recurrent(target, 5), max_gram(shortest=1)), neural(3, seed=7)
    made: Any = {
        "verified": lambda: VerticalDrafter(other.backend, drafter, FixedLength(1)),
        "after another": lambda: HorizontalDrafter([Part(other, 1), Part(drafter, 1)]),
        "before another": lambda: HorizontalDrafter([Part(drafter, 1), Part(other, 1)]),
    }[cascade]()
    distribution = loop_distribution(target, speculative(made, 2), PROMPT, request)
    check(distribution, reference_distribution(toy_logits(target), PROMPT, request))


@given(
    seed=st.integers(0, 999),
    prompt=st.lists(st.integers(0, 4), min_size=1, max_size=10),
    every=st.integers(1, 5),
    memory=st.floats(1, 30),
    after=st.one_of(st.none(), st.integers(2, 12)),
    drawn=st.booleans(),
    k=st.integers(1, 6),
    penalty=st.sampled_from([1.0, 1.5]),
)
@settings(max_examples=60, deadline=None)
def test_greedy_ids_are_the_target_s(
    seed: int, prompt: list[int], every: int, memory: float, after: int | None, drawn: bool,
    k: int, penalty: float,
) -> None:  # fmt: skip
    target = ToyBackend.random(5, seed)
    request = Request(30, Sampling(repetition_penalty=penalty), seed=1)
    plain = run(target, autoregressive(), prompt, request)
    parts = recurrent(target, 1), max_gram(shortest=1), recurrent(target, 2)
    drafter = switching(
        *parts, every=every, memory=memory, after=after, drawn=drawn, longest=max(2, k)
    )
    made = run(target, speculative(drafter, k), prompt, request)
    assert made.ids == plain.ids and made.target_calls <= plain.target_calls
    assert made.accepted + made.rounds + 1 == len(made.ids)


# -- who leads ------------------------------------------------------------------------------------


class Scripted:
    """Right so many times out of ten along an answer that counts up; else wrong."""

    parameters, context, calls, seen = 10, 1000, 0, 10_000

    def __init__(self, tenths: int) -> None:
        self.tenths, self.asked = tenths, 0

    def reset(self, prompt_ids: list[int]) -> None:
        pass

    def _draft(self, after: int, k: int) -> list[int]:
        return [t if t % 10 < self.tenths else -1 for t in range(after + 1, after + k + 1)]

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.asked += 1
        return Proposal(torch.tensor(self._draft(context[-1], asked.k)))

    def commit(self, context: list[int]) -> None:
        pass

    def acceptance(self, context: Any, drafts: Any, sampling: Any, likelihood: Any) -> Any:
        return [
            [
                float(a == b)
                for a, b in zip(self._draft(context[at - 1], k), context[at:], strict=False)
            ]
            for at, k in drafts.items()
        ]


def count_up(drafter: SwitchingDrafter, rounds: int, start: int = 5) -> list[int]:
    """The lengths of the drafts along an answer that counts up, two tokens a round."""
    drafter.reset([start])
    context, lengths = [start, start + 1], []
    for _ in range(rounds):
        lengths.append(len(drafter.propose(context, greedy(16)).ids))
        context += [context[-1] + 1, context[-1] + 2]
        drafter.commit(context)
    return lengths


def test_the_better_one_leads_though_another_drafts() -> None:
    """It is scored on tokens that it did not draft: no round is spent on trying it."""
    poor, good = Scripted(2), Scripted(9)
    assert isinstance(poor, ScorableDrafter)
    lengths = count_up(switching(poor, good), 30)
    assert poor.asked < 10 < good.asked and poor.asked + good.asked == 30
    assert lengths[-1] > lengths[0]  # and drafts further, by its record


def test_nothing_is_drafted_where_nothing_pays() -> None:
    hopeless = Scripted(0)
    dear = PassCosts((1.0, 1.5, 2.0))
    assert count_up(switching(hopeless, passes=dear), 30)[-1] == 0
    assert count_up(switching(hopeless, max_gram(), none=False, passes=dear), 30)[-1] == 1


def test_a_dear_draft_loses() -> None:
    assert count_up(switching(Scripted(5), draft_cost=0.06), 30)[-1] > 0
    assert count_up(switching(Scripted(5), draft_cost=1.0), 30)[-1] == 0


def test_once_the_first_drafts_until_then_and_the_best_from_then_on() -> None:
    poor, good = Scripted(2), Scripted(9)
    drafter = switching(poor, good, after=11)
    count_up(drafter, 5)
    assert (poor.asked, good.asked) == (5, 0)
    drafter.propose([*range(5, 17)], greedy(4))
    assert (poor.asked, good.asked) == (5, 1)
    good.tenths, poor.tenths = 0, 10  # it stays, whatever comes
    context = [*range(5, 17)]
    for _ in range(20):
        drafter.propose(context, greedy(4))
        context += [context[-1] + 1, context[-1] + 2]
        drafter.commit(context)
    assert poor.asked == 5
    count_up(drafter, 1)
    assert poor.asked == 6  # the next answer begins anew


def test_rounds_that_were_taken_back_are_not_scored() -> None:
    """As inside a cascade, whose target may reject what the drafter has seen accepted."""
    scored = list[int]()

    class Noting(Scripted):
        def acceptance(self, context: Any, drafts: Any, sampling: Any, likelihood: Any) -> Any:
            scored.extend(drafts)
            return super().acceptance(context, drafts, sampling, likelihood)

    drafter = switching(Noting(9), longest=2)
    drafter.reset([5])
    for context in ([5, 6], [5, 6, 7, 8], [5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 0, 0, 0, 0, 0]):
        drafter.commit(context)
    assert scored == [2, 4]
    drafter.commit([5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0])
    assert scored == [2, 4, 9]


def test_what_copies_nothing_is_not_chosen() -> None:
    model = Scripted(5)
    drafter = switching(max_gram(shortest=2), model)
    drafter.reset([5])
    drafter.propose([5, 6], greedy(4))
    assert model.asked == 1
    drafter.reset([5, 6, 7, 8, 5])
    assert drafter.propose([5, 6, 7, 8, 5, 6], greedy(2)).ids.tolist() == [7, 8]


def test_scores_cost_a_batch_now_and_then(tiny: Tiny) -> None:
    """The steps of a recurrent part that never drafts, over an answer: fewer, the more rounds are
    scored together."""
    target, steps = native(tiny(), torch.float64), []
    for every in (1, 4, 8):
        cell = recurrent(target, 1)
        drafter = switching(max_gram([*range(1, 16), 0]), cell, every=every, longest=3)
        drafter._choose = lambda start, asked: 0  # type: ignore[method-assign]
        result = run(target, speculative(drafter, 3), [3, 1, 4], Request(40))
        steps.append(cell.calls / result.rounds)
    assert steps[0] > steps[1] > steps[2] > 0
    assert steps[1] <= 3 / 4


def test_a_drafted_token_is_charged_as_the_dearest_part_s(tiny: Tiny) -> None:
    """Where cost is measured the prompt repeats itself: left to itself, copying would draft."""
    target = native(tiny(max_position_embeddings=512, vocab_size=110), torch.float64)
    copying, cell = max_gram([*range(1, 16), 0]), recurrent(target, 1)
    for drafter in (switching(copying, cell), hybrid(switching(cell, none=True))):
        assert measure(target, {"s": drafter}).draft_s["s"] > 0
        assert cell.calls > 0 == copying.calls


def test_seeds_and_answers_do_not_mix(tiny: Tiny) -> None:
    target = native(tiny(), torch.float64)
    drafter = switching(recurrent(target, 1), max_gram(shortest=1), recurrent(target, 2))
    strategy, request = speculative(drafter, 4), Request(40, seed=0)
    one = run(target, strategy, [3, 1, 4], request)
    run(target, strategy, [7, 7, 7], request)
    again = run(target, strategy, [3, 1, 4], request)
    assert (one.rounds, one.drafted, one.draft_calls) == (
        again.rounds, again.drafted, again.draft_calls
    )  # fmt: skip


# -- the recipe -----------------------------------------------------------------------------------

COPY = {"kind": "max_gram"}
CELL = {"kind": "recurrent", "drafter": "c"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"parts": [COPY, {"kind": "neural", "drafter": "a"}]}, "`neural` would have to catch up"),
        ({"parts": [{"kind": "hybrid", "model": CELL}, COPY]}, "`hybrid` would have to catch up"),
        ({"parts": [COPY], "none": False}, "nothing to choose from"),
        ({"parts": []}, "parts"),
        ({"parts": [COPY], "length": {"k": 3, "min_confidence": 0.5}}, "leave it out"),
        ({"parts": [{**CELL, "branch": [2]}, COPY]}, "only the target verifies a tree"),
        ({"parts": [COPY], "verifier": {"rule": "chow", "alpha": 0.1}}, "a copy has none"),
    ],
)
def test_mistakes_are_told(fields: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, DraftpickError), match=says):
        recipe(kind="switching", name="s", **fields)


def test_a_hybrid_takes_one_of_models_alone() -> None:
    body = {"kind": "switching", "parts": [CELL, {**CELL, "drafter": "d"}]}
    made = recipe(kind="hybrid", name="h", model=body)
    assert made.uses_cost_model and made.drafter.startswith("copies, or switching")
    with pytest.raises(ValueError, match="does not copy"):
        recipe(kind="hybrid", name="h", model={**body, "parts": [CELL, COPY]})
