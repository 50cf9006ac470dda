"""The law of whole answers to the last digit: every draw and every acceptance walked, through the
shipped loop, by the clocks of places and in turn."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cascade_toys import toy, vertical
from decoder_toys import Tiny, random_exit, recurrent
from effort import slow_after
from exactness import (
    DRAFTERS,
    LENGTHS,
    MOST,
    PROMPT,
    SAMPLINGS,
    SHORT,
    Case,
    copier,
    cs_nest,
    parts,
    small_llama,
    tree,
    widened,
)

from decoders.lengths import FixedLength
from decoders.methods.plain.drafter import NullDrafter
from decoders.papers.rules.lossy import Lenient, Lossless
from decoders.papers.rules.step import acceptance, draft_distribution, leading
from decoders.protocols import Drafter
from decoders.records import Proposal, Request, Sampling, Verdict
from decoders.sampling.draft_vocab import DraftVocab
from decoders.sampling.filters import probabilities
from decoders.sampling.randomness import Generator
from decoders.testing.chance import EXACT, distribution_error, reference_distribution
from decoders.testing.toys import ListedLengths, ToyBackend, neural, run, speculative
from decoders.verify import Coupled

CHAINS = [name for name in DRAFTERS if not any(kind in name for kind in ("tree", "wide"))]


def error(case: Case) -> float:
    target = ToyBackend.random(case.vocab, case.seed, 1.0)
    strategy = speculative(case.drafter(target), case.length(), case.verifier())
    return distribution_error(target, strategy, case.prompt, case.request, case.eos)


@pytest.mark.every(6)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_distribution_is_the_target_s(name: str, sampling: str) -> None:
    """Four new tokens: drafts of two, verified."""
    most = 3 if name in SHORT else MOST
    assert error(Case(DRAFTERS[name], sampling=SAMPLINGS[sampling], most=most)) < EXACT


@pytest.mark.every(6)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CHAINS)
def test_speculative_sampling_keeps_the_distribution(name: str, sampling: str) -> None:
    case = Case(DRAFTERS[name], sampling=SAMPLINGS[sampling], verifier=Lossless)
    assert error(case) < EXACT


@pytest.mark.every(3)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_answer_is_plain_decoding_s_to_the_same_seed(name: str, sampling: str) -> None:
    target = ToyBackend.random(3, 3, 1.0)
    plain = speculative(NullDrafter(target.device), 0)
    arm = speculative(DRAFTERS[name](target), LENGTHS["fixed"]())
    for seed in range(8):
        request = Request(12, SAMPLINGS[sampling], seed=seed)
        ids = [run(target, each, PROMPT, request).ids for each in (plain, arm)]
        assert ids[0] == ids[1]


@pytest.mark.every(4)
@pytest.mark.parametrize("length", ["confident", "sits-out", "stranger"])
@pytest.mark.parametrize("name", [name for name in DRAFTERS if "tree" not in name])
def test_the_draft_s_length_does_not_change_the_distribution(name: str, length: str) -> None:
    sampling = SAMPLINGS["plain" if "-" in name else "all"]
    most = 3 if name in (*SHORT, "two-deep") else MOST
    assert error(Case(DRAFTERS[name], LENGTHS[length], sampling, most, seed=4)) < EXACT


@pytest.mark.parametrize(
    "name", ["neural", "reduced", "max-gram", "lenient", "cs-drafting", "hierarchy"]
)
def test_answers_that_end_early_and_a_short_prompt(name: str) -> None:
    assert error(Case(DRAFTERS[name], prompt=[2], eos=(1,), seed=5)) < EXACT


DEEPER = {
    "several verifications for one": Case(
        lambda _: vertical(toy(1, 2), neural(2, 7), 1, 1.5), lambda: FixedLength(3), vocab=2
    ),
    "of two models": Case(
        lambda _: vertical(toy(2, 2), vertical(toy(1, 2), copier(), 1, 3.0), 1),
        lambda: FixedLength(3), vocab=2,
    ),
    "of a nest": Case(lambda _: cs_nest(2), lambda: FixedLength(3), vocab=2),
    "a draft after a sibling": Case(
        lambda _: widened(neural(2, 7), 2), lambda: FixedLength(1), vocab=2
    ),
    "and a verified one": Case(
        lambda _: widened(vertical(toy(11, 2), neural(2, 7), 1, 2.0), 2),
        lambda: FixedLength(1), vocab=2,
    ),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", DEEPER)
def test_a_second_draft_keeps_the_distribution(name: str) -> None:
    """Five tokens of two: drafts that follow on a round of every kind."""
    assert error(DEEPER[name]._replace(most=5)) < EXACT


TREES = {
    "two depths": Case(lambda _: tree(2, 2), sampling=SAMPLINGS["top_k"]),
    "two depths of every branch": Case(
        lambda _: tree(2, 2, every=True), sampling=SAMPLINGS["top_k"]
    ),
    "a chain after the children": Case(
        lambda _: tree(2), sampling=Sampling(1.0, top_k=2), prompt=[2]
    ),
    "ends": Case(
        lambda _: tree(2, 1, seed=8), lambda: ListedLengths([1, 0, 2]), most=3, eos=(1,)
    ),
    "ends of every branch": Case(
        lambda _: tree(2, 1, every=True, seed=8), lambda: ListedLengths([1, 0, 2]),
        most=3, eos=(1,),
    ),
    "cut short": Case(
        lambda _: tree(2, 2, every=True, seed=8), LENGTHS["confident"], SAMPLINGS["top_k"]
    ),
    "two depths, all": Case(lambda _: tree(2, 2), sampling=SAMPLINGS["all"]),
    "two depths, plain": Case(lambda _: tree(2, 2)),
    "a chain along each branch": Case(lambda _: tree(2, 1, every=True)),
    "three siblings of a nest": Case(lambda _: widened(cs_nest(), 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_after(6, TREES))
def test_deeper_trees_keep_the_distribution(name: str) -> None:
    assert error(TREES[name]) < EXACT


ON_A_MODEL: dict[str, Callable[[Any], Drafter]] = {
    "exit": lambda target: random_exit(target, 1, seed=2),
    "exit-then-copies": lambda target: parts(random_exit(target, 1, seed=2), copier()),
    "exit-siblings": lambda target: widened(random_exit(target, 1, seed=2), 2, 2),
    "exit-reduced": lambda target: random_exit(target, 1, seed=2, vocab=DraftVocab([0, 2], 3)),
    "recurrent": lambda target: recurrent(target, 2),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("sampling", ["plain", "all"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ON_A_MODEL)
def test_a_llama_s_distribution(name: str, length: str, sampling: str, tiny: Tiny) -> None:
    """Against a model that was never opened for an exit and reads each context from its start."""
    target, fresh = small_llama(tiny), small_llama(tiny)
    most = 3 if name == "exit-siblings" and length != "sits-out" else MOST
    strategy = speculative(ON_A_MODEL[name](target), LENGTHS[length]())
    asked, read = Request(most, SAMPLINGS[sampling]), lambda ids: fresh.prefill(ids).logits
    assert distribution_error(target, strategy, PROMPT, asked, next_logits=read) < EXACT


# -- the check itself can fail --------------------------------------------------------------------


class Shortcut(Lossless):
    """Wrong on purpose: after a rejection draws from the target instead of the residual."""

    def verify(self, *given: Any) -> Verdict:
        proposal, target_logits, sampling, chance, _ = given
        p = probabilities(target_logits, sampling)
        accept = chance.accept(acceptance(p[:-1], draft_distribution(proposal, p), proposal.ids))
        accepted = int(leading(accept))
        return Verdict(accepted, int(chance.draw(p[accepted])), proposal.ids.tolist())


class Credulous(Lossless):
    """Wrong on purpose: takes a likely enough draft as it is."""

    def verify(self, *given: Any) -> Verdict:
        proposal, target_logits, sampling, chance, _ = given
        p = probabilities(target_logits, sampling)
        at = p[:-1].gather(1, proposal.ids.unsqueeze(1)).squeeze(1)
        accepted = int(leading(at > 0.2))
        return Verdict(accepted, int(chance.draw(p[accepted])), proposal.ids.tolist())


class Clumsy(Coupled):
    """Wrong on purpose: takes any child of the newest token that the target gives a chance."""

    def verify(self, *args: Any) -> Verdict:
        proposal, *_ = args
        made = super().verify(*args)
        if made.path == [] and proposal.parents is not None:
            return Verdict(1, made.next_token, proposal.ids.tolist(), path=[0])
        return made


class Doubled(Coupled):
    """Wrong on purpose: the clocks of a place are asked again for the one that follows."""

    def verify(self, *args: Any) -> Verdict:
        *others, place = args
        return super().verify(*others, place - 1)


def flattering(drafter: Drafter) -> Drafter:
    """Makes a drafter lie about its distribution."""
    propose = drafter.propose

    def flattered(*args: Any, **kwargs: Any) -> Proposal:
        honest = propose(*args, **kwargs)
        return Proposal(honest.ids, honest.probs.sqrt() / honest.probs.sqrt().sum(-1, True))

    drafter.propose = flattered  # type: ignore[method-assign]
    return drafter


WRONG = {
    **{
        f"{name}-{rule.__name__}": Case(DRAFTERS[name], verifier=rule)
        for name in ("neural", "reduced", "max-gram")
        for rule in (Shortcut, Credulous)
    },
    "clumsy": Case(lambda _: tree(2), most=3, verifier=Clumsy),
    "doubled": Case(lambda _: neural(3, 7), verifier=Doubled),
    "liar": Case(lambda _: flattering(neural(3, 7)), verifier=Lossless),
    "recurrent liar": Case(lambda target: flattering(recurrent(target, 2)), verifier=Lossless),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_caught(name: str) -> None:
    assert error(WRONG[name]) > 1e-3


class MiddleDistribution(Lenient):
    """Wrong on purpose: lenient, but claims the verifying model's own distribution."""

    def verify(self, *given: Any) -> Verdict:
        proposal, target_logits, sampling, chance, place = given
        made = super().verify(proposal, target_logits, sampling, chance, place)
        distribution = probabilities(target_logits, sampling)[: made.accepted + 1]
        return Verdict(made.accepted, made.next_token, made.draft_ids, distribution)


