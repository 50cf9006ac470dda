"""Drafters made of drafters. The target's own ids and distribution, whatever the nest;
and what a nest drafts, against a plain recursion without any cache."""

import pytest
import torch
from cascade_toys import V, hierarchy, seeds, toy, vertical
from decoder_toys import CPU, Watched, greedy, max_gram, watched
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoders.methods.chain import LATER
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.papers.cs_drafting.drafters import HorizontalDrafter, Part, cs_drafter
from decoders.papers.rules.lossy import Lenient
from decoders.protocols import DraftRequest
from decoders.records import Proposal, Request, Sampling, Verdict
from decoders.sampling.filters import probabilities
from decoders.sampling.randomness import Generator, RandomSource
from decoders.testing.chance import every_outcome
from decoders.testing.toys import (
    ListedLengths,
    Scripted,
    ToyBackend,
    autoregressive,
    run,
    speculative,
)

# -- the verification -----------------------------------------------------------------------------


@pytest.mark.parametrize("lenience", [1.0, 1.3, 2.0, 50.0])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_verdict_has_the_distribution_of_what_is_accepted(
    lenience: float, deterministic: bool
) -> None:
    """Each position's distribution, given that it was reached, against the verdict's."""
    sampling, verifier = Sampling(1.0), Lenient(lenience)
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
    q = torch.randn(2, 3, generator=generator, dtype=torch.float64).softmax(-1)
    reached = torch.zeros(3, 3, dtype=torch.float64)  # [place, token]
    told: dict[int, Tensor] = {}

    def once(chance: RandomSource) -> Verdict:
        drawn = [torch.tensor(2), torch.tensor(1)] if deterministic else map(chance.draw, q)
        ids = torch.stack(list(drawn))
        proposal = Proposal(ids, None if deterministic else q)
        return verifier.verify(proposal, logits, sampling, chance, 1)

    for weight, verdict in every_outcome(once):
        assert verdict.distribution is not None and len(verdict.distribution) == len(verdict.ids)
        for place, (token, distribution) in enumerate(
            zip(verdict.ids, verdict.distribution, strict=True)
        ):
            reached[place, token] += weight
            torch.testing.assert_close(told.setdefault(place, distribution), distribution)
    for place, distribution in told.items():
        torch.testing.assert_close(reached[place] / reached[place].sum(), distribution)
    p = probabilities(logits, sampling)
    assert torch.allclose(told[0], p[0]) == (lenience == 1)
    most = lenience * p[0] + 1e-12  # never more than l times the verifying model's own
    assert (told[0] <= most).all()


GREEDY_CASES = {
    # lenience, the draft's raw probability of its token 0 (None: deterministic), is it accepted?
    "strict": (1.0, 0.1, False),
    "likely enough": (2.0, 0.59, True),
    "just too unlikely": (1.9, 0.6, False),
    "a deterministic draft is sure": (3.0, None, False),
    "but may pass": (3.4, None, True),
}


@pytest.mark.parametrize("case", GREEDY_CASES)
def test_a_greedy_verification(case: str) -> None:
    """The verifying model gives token 0 a probability of 0.3 and likes token 1 best."""
    lenience, q, accepted = GREEDY_CASES[case]
    logits = torch.tensor([[0.3, 0.5, 0.2], [0.1, 0.2, 0.7]], dtype=torch.float64).log()
    raw = None if q is None else torch.tensor([[q, 1 - q, 0.0]], dtype=torch.float64)
    proposal = Proposal(torch.tensor([0]), raw=raw)
    verdict = Lenient(lenience).verify(proposal, logits, Sampling(), Generator(CPU, 0), 1)
    assert verdict.ids == ([0, 2] if accepted else [1])


