"""A hybrid takes, round by round, what promises more; its distribution is walked in
test_exact_distribution.py, its promises as an arm in test_contract.py."""

import pytest
from decoder_toys import CPU, Watched, greedy, hybrid

from decoders.costs.pass_costs import PassCosts
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.methods.hybrid.drafter import HybridDrafter
from decoders.methods.max_gram.copying import BANDS, CopyChances, copied_acceptance
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.requests.reading import PREFILL_CHUNK
from decoders.sampling.randomness import Generator
from decoders.testing.toys import Scripted, ToyBackend, neural


def draft(drafter: HybridDrafter, context: list[int], k: int = 4) -> list[int]:
    made = drafter.propose(context, greedy(k))
    return made.ids.tolist()


LONG_MATCH = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6]


def test_a_long_match_is_copied_and_where_nothing_matches_the_model_drafts() -> None:
    model = Scripted(5, 5, 5, 5)
    drafter = hybrid(model)
    drafter.reset(LONG_MATCH)
    assert draft(drafter, LONG_MATCH, 3) == [7, 8, 9]
    assert not model.asked
    drafter.reset([1, 2, 3])
    assert {*draft(drafter, [1, 2, 3])} == {5}
    assert len(model.asked) == 1


def test_copies_that_fall_lose_to_the_model_and_win_again_when_they_stand() -> None:
    model = Scripted()
    drafter = hybrid(model)
    context = list(LONG_MATCH)
    drafter.reset(context)
    for turn in range(30):  # what follows is always new, and the model knows it
        model.tokens = [100 + turn] * 4
        draft(drafter, context)
        context = [*context, *model.tokens, 0]
        drafter.commit(context)
        context = [*context, *LONG_MATCH[:6]]
    asked = len(model.asked)
    assert asked > 15
    draft(drafter, context)
    assert len(model.asked) == asked + 1
    model.tokens = [99] * 4
    for _ in range(30):  # what follows is always the same, and the model is wrong
        draft(drafter, context)
        context = [*context, 7, 8, 9, 9, 9]
        drafter.commit(context)
        context = [*context, *LONG_MATCH[:6]]
    asked = len(model.asked)
    assert draft(drafter, context, 3) == [7, 8, 9]
    assert len(model.asked) == asked


def test_nothing_is_drafted_where_nothing_pays_until_it_may_have_changed() -> None:
    model = Scripted(5)
    drafter = hybrid(model, draft_cost=0.5)
    context = [1, 2, 3]
    drafter.reset(context)
    lengths = []
    for turn in range(40):
        lengths.append(len(draft(drafter, context)))
        context = [*context, 100 + turn]  # the model is always wrong
        drafter.commit(context)
    assert lengths[0] == 1
    assert 0 in lengths
    assert 1 in lengths[lengths.index(0) :]


def test_a_dear_model_drafts_less() -> None:
    lengths = []
    for cost in (0.0, 0.1, 0.3):
        drafter = hybrid(Scripted(*[5] * 16), draft_cost=cost)
        drafter.reset([1, 2, 3])
        lengths.append(len(draft(drafter, [1, 2, 3], 16)))
    assert lengths[0] > lengths[1] > lengths[2] == 1


def test_wide_passes_end_a_copy() -> None:
    dear_from_three = PassCosts((1.0, 1.0, 3.0, 3.0, 3.0))
    drafter = hybrid(Scripted(0), passes=dear_from_three)
    drafter.reset(LONG_MATCH)
    assert draft(drafter, LONG_MATCH, 4) == [7]


def test_the_model_is_told_of_every_round() -> None:
    model = Scripted(0)
    model.parameters, model.context = 10, 1000
    drafter = hybrid(model)
    drafter.reset(LONG_MATCH)
    draft(drafter, LONG_MATCH)
    drafter.commit([*LONG_MATCH, 7, 3])
    assert model.committed == [[*LONG_MATCH, 7, 3]]
    assert (drafter.parameters, drafter.context) == (10, 1000)


def test_chances_start_at_those_of_all_answers_and_follow_this_one() -> None:
    chances = CopyChances(weight=4)
    for matched in range(1, 20):
        assert chances(matched) == pytest.approx(copied_acceptance(matched))
    chances.observe([2, 3, 4], accepted=1, known=3)  # the third was never tried
    assert chances(2) == pytest.approx((4 * copied_acceptance(2) + 1) / 5)
    assert chances(3) == pytest.approx(4 * copied_acceptance(3) / 5)
    assert chances(8) == pytest.approx(copied_acceptance(8))
    chances.reset()
    assert chances(2) == pytest.approx(copied_acceptance(2))