class InnerDistribution(Lenient):
    """Wrong on purpose: claims the inner draft's distribution for what was accepted."""

    def verify(self, *given: Any) -> Verdict:
        proposal, target_logits, sampling, chance, place = given
        made = super().verify(proposal, target_logits, sampling, chance, place)
        drafted = (
            made.distribution[:0] if proposal.probs is None else proposal.probs[: made.accepted]
        )
        distribution = torch.cat([drafted, made.distribution[made.accepted :]])
        return Verdict(made.accepted, made.next_token, made.draft_ids, distribution)


@pytest.mark.parametrize("wrong", [MiddleDistribution, InnerDistribution])
def test_a_wrong_distribution_of_a_verified_draft_is_caught(
    wrong: type[Lenient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoders.papers.cs_drafting.drafters.Lenient", wrong)
    assert error(Case(DRAFTERS["lenient"], verifier=Lossless)) > 1e-4


# -- and with real randomness ---------------------------------------------------------------------


def test_samples_fit_the_distribution() -> None:
    """The shipped generator, 1000 answers to as many seeds, so that this passes always or never."""
    from scipy.stats import chisquare

    target = ToyBackend.random(3, seed=3, sharpness=1.0)
    request, n = Request(3, Sampling(0.9)), 1000
    strategy = speculative(neural(3, 7), 2)
    counts = Counter(
        tuple(run(target, strategy, PROMPT, replace(request, seed=i)).ids) for i in range(n)
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


def test_acceptance_is_certain_above_one_and_never_at_zero() -> None:
    accept = Generator(torch.device("cpu"), 0).accept(torch.tensor([0.0, 1.0, 7.0]).repeat(1000))
    assert accept.view(1000, 3).all(0).tolist() == [False, True, True]
    assert not accept.view(1000, 3)[:, 0].any()
