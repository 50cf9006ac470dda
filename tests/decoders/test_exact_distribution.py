"""D2 to the last digit: every draw and every acceptance walked, through the shipped loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from decoder_toys import hybrid, max_gram, random_exit, reduced, suffix
from exactness import LENGTHS, MOST, PROMPT, SAMPLINGS, check, small_llama
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.methods.plain.drafter import NullDrafter
from decoders.protocols import Drafter
from decoders.records import Proposal, Request, Sampling, Verdict
from decoders.sampling.filters import probabilities
from decoders.sampling.randomness import Generator, RandomSource
from decoders.testing.chance import distance, loop_distribution, reference_distribution
from decoders.testing.toys import ToyBackend, neural, run, speculative
from decoders.verify import Lossless
from decoders.verify.step import acceptance, draft_distribution, leading

EARLIER = [([0, 1], [0, 2, 1, 0, 0]), ([1, 0], [1, 0, 1, 2]), ([0, 1, 0], [0, 2, 2])]
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "neural": lambda: neural(3, seed=7),
    "reduced": lambda: reduced([0, 2], 3, seed=8),
    "max-gram": lambda: max_gram(shortest=1),
    "bigram": lambda: max_gram([1, 2, -1], shortest=2),
    "hybrid": lambda: hybrid(neural(3, seed=7)),
    "suffix": lambda: suffix(*EARLIER),
    "suffix-tree": lambda: suffix(*EARLIER, width=2),
    "hybrid-suffix": lambda: hybrid(neural(3, seed=7), copying=suffix(*EARLIER)),
    "hybrid-dear": lambda: hybrid(neural(3, seed=7), draft_cost=5.0),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_distribution_is_the_target_s(drafter: str, sampling: str) -> None:
    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    request = Request(MOST, SAMPLINGS[sampling])
    distribution = loop_distribution(target, speculative(DRAFTERS[drafter](), 2), PROMPT, request)
    check(distribution, reference_distribution(target.next_logits, PROMPT, request))


@pytest.mark.every(3)
@pytest.mark.parametrize("length", ["confident", "sits-out"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_draft_s_length_does_not_change_the_distribution(drafter: str, length: str) -> None:
    target = ToyBackend.random(3, seed=4, sharpness=1.0)
    request = Request(MOST, SAMPLINGS["all"])
    distribution = loop_distribution(
        target, speculative(DRAFTERS[drafter](), LENGTHS[length]()), PROMPT, request
    )
    check(distribution, reference_distribution(target.next_logits, PROMPT, request))


@pytest.mark.parametrize("drafter", ["neural", "reduced", "max-gram"])
def test_the_distribution_of_answers_that_end_early(drafter: str) -> None:
    target = ToyBackend.random(3, seed=5, sharpness=1.0)
    request = Request(MOST, Sampling(1.0))
    distribution = loop_distribution(
        target, speculative(DRAFTERS[drafter](), 2), PROMPT, request, eos=(1,)
    )
    check(distribution, reference_distribution(target.next_logits, PROMPT, request, eos=(1,)))


def test_a_prompt_of_one_token() -> None:
    target = ToyBackend.random(3, seed=6, sharpness=1.0)
    request = Request(MOST, Sampling(1.0))
    distribution = loop_distribution(target, speculative(DRAFTERS["neural"](), 2), [2], request)
    check(distribution, reference_distribution(target.next_logits, [2], request))


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", ["plain", "all"])
@pytest.mark.parametrize("length", ["fixed", "confident", "sits-out"])
def test_an_early_exit_keeps_the_distribution(
    tiny: Callable[..., Path], sampling: str, length: str
) -> None:
    target = small_llama(tiny)
    fresh = small_llama(tiny)  # never opened for an exit, reads each context from its start
    request = Request(MOST, SAMPLINGS[sampling])
    strategy = speculative(random_exit(target, 1, seed=2), LENGTHS[length]())
    distribution = loop_distribution(target, strategy, PROMPT, request)
    check(
        distribution,
        reference_distribution(lambda context: fresh.prefill(context).logits, PROMPT, request),
    )


def test_an_early_exit_over_a_reduced_vocabulary_keeps_the_distribution(
    tiny: Callable[..., Path],
) -> None:
    from decoders.sampling.draft_vocab import DraftVocab

    target, fresh = small_llama(tiny, 4), small_llama(tiny, 4)
    request = Request(MOST, Sampling(1.0, top_k=3))
    strategy = speculative(random_exit(target, 1, seed=2, vocab=DraftVocab([0, 3], 4)), 2)
    distribution = loop_distribution(target, strategy, PROMPT, request)
    check(
        distribution,
        reference_distribution(lambda context: fresh.prefill(context).logits, PROMPT, request),
    )


# -- the check itself can fail --------------------------------------------------------------------


class Shortcut(Lossless):
    """Wrong on purpose: after a rejection draws from the target instead of the residual."""

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        p = probabilities(target_logits, sampling)
        accept = chance.accept(acceptance(p[:-1], draft_distribution(proposal, p), proposal.ids))
        accepted = int(leading(accept))
        return Verdict(accepted, int(chance.draw(p[accepted])), proposal.ids.tolist())


class Credulous(Lossless):
    """Wrong on purpose: takes a likely enough draft as it is."""

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: RandomSource
    ) -> Verdict:
        p = probabilities(target_logits, sampling)
        at = p[:-1].gather(1, proposal.ids.unsqueeze(1)).squeeze(1)
        accepted = int(leading(at > 0.2))
        return Verdict(accepted, int(chance.draw(p[accepted])), proposal.ids.tolist())


@pytest.mark.parametrize("wrong", [Shortcut, Credulous])
@pytest.mark.parametrize("drafter", ["neural", "reduced", "max-gram"])
def test_a_wrong_rule_is_caught(drafter: str, wrong: type[Lossless]) -> None:
    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    request = Request(MOST, Sampling(1.0))
    distribution = loop_distribution(
        target, speculative(DRAFTERS[drafter](), 2, wrong()), PROMPT, request
    )
    assert sum(distribution.values()) == pytest.approx(
        1.0, abs=1e-9
    )  # a distribution, but not the target's
    assert (
        distance(distribution, reference_distribution(target.next_logits, PROMPT, request)) > 1e-3
    )


def test_a_draft_that_lies_about_its_distribution_is_caught() -> None:
    target, drafter = ToyBackend.random(3, seed=3, sharpness=1.0), neural(3, seed=7)
    propose = drafter.propose

    def flattered(*args: object, **kwargs: object) -> Proposal:
        honest = propose(*args, **kwargs)  # type: ignore[arg-type]
        assert honest.probs is not None
        return Proposal(honest.ids, honest.probs.sqrt() / honest.probs.sqrt().sum(-1, True))

    drafter.propose = flattered  # type: ignore[method-assign]
    request = Request(MOST, Sampling(1.0))
    distribution = loop_distribution(target, speculative(drafter, 2), PROMPT, request)
    assert (
        distance(distribution, reference_distribution(target.next_logits, PROMPT, request)) > 1e-3
    )


# -- and with real randomness ---------------------------------------------------------------------


def test_samples_fit_the_distribution() -> None:
    """The shipped generator, 3000 answers; the seed is fixed, so this passes always or never."""
    from scipy.stats import chisquare

    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    request, chance, n = Request(3, Sampling(0.9)), Generator(torch.device("cpu"), 11), 3000
    strategy = speculative(DRAFTERS["neural"](), 2)
    counts = Counter(
        tuple(run(target, strategy, PROMPT, request, chance=chance).ids) for _ in range(n)
    )
    truth = reference_distribution(target.next_logits, PROMPT, request)
    likely = [ids for ids, p in truth.items() if p * n >= 5]
    rest = 1 - sum(truth[ids] for ids in likely)
    observed = [counts[ids] for ids in likely]
    expected = [truth[ids] * n for ids in likely]
    if rest > 1e-12:
        observed.append(n - sum(observed))
        expected.append(rest * n)
    assert chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("probs", [[0.2, 0.0, 0.8], [3.0, 1.0, 0.0]])
def test_the_generator_never_draws_the_impossible(probs: list[float]) -> None:
    chance, p = Generator(torch.device("cpu"), 0), torch.tensor(probs)
    drawn = Counter(int(chance.draw(p)) for _ in range(2000))
    assert set(drawn) == {i for i, weight in enumerate(probs) if weight > 0}
    for token, count in drawn.items():
        assert count / 2000 == pytest.approx(probs[token] / sum(probs), abs=0.04)


def test_what_is_followed_is_what_would_be_drawn_alone() -> None:
    """Two generators of one seed: one draws token by token, the other follows drafts, which are
    right in turn not at all, in part and throughout."""
    probs = torch.randn(200, 9, generator=torch.Generator().manual_seed(1)).softmax(-1)
    alone, following = Generator(torch.device("cpu"), 5), Generator(torch.device("cpu"), 5)
    drawn = [int(alone.draw(row)) for row in probs]
    at, round_ = 0, 0
    while at + 5 <= len(drawn):
        right = round_ % 4
        draft = torch.tensor([token + (i == right) for i, token in enumerate(drawn[at : at + 3])])
        tokens = following.follow(probs[at : at + 4], draft)
        assert tokens[: right + 1].tolist() == drawn[at : at + right + 1]
        following.use(right + 1)
        at, round_ = at + right + 1, round_ + 1
    assert len({*drawn}) == 9 and int(following.draw(probs[at])) == drawn[at]


@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 6),
    sampling=st.sampled_from([Sampling(1.0), Sampling(0.6, top_p=0.9), Sampling(1.3, top_k=3)]),
)
def test_a_copied_draft_leaves_the_target_s_own_text(seed: int, k: int, sampling: Sampling) -> None:
    """However long it is: with one seed the answer is that of the target alone."""
    target, request = ToyBackend.random(5, seed % 7, 3.0), Request(24, sampling, seed=seed)
    alone = run(target, speculative(NullDrafter(torch.device("cpu")), 0), PROMPT, request)
    copied = run(target, speculative(max_gram([1, 2, 3, 4, 0]), k), PROMPT, request)
    assert copied.ids == alone.ids and copied.drafted > 0


def test_acceptance_is_certain_above_one_and_never_at_zero() -> None:
    accept = Generator(torch.device("cpu"), 0).accept(torch.tensor([0.0, 1.0, 7.0]).repeat(1000))
    assert accept.view(1000, 3).all(0).tolist() == [False, True, True]
    assert not accept.view(1000, 3)[:, 0].any()
