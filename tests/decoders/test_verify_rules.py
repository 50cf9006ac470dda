"""Rules as functions of distributions: sums, budgets, ties and the ends of their ranges."""

from functools import partial

import pytest
import torch
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.papers.rules.deferral import deferral, loss
from decoders.papers.rules.lossy import lossy_budget, lossy_star
from decoders.papers.rules.step import one_hot

F64 = torch.float64
diff, opt = (partial(deferral, rule=rule) for rule in ("diff", "opt"))


def kl(pi: Tensor, p: Tensor) -> Tensor:
    """[K] KL(pi || p), slowly and in float64."""
    pi, p = pi.to(F64), p.to(F64)
    return torch.where(pi > 0, pi * (pi.log() - p.log()), 0.0).sum(-1)


def normal(x: Tensor) -> Tensor:
    return x.to(F64) / x.to(F64).sum(-1, True)


# -- pairs of distributions, from alike to disjoint -----------------------------------------------


def softmaxes(vocab: int, sharpness: float, apart: float, seed: int, dtype: torch.dtype) -> Tensor:
    """[2, 4, V] p and q of four rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(4, vocab, generator=generator, dtype=F64)
    moved = logits + apart * torch.randn(4, vocab, generator=generator, dtype=F64)
    return torch.stack([logits, moved]).to(dtype).softmax(-1)


def hard(dtype: torch.dtype) -> dict[str, Tensor]:
    """[2, 1, 8] each: what random logits never give."""
    rows = {
        "same": ([4, 2, 1, 1, 0, 0, 0, 0], [4, 2, 1, 1, 0, 0, 0, 0]),
        "disjoint": ([1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 3, 1, 0, 0, 0, 0]),
        "one-hots": ([1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]),
        "one-hot-draft": ([4, 2, 1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0]),
        "one-hot-target": ([0, 0, 1, 0, 0, 0, 0, 0], [4, 2, 1, 1, 1, 1, 1, 1]),
        "draft-goes-further": ([4, 4, 0, 0, 0, 0, 0, 0], [1, 2, 3, 2, 0, 0, 0, 0]),
        "target-goes-further": ([1, 2, 3, 2, 1, 1, 1, 1], [4, 4, 0, 0, 0, 0, 0, 0]),
        "ties": ([1, 1, 1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 0, 0, 0, 0]),
        "tiny": ([1, 1e-30, 1e-12, 1e-6, 1e-3, 0, 0, 0], [1e-30, 1, 1e-6, 1e-12, 1e-3, 0, 0, 0]),
    }
    return {k: normal(torch.tensor(v, dtype=F64)).unsqueeze(1).to(dtype) for k, v in rows.items()}


def check_budget(p: Tensor, q: Tensor, budget: float) -> None:
    """Tolerances: float32 rounds each of V terms, float64 next to nothing."""
    tolerance = 1e-5 if p.dtype == torch.float32 else 1e-10
    pi = lossy_budget(p, q, kl_budget=budget)
    assert pi.dtype == p.dtype and bool((pi >= 0).all())
    assert float((pi.to(F64).sum(-1) - 1).abs().max()) < tolerance
    spent = kl(pi, normal(p))
    assert bool((spent <= budget + tolerance).all())
    # the budget is used, or the draft kept as far as the target can say it
    said = torch.where(p > 0, q, torch.zeros_like(q))
    kept = (pi >= said - tolerance).all(-1)
    assert bool((kept | (spent >= budget * (1 - 1e-4) - tolerance)).all())


def check_star(p: Tensor, q: Tensor, alpha: float) -> None:
    tolerance = 1e-5 if p.dtype == torch.float32 else 1e-10
    pi = lossy_star(p, q, alpha=alpha)
    assert pi.dtype == p.dtype
    assert float((pi.to(F64).sum(-1) - 1).abs().max()) < tolerance
    held = torch.minimum(q, p / (1 - alpha))
    raised = pi > held + tolerance  # those are p / beta, for one beta of at least 1 in each row
    least = torch.where(raised, pi / p, torch.inf).amin(-1)
    most = torch.where(raised, pi / p, 0.0).amax(-1)
    assert bool((least >= most * (1 - 1e-3)).all())
    assert bool((most <= 1 + tolerance).all())
    assert bool((pi >= held - tolerance).all())


BUDGETS = [0.0, 1e-6, 1e-3, 0.1, 1.0, 20.0]


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("vocab", [2, 8, 1000, 32000])
def test_pi_sums_to_one_and_keeps_its_budget(vocab: int, dtype: torch.dtype) -> None:
    for seed, (sharpness, apart) in enumerate([(0.1, 0.1), (2, 1), (4, 4), (12, 6), (40, 40)]):
        p, q = softmaxes(vocab, sharpness, apart, seed, dtype)
        for budget in BUDGETS:
            check_budget(p, q, budget)
        for alpha in (0.0, 0.1, 0.5, 0.99):
            check_star(p, q, alpha)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", hard(F64))
def test_supports_that_differ(case: str, dtype: torch.dtype) -> None:
    p, q = hard(dtype)[case]
    for budget in BUDGETS:
        check_budget(p, q, budget)
    for alpha in (0.0, 0.3, 0.99):
        check_star(p, q, alpha)


@pytest.mark.parametrize("kept", [1, 2, 300])
def test_a_draft_of_a_part_of_the_vocabulary(kept: int) -> None:
    """Rows that do not know the same part, and one that knows all."""
    p, q = softmaxes(1000, 4, 4, 0, F64)
    generator = torch.Generator().manual_seed(kept)
    for row in q[1:]:
        row[torch.randperm(1000, generator=generator)[kept:]] = 0
    for draft in (normal(q), normal(q[1:])):
        for budget in BUDGETS:
            check_budget(p[-len(draft) :], draft, budget)
        for alpha in (0.0, 0.3, 0.99):
            check_star(p[-len(draft) :], draft, alpha)


def test_ratios_beyond_what_a_float_can_be() -> None:
    p = normal(torch.tensor([[1e308, 1e-9, 1e-9, 0, 1, 1, 1, 1]], dtype=F64))
    q = normal(torch.tensor([[0, 1, 3, 1, 1, 1, 1, 1]], dtype=F64))
    assert 0 < p[0, 1] < 1e-310
    distributions = [lossy_budget(p, q, kl_budget=b) for b in BUDGETS]
    assert all(float(kl(pi, p)) <= b + 1e-10 for pi, b in zip(distributions, BUDGETS, strict=True))
    for pi in (*distributions, lossy_star(p, q, alpha=0.5)):
        assert float(pi.sum()) == pytest.approx(1.0, abs=1e-10)


def test_a_token_that_the_target_all_but_excludes_lets_the_budget_be_used() -> None:
    """The divergence is steep where its mass is all but gone."""
    p = normal(torch.tensor([[0.25, 1e-40, 1.0, 0.5]], dtype=F64))
    q = normal(torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=F64))
    check_budget(p, q, 0.375)


weights = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-9, 1.0), st.sampled_from([1e-40, 1e-20, 1.0, 1e6])),
    min_size=8,
    max_size=8,
).filter(any)


@given(weights, weights, st.floats(0, 5), st.floats(0, 0.999))
@examples(150)
def test_any_eight_weights(one: list[float], other: list[float], budget: float, a: float) -> None:
    p, q = (normal(torch.tensor([w], dtype=F64)) for w in (one, other))
    check_budget(p, q, budget)
    check_star(p, q, a)


@pytest.mark.parametrize("budget", [0.01, 0.2])
def test_no_distribution_within_the_budget_keeps_more_drafts(budget: float) -> None:
    """Against distributions tried at random, moved towards the target until they fit."""
    p, q = softmaxes(6, 1.5, 2.0, 4, F64)
    best = torch.minimum(lossy_budget(p, q, kl_budget=budget), q).sum(-1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        noise = torch.randn(4, 6, generator=generator, dtype=F64)
        tried = (q.log() + 0.3 * noise).softmax(-1)
        for _ in range(60):
            tried = torch.where((kl(tried, p) > budget).unsqueeze(-1), 0.9 * tried + 0.1 * p, tried)
        assert bool((kl(tried, p) <= budget).all())
        assert bool((torch.minimum(tried, q).sum(-1) <= best + 1e-9).all())


# -- deferral -------------------------------------------------------------------------------------


def test_the_loss_of_a_one_hot_is_nothing() -> None:
    hot = torch.tensor([[0.0, 1.0, 0.0]], dtype=F64)
    assert loss(hot, False).item() == 0 and loss(hot, True).item() == 0


@given(weights, weights, st.integers(0, 7), st.integers(0, 7), st.floats(0, 2), st.booleans())
@examples(150)
def test_greedy_opt_is_greedy_diff(
    one: list[float], other: list[float], i: int, j: int, alpha: float, log_loss: bool
) -> None:
    """Lemma 8: between one-hots the total variation is 1, or there is nothing to decide."""
    p_raw, q_raw = (normal(torch.tensor([w], dtype=F64)) for w in (one, other))
    target, draft = (one_hot(torch.tensor([k]), p_raw) for k in (i, j))
    arguments = (target, draft, p_raw, q_raw)
    same = opt(*arguments, alpha=alpha, log_loss=log_loss)
    assert same.equal(diff(*arguments, alpha=alpha, log_loss=log_loss))