def test_a_copy_is_trusted_less_the_warmer_the_answer() -> None:
    for matched in (1, 4, 12, 20):
        shares = [copied_acceptance(matched, warmth / 10) for warmth in range(25)]
        assert shares == sorted(shares, reverse=True)
        assert len(set(shares[:12])) == 12 and 0 <= shares[-1] < 1
    assert copied_acceptance(3, 0.7) == 0.56 and copied_acceptance(3, 1.0) == pytest.approx(0.42)
    model = Scripted(0, 0, 0)
    drafter = hybrid(model)
    short_match = [1, 2, 3, 4, 5, 6, 1, 2]
    drafter.reset(short_match)
    cold, warm = (
        drafter.propose(short_match, DraftRequest(3, Sampling(t), Generator(CPU, 0))).ids.tolist()
        for t in (0.0, 1.0)
    )
    assert cold == [3, 4, 5]
    assert set(warm) == {0}


def test_what_the_answer_has_not_reached_is_not_learnt() -> None:
    chances = CopyChances()
    chances.observe([12, 12, 12, 12], accepted=2, known=2)
    assert chances(12) == pytest.approx((4 * copied_acceptance(12) + 2) / 6)
    chances.observe([0, 0], accepted=0, known=2)  # from a table, not copied
    assert chances(BANDS[0]) == pytest.approx(copied_acceptance(1))


def test_a_dear_model_is_tried_at_first_and_seldom_then() -> None:
    model = Scripted(5)
    drafter = hybrid(model, draft_cost=0.9)
    context, asked = [1, 2, 3], []
    drafter.reset(context)
    for turn in range(40):
        draft(drafter, context)
        asked.append(len(model.asked))
        context = [*context, 100 + turn]
        drafter.commit(context)
    tries = [turn for turn, count in enumerate(asked) if count > (asked[turn - 1] if turn else 0)]
    assert tries == [0, 5, 14, 31]  # 4, 8 and 16 rounds apart, as each was rejected


def test_a_model_that_seldom_drafts_reads_seldom() -> None:
    model = neural(3, seed=2)
    drafter = hybrid(model, draft_cost=2.0)
    context = [0, 1, 2]
    drafter.reset(context[:-1])
    draft(drafter, context, 1)
    before = model.calls
    for _ in range(14):
        context = [*context, 0]
        drafter.commit(context)
        context = [*context, 0]
        drafter.commit(context)
    assert model.calls - before == 28 // 8


def test_a_model_that_cannot_pay_is_never_asked() -> None:
    """Not even if all of its tokens were accepted."""
    model = Scripted(5)
    drafter = hybrid(model, draft_cost=1.0)
    drafter.reset([1, 2])
    for length in range(3, 60):
        draft(drafter, [*range(length)])
        drafter.commit([*range(length + 1)])
    assert not model.asked


def test_beside_others_a_model_that_reads_in_turn_sits_out() -> None:
    """It reads nothing meanwhile, and drafts as ever afterwards, once it has read the rest in
    parts."""
    backend, running = Watched(ToyBackend.random(64, seed=2, sharpness=1.0).table), 1
    model = NeuralDrafter(backend)
    shared = SharedCosts((1, 8), (1, 2), ((1.0, 1.1), (3.0, 5.0)), narrow=8)
    passes = UnderLoad((1.0, 1.1, 1.2), 1.0, shared, lambda: running)
    assert passes.turns() == 1
    drafter = hybrid(model, 0.4, passes, in_turn=True)
    context = [60, 61, 62]
    drafter.reset(context[:-1])
    assert len(draft(drafter, context)) > 0
    running = 8
    assert passes.turns() == pytest.approx(8 / 3)
    for turn in range(30):
        context = [*context, turn]
        calls = model.calls
        drafter.commit(context)
        assert draft(drafter, context) == [] and model.calls == calls
    assert model.backend.length == 3  # what was rejected is forgotten all the same
    drafter.commit(context[:2])  # a cascade takes tokens back
    assert model.backend.length == 1
    context = [*context[:2], *[3] * PREFILL_CHUNK, *range(40, 55)]
    drafter.commit(context)
    running, fresh = 1, neural(64, seed=2)
    fresh.reset(context[:-1])
    assert draft(drafter, context, 1) == fresh.propose(context, greedy(1)).ids.tolist()
    assert max(backend.widths) == PREFILL_CHUNK
