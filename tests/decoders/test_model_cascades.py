"""Sequential cascades: their exact distributions, their limiting cases, and what always holds."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoder_toys import Tiny, Watched, max_gram, native, random_exit, reduced
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from decoders.methods.neural.drafter import NeuralDrafter
from decoders.papers.cascades.strategies import OracleCascade, SequenceCascade, TokenCascade
from decoders.records import Request, Sampling
from decoders.testing.chance import (
    Distribution,
    distance,
    distribution_error,
    loop_distribution,
    reference_distribution,
)
from decoders.testing.toys import ToyBackend, run

Logits = Callable[[list[int]], Tensor]

V, PROMPT, MOST, EXACT = 3, [0, 1, 0], 4, 1e-6
SAMPLINGS = {
    "plain": Sampling(1.0),
    "filtered": Sampling(0.7, top_k=2, top_p=0.9),
    "penalty": Sampling(1.2, repetition_penalty=1.8),
    "greedy": Sampling(),
}


def large() -> ToyBackend:
    return ToyBackend.random(V, seed=3, sharpness=1.5)


def small() -> ToyBackend:
    return ToyBackend.random(V, seed=11, sharpness=1.0)


def raw(logits: Tensor, context: list[int], sampling: Sampling) -> Tensor:
    """[V] probabilities at temperature 1, unfiltered, by transformers' own penalty."""
    penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    return penalty(torch.tensor([context]), logits.unsqueeze(0))[0].softmax(-1)


def greedy_or_distribution(
    logits: Logits, request: Request, eos: tuple[int, ...] = ()
) -> Distribution:
    """`reference_distribution`, which has no temperature 0, beside the one greedy answer."""
    if not request.sampling.greedy:
        return reference_distribution(logits, PROMPT, request, eos)
    made: list[int] = []
    while len(made) < request.max_new_tokens and not (made and made[-1] in eos):
        context = PROMPT + made
        made.append(int(raw(logits(context), context, request.sampling).argmax()))
    return {tuple(made): 1.0}


# -- distributions --------------------------------------------------------------------------------


# Where the draft model's token is taken, of the largest probabilities of both.
TAKEN: dict[Any, Callable[[Tensor, Tensor, float], Tensor]] = {
    TokenCascade: lambda p, q, alpha: q >= 1 - alpha,
    OracleCascade: lambda p, q, alpha: q >= p - alpha,
}


@pytest.mark.every(2)
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.35, 0.5, 0.65, 1.0])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("cascade", TAKEN)
def test_a_cascade_has_its_rule_s_distribution(cascade: Any, sampling: str, alpha: float) -> None:
    """At each position the draft model's distribution where Chow's rule or Diff takes its token,
    else the target's."""
    target, draft = large(), small()
    request = Request(MOST, SAMPLINGS[sampling])

    def mixed(context: list[int]) -> Tensor:
        both = target.next_logits(context), draft.next_logits(context)
        p, q = (raw(logits, context, request.sampling).max() for logits in both)
        return both[bool(TAKEN[cascade](p, q, alpha))]

    strategy = cascade("test", NeuralDrafter(ToyBackend(draft.table)), alpha)
    distribution = loop_distribution(target, strategy, PROMPT, request, eos=(2,))
    assert distance(distribution, greedy_or_distribution(mixed, request, eos=(2,))) < EXACT
    assert sum(distribution.values()) == pytest.approx(1.0)


@pytest.mark.every(3)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_sequence_cascade_has_chow_s_distribution(
    sampling: str, alpha: float, normalised: bool
) -> None:
    """The draft model's answers that are likely enough, and the target's for the rest."""
    target, draft = large(), small()
    request = Request(3, SAMPLINGS[sampling])
    kept: Distribution = {}
    for answer, weight in greedy_or_distribution(draft.next_logits, request, eos=(2,)).items():
        logs = []
        for at, token in enumerate(answer):
            context = [*PROMPT, *answer[:at]]
            logits = draft.next_logits(context)
            logs.append(math.log(raw(logits, context, request.sampling)[token]))
        if math.exp(sum(logs) / (len(logs) if normalised else 1)) >= 1 - alpha:
            kept[answer] = weight
    truth, left = dict(kept), 1 - sum(kept.values())
    for answer, weight in greedy_or_distribution(target.next_logits, request, eos=(2,)).items():
        truth[answer] = truth.get(answer, 0.0) + left * weight
    strategy = SequenceCascade("test", NeuralDrafter(ToyBackend(draft.table)), alpha, normalised)
    assert distance(loop_distribution(target, strategy, PROMPT, request, eos=(2,)), truth) < EXACT


@pytest.mark.parametrize(
    ("cascade", "alpha"), [(TokenCascade, 0.4), (TokenCascade, 1.0), (SequenceCascade, 1.0)]
)
def test_a_draft_model_over_a_part_of_the_vocabulary(cascade: Any, alpha: float) -> None:
    target, drafter = large(), reduced([0, 2], V, 8)
    request, table = Request(3, Sampling(1.0, repetition_penalty=1.5)), drafter.backend.table

    def q(context: list[int]) -> Tensor:
        """The draft's row over its two tokens, spread over the target's three."""
        inside = [{0: 0, 2: 1}.get(token, 2) for token in context[-2:]]
        wide = torch.full((V,), -torch.inf, dtype=torch.float64)
        wide[torch.tensor([0, 2])] = table[inside[0], inside[-1], :2]
        return wide

    def mixed(context: list[int]) -> Tensor:
        sure = raw(q(context), context, request.sampling).max() >= 1 - alpha
        return q(context) if sure else target.next_logits(context)

    error = distribution_error(
        target, cascade("t", drafter, alpha), PROMPT, request, next_logits=mixed
    )
    assert error < EXACT