def test_a_strict_cascade_drafts_what_its_verifying_model_would_alone() -> None:
    """Also without the verifications that its length would have cost."""
    model = toy(8, 6)
    alone, context = NeuralDrafter(ToyBackend(model.table)), [1, 5, 2]
    verifier_model = Watched(model.table)
    cascade = vertical(verifier_model, NeuralDrafter(ToyBackend(model.table)), 3)
    for drafter in (alone, cascade):
        drafter.reset(context[:-1])
    verifier_model.widths.clear()
    ids = cascade.propose(context, greedy(8)).ids.tolist()
    assert ids == alone.propose(context, greedy(8)).ids.tolist()
    assert verifier_model.widths == [4, 4]  # 3 drafted and one of its own, twice


# -- what a nest drafts: a plain recursion, everything read from its start ------------------------


class Plain:
    """Algorithm 1 of "Cascade Speculative Drafting" at temperature 0, without a cache."""

    def __init__(self, models: list[ToyBackend], K: list[list[int]], lenience: float) -> None:
        self.models, self.K, self.lenience = models, K, lenience

    def draft(self, row: int, prefix: list[int]) -> list[tuple[int, float]]:
        """Tokens with the probability that their author gave them."""
        made: list[tuple[int, float]] = []
        limit = 0
        for i in range(row, len(self.K)):
            limit += self.K[row][i]
            while len(made) < limit:
                line = prefix + [token for token, _ in made]
                if i < len(self.models):
                    made += self.step(i, line)
                else:
                    copier = max_gram(shortest=1)
                    copier.reset(line)
                    made += [(token, 1.0) for token in copier.guess(line, limit - len(made))]
                    break
        return made

    def step(self, i: int, prefix: list[int]) -> list[tuple[int, float]]:
        """models[i] verifies what the smaller ones draft."""
        line, made = list(prefix), list[tuple[int, float]]()
        for token, q in [*self.draft(i + 1, prefix), (-1, 1.0)]:
            p = self.models[i].prefill(line).logits.softmax(-1)
            best = int(p.argmax())
            likely = self.lenience > 1 and token >= 0 and self.lenience * float(p[token]) >= q
            if token != best and not likely:
                return [*made, (best, float(p[best]))]
            made.append((token, float(p[token])))
            line.append(token)
        raise AssertionError("the last, -1, is never accepted")


@given(
    st.lists(seeds, min_size=1, max_size=3, unique=True),
    st.data(),
    st.sampled_from([1.0, 1.5, 4.0]),
    st.lists(st.integers(0, V - 1), min_size=2, max_size=8),
)
@examples(60)
def test_cs_drafting_is_the_algorithm(
    models: list[int], data: st.DataObject, lenience: float, prompt: list[int]
) -> None:
    n = len(models) + 1
    cells = st.integers(0, 3)
    K = [[0] * i + [data.draw(st.integers(1, 3))] for i in range(n)]
    K = [row + [data.draw(cells) for _ in range(n - len(row))] for row in K]
    tables = [toy(seed, V).table for seed in models]
    plain = Plain([ToyBackend(table) for table in tables], K, lenience)
    verifier_models = [ToyBackend(table) for table in tables]
    drafter = cs_drafter(verifier_models, max_gram(shortest=1), K, lenience, 64)
    drafter.reset(prompt[:-1])
    assert drafter.calls == len(models)  # each read the prompt once
    target, context = toy(100, V), list(prompt)
    for _ in range(5):  # the target accepts as much as it would
        expected = [token for token, _ in plain.draft(0, context)]
        ids = drafter.propose(context, greedy(64)).ids.tolist()
        assert ids == expected
        for token in [*ids, -1]:
            best = int(target.prefill(context).logits.argmax())
            context.append(best)
            if token != best:
                break
        drafter.commit(context)


def test_a_later_part_makes_up_for_an_earlier_one() -> None:
    one, two, three = Scripted(5), Scripted(6, 7, 8, 9), Scripted(1, 2)
    drafter = HorizontalDrafter([Part(one, 3), Part(two, 2), Part(three, 1)])
    proposal = drafter.propose([0, 0], greedy(20))
    assert proposal.ids.tolist() == [5, 6, 7, 8, 9, 1]
    assert (one.asked, two.asked, three.asked) == ([(2, 3)], [(3, 4)], [(7, 1)])
    assert drafter.propose([0, 0], greedy(2)).ids.tolist() == [5, 6]
    assert (two.asked[1:], three.asked[1:]) == ([(3, 1)], [])