def test_a_wrong_rule_is_caught() -> None:
    """Deferring below alpha instead of 1 - alpha is another distribution."""
    target, draft, alpha = large(), small(), 0.4
    request = Request(MOST, SAMPLINGS["plain"])
    right, wrong = (
        loop_distribution(target, TokenCascade("t", NeuralDrafter(draft), a), PROMPT, request)
        for a in (alpha, 1 - alpha)
    )
    assert distance(right, wrong) > 1e-3


# -- other drafters -------------------------------------------------------------------------------


def test_max_gram_writes_what_matches_and_the_target_the_rest() -> None:
    target = ToyBackend.random(5, seed=2)
    strategy = TokenCascade("t", max_gram(shortest=2, longest=2), 0.5)
    result = run(target, strategy, [1, 2, 3], Request(12))
    context, copied = [1, 2, 3], 0
    for token in result.ids:
        matches = [i for i in range(2, len(context)) if context[i - 2 : i] == context[-2:]]
        copied += bool(matches)
        chosen = int(target.next_logits(context).argmax())
        assert token == (context[matches[-1]] if matches else chosen)
        context.append(token)
    assert 0 < result.accepted == copied < result.drafted == 12


@pytest.mark.parametrize("cascade", TAKEN)
def test_an_early_exit_as_draft_model(tiny: Tiny, cascade: Any) -> None:
    """It shares the target's lower layers; the answer is that of one that reads all anew."""
    target, fresh = native(tiny(), torch.float64), native(tiny(), torch.float64)
    drafter, other = (random_exit(t, 1, seed=3, noise=0.1) for t in (target, fresh))
    alpha, accepted = 0.35 if cascade is TokenCascade else 0.02, 0
    for prompt in ([3, 1, 4, 1, 5], [7]):
        result = run(target, cascade("t", drafter, alpha), prompt, Request(14))
        accepted += result.accepted
        context = list(prompt)
        for token in result.ids:
            logits = fresh.prefill(context).logits
            fresh.truncate(0)
            drafted = _from_scratch(other, fresh, context)
            q, p = drafted.softmax(-1).max(), logits.softmax(-1).max()
            taken = drafted if TAKEN[cascade](p, q, alpha) else logits
            assert token == int(taken.argmax())
            context.append(token)
    assert 0 < accepted < 28


def _from_scratch(drafter: Any, target: Any, context: list[int]) -> Tensor:
    """[V] the exit's logits after `context`, through the adapter's uncached form."""
    states = target.lower_batch(torch.tensor([context]), 1)
    with torch.inference_mode():
        return drafter.head.adapter(states)[0, -1] @ target.weights.embedding.T


# -- limits and counts ----------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "counts"), [(1.0, (15, 1, 1)), (0.0, (0, 15, 14))])
@pytest.mark.parametrize("cascade", [TokenCascade, SequenceCascade])
def test_where_one_model_writes_all(
    cascade: Any, alpha: float, counts: tuple[int, int, int]
) -> None:
    drafter = NeuralDrafter(ToyBackend.random(6, 2))
    result = run(ToyBackend.random(6, 1), cascade("t", drafter, alpha), [4, 2], Request(15))
    assert (result.accepted, result.target_calls, result.rounds) == counts


def test_an_oracle_never_prefers_a_model_to_itself() -> None:
    target = ToyBackend.random(6, 1)
    strategy = OracleCascade("t", NeuralDrafter(ToyBackend(target.table)), 0.0)
    result = run(target, strategy, [4, 2], Request(15))
    assert (result.accepted, result.target_calls, result.rounds) == (15, 15, 14)
    assert result.accepted_per_position == [15]


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])
def test_a_token_cascade_asks_the_target_once_for_each_deferred_token(seed: int) -> None:
    target = Watched(ToyBackend.random(5, seed).table)
    draft = ToyBackend.random(5, seed + 50, sharpness=1.0)
    result = run(target, TokenCascade("t", NeuralDrafter(draft), 0.55), [3, 0], Request(20))
    q = draft.next_logits
    sure = [
        float(q([3, 0, *result.ids[:at]]).softmax(-1).max()) >= 0.45
        for at in range(len(result.ids))
    ]
    deferred = sure.count(False)
    assert 0 < deferred < 20
    assert (result.drafted, result.accepted) == (20, 20 - deferred)
    # the prompt's own pass answers a deferred first token
    assert len(target.widths) == result.target_calls == deferred + sure[0]
    # each call reads what the target had not read, the prompt's last token anew with the first one
    last = max(at for at, drafted in enumerate(sure) if not drafted)
    assert sum(target.widths) == 2 + (1 + last if target.widths[1:] else 0)
    runs = [len(list(group)) for drafted, group in itertools.groupby(sure) if drafted]
    expected = [sum(run > at for run in runs) for at in range(max(runs))]
    assert result.accepted_per_position == expected
    assert result.rounds == result.target_calls - 1 + sure[-1]


# -- recipes --------------------------------------------------------------------------------------