def test_parts_that_find_nothing() -> None:
    drafter = HorizontalDrafter([Part(Scripted(), 3), Part(Scripted(), 3)])
    proposal = drafter.propose([0, 0], DraftRequest(4, Sampling(1.0), Generator(CPU, 0)))
    assert (len(proposal.ids), proposal.probs) == (0, None)


# -- the hierarchy --------------------------------------------------------------------------------


def test_the_middle_model_verifies_once_and_then_writes_on() -> None:
    middle, small = Watched(toy(8, 6).table), Watched(-toy(8, 6).table)  # never agrees
    drafter = hierarchy(middle, NeuralDrafter(small), 3)
    drafter.reset([1, 5])
    middle.widths.clear()
    small.widths.clear()
    ids = drafter.propose([1, 5, 2], greedy(4)).ids.tolist()
    assert middle.widths == [4, 1, 1, 1]  # a verification of three, then a token at a time
    assert small.widths == [1, 1, 1]  # drafts once, and reads no more until the target has spoken
    alone = NeuralDrafter(ToyBackend(middle.table))
    alone.reset([1, 5])
    assert ids == alone.propose([1, 5, 2], greedy(4)).ids.tolist()


def test_a_middle_model_that_agrees_with_the_small_one_runs_once() -> None:
    table = toy(8, 6).table
    middle = Watched(table)
    drafter = hierarchy(middle, NeuralDrafter(ToyBackend(table)), 3)
    drafter.reset([1, 5])
    middle.widths.clear()
    assert len(drafter.propose([1, 5, 2], greedy(4)).ids) == 4
    assert middle.widths == [4]


# -- contract -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [[3], [0, 5], [2, 0, 0, 0, 4]])
def test_every_pass_is_counted_once(pattern: list[int]) -> None:
    """The prompt's own included, a model's that sat out, and one that drafts in two places."""
    models = [Watched(toy(seed, V).table) for seed in (1, 2)]
    models[0].parameters, models[1].parameters = 1000, 10
    copier = max_gram(shortest=1)
    drafter = cs_drafter(models, copier, [[2, 2, 3], [0, 1, 2], [0, 0, 3]], 1.5, 64)
    result = run(toy(3, V), speculative(drafter, ListedLengths(pattern)), [1, 2], Request(40))
    passes = sum(len(model.widths) for model in models)
    assert result.draft_calls == passes + copier.calls and copier.calls > 0
    assert result.draft_work == sum(len(model.widths) * model.parameters for model in models)
    assert drafter.parameters == 1010


def test_a_cascade_that_sat_out_catches_up_in_commit() -> None:
    """A proposal hardly pays for the rounds before it: its first verification reads two tokens at
    most beside what is drafted for it, and the draft model a few."""
    verifier_model, small = Watched(toy(1, V).table), Watched(toy(2, V).table)
    drafter = vertical(verifier_model, NeuralDrafter(small), 2)
    firsts: list[tuple[int, int]] = []

    def before(context: list[int]) -> None:
        verifier_model.widths.clear()
        small.widths.clear()

    watched(drafter, before, lambda: firsts.append((verifier_model.widths[0], small.widths[0])))
    strategy = speculative(drafter, ListedLengths([3, 0, 0, 0, 4, 0, 0, 3]))
    target = toy(3, V)
    result = run(target, strategy, [1, 4, 2], Request(40))
    assert result.ids == run(target, autoregressive(), [1, 4, 2], Request(40)).ids
    assert len(firsts) > 3
    assert all(verified <= 2 + 2 and drafted <= LATER for verified, drafted in firsts)
