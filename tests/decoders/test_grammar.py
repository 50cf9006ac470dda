"""Answers that a grammar binds: token-by-token constrained decoding, whatever is drafted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from decoder_toys import hybrid, max_gram, native, random_exit, recurrent, reduced, suffix
from exactness import SAMPLINGS
from torch import Tensor

from decoders.backends.native import LlamaBackend
from decoders.lengths import FixedLength
from decoders.loop import SpeculativeDecoding
from decoders.methods.tree.drafter import TreeDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.papers.cs_drafting.drafters import VerticalDrafter
from decoders.papers.rules.lossy import Lossless
from decoders.protocols import Backend, Drafter, Strategy
from decoders.records import DecodeResult, Proposal, Request, Sampling
from decoders.sampling.randomness import RandomSource
from decoders.testing import toys
from decoders.testing.chance import (
    EXACT,
    Distribution,
    distance,
    every_outcome,
    reference_distribution,
)
from decoders.testing.toys import ListedLengths, ToyBackend, autoregressive, neural, speculative
from decoders.verify.guide import Guide

VOCAB, EOS = 5, 4
PROMPT = [0, 1, 0]

# By state, which token leads where. A choice, then a forced token; a loop that may end; a token
# that only one of two branches takes.
RULES: dict[int, dict[int, int]] = {
    0: {0: 1, 2: 2},
    1: {1: 3},
    2: {1: 3, 3: 2},
    3: {0: 0, 2: 4, EOS: -1},
    4: {3: 5},
    5: {EOS: -1},
}


@dataclass
class ToyGrammar:
    """A GrammarState over RULES."""

    at: int = 0

    def allowed(self) -> Tensor:
        mask = torch.zeros(VOCAB, dtype=torch.bool)
        mask[list(RULES[self.at])] = True
        return mask

    def forced(self) -> list[int]:
        made, at = list[int](), self.at
        while at >= 0 and len(RULES[at]) == 1:
            ((token, at),) = RULES[at].items()
            made.append(token)
        return [token for token in made if token != EOS]

    def take(self, token: int) -> bool:
        to = RULES[self.at][token]
        if to < 0:
            return False
        self.at = to
        return True

    def copy(self) -> Self:
        return replace(self)


def run(
    target: Backend, strategy: Strategy, request: Request, chance: RandomSource | None = None
) -> DecodeResult:
    how: Any = {"eos_ids": (EOS,), "chance": chance, "grammar": ToyGrammar()}
    return toys.run(target, strategy, PROMPT, request, **how)


def loop_distribution(
    target: ToyBackend, strategy: Strategy, request: Request
) -> tuple[Distribution, float]:
    """Of the loop's answers, and how many drafted tokens it accepts on average."""
    distribution, accepted = dict[tuple[int, ...], float](), 0.0
    for weight, result in every_outcome(lambda chance: run(target, strategy, request, chance)):
        ids = tuple(result.ids)
        distribution[ids] = distribution.get(ids, 0.0) + weight
        accepted += weight * result.accepted
    return distribution, accepted


def masked(next_logits: Callable[[list[int]], Tensor]) -> Callable[[list[int]], Tensor]:
    """Plain constrained decoding's logits after a context: those of refused tokens are -inf."""

    def logits(context: list[int]) -> Tensor:
        state = ToyGrammar()
        for token in context[len(PROMPT) :]:
            state.take(token)
        return next_logits(context).masked_fill(~state.allowed(), -torch.inf)

    return logits


def constrained(target: ToyBackend, request: Request) -> Distribution:
    return reference_distribution(masked(target.next_logits), PROMPT, request, (EOS,))


def greedy(next_logits: Callable[[list[int]], Tensor], most: int) -> list[int]:
    """Plain constrained decoding's ids."""
    made, logits = list[int](), masked(next_logits)
    while len(made) < most and EOS not in made:
        made.append(int(logits([*PROMPT, *made]).argmax()))
    return made


def vertical() -> VerticalDrafter:
    middle = ToyBackend.random(VOCAB, 9, 1.0)
    return VerticalDrafter(middle, max_gram(shortest=1), FixedLength(1))


class Blind:
    """A drafter that does not look at the grammar."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.parameters, self.context = inner, 0, inner.context

    @property
    def calls(self) -> int:
        return self.inner.calls

    def reset(self, prompt_ids: list[int]) -> None:
        self.inner.reset(prompt_ids)

    def propose(self, context: list[int], asked: Any) -> Proposal:
        return self.inner.propose(context, replace(asked, grammar=None))

    def commit(self, context: list[int]) -> None:
        self.inner.commit(context)


EARLIER = [([0, 1], [0, 1, 2, 3]), ([1, 0], [2, 3, 1, 0])]
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "neural": lambda: neural(VOCAB, seed=7),
    "blind": lambda: Blind(neural(VOCAB, seed=7)),
    "reduced": lambda: reduced([0, 2, 3], VOCAB, seed=8),
    "max-gram": lambda: max_gram(shortest=1),
    "bigram": lambda: max_gram([1, 2, 3, 1, -1], shortest=2),
    "hybrid": lambda: hybrid(neural(VOCAB, seed=7)),
    "suffix": lambda: suffix(*EARLIER),
    "suffix-tree": lambda: suffix(*EARLIER, width=2),
    "tree": lambda: TreeDrafter(ToyBackend.random(VOCAB, 7, 1.0), None, (2,), 64),
    "widened": lambda: WidenedDrafter(neural(VOCAB, seed=7), (2,), 64),
    "vertical": vertical,
}


@pytest.mark.every(2)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", ["plain", "all"])
def test_the_law_is_constrained_decoding_s(drafter: str, sampling: str) -> None:
    target = ToyBackend.random(VOCAB, seed=3, sharpness=1.0)
    most, k = (3, 1) if drafter == "tree" else (4, 2)  # its outcomes are many
    request = Request(most, SAMPLINGS[sampling])
    made, accepted = loop_distribution(target, speculative(DRAFTERS[drafter](), k), request)
    assert sum(made.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(made, constrained(target, request)) < EXACT
    assert accepted > 0


def test_nor_does_the_length_change_it() -> None:
    target = ToyBackend.random(VOCAB, seed=5, sharpness=1.0)
    request = Request(4, Sampling(0.8))
    for rule in (FixedLength(3, min_confidence=0.45), ListedLengths([0, 2, 1])):
        made, _ = loop_distribution(target, speculative(DRAFTERS["neural"](), rule), request)
        assert distance(made, constrained(target, request)) < EXACT


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_ids_are_constrained_decoding_s(drafter: str) -> None:
    for seed in range(8):
        target = ToyBackend.random(VOCAB, seed)
        made = run(target, speculative(DRAFTERS[drafter](), 3), Request(10)).ids
        assert made == greedy(target.next_logits, 10)


def on_the_target(target: LlamaBackend, kind: str) -> Drafter:
    """A drafter that runs on the target's own layers or states."""
    if kind == "recurrent":
        return recurrent(target, seed=4)
    drafter = random_exit(target, 1, seed=2)
    return Blind(drafter) if kind == "blind-exit" else drafter


@pytest.mark.parametrize("kind", ["exit", "blind-exit", "recurrent"])
def test_drafters_on_the_target_s_layers(tiny: Callable[..., Path], kind: str) -> None:
    """What an exit ran ahead of a draft that the grammar cut must not stay in the cache."""
    for seed in range(3):
        folder = tiny("llama", seed=seed, vocab_size=VOCAB)
        target, fresh = native(folder, torch.float64), native(folder, torch.float64)
        made = run(target, speculative(on_the_target(target, kind), 3), Request(12)).ids
        assert made == greedy(lambda context, fresh=fresh: fresh.prefill(context).logits, 12)


class Naive(Guide):
    """Wrong on purpose: a drawn draft ends before the token that the grammar refuses, and the
    target draws in its place as if nothing had been drafted there."""

    def fit(self, forced: list[int], drafted: Proposal, room: int) -> Proposal:
        fitted = super().fit(forced, drafted, room)
        if len(fitted.ids) and len(self._masks) == len(fitted.ids) and fitted.probs is not None:
            kept = len(fitted.ids) - 1
            return Proposal(fitted.ids[:kept], fitted.probs[:kept])
        return fitted


def test_naive_masking_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ToyBackend.random(VOCAB, seed=3, sharpness=1.0)
    request = Request(3, Sampling(1.0))
    monkeypatch.setattr("decoders.loop.Guide", Naive)
    strategy = speculative(DRAFTERS["blind"](), 2, Lossless())
    made, _ = loop_distribution(target, strategy, request)
    assert sum(made.values()) == pytest.approx(1.0, abs=1e-9)
    assert distance(made, constrained(target, request)) > 1e-3


def test_what_is_forced_costs_no_draft() -> None:
    """Without a drafter, and with one that sits out: a pass writes all that must follow."""
    target = ToyBackend.random(VOCAB, seed=0)
    target.table[:, :, 0] += 50  # after a 0 as the first token, the grammar forces a 1
    made = run(target, autoregressive(), Request(6))
    assert made.ids == [0, 1, 0, 0, 1, 0]
    assert (made.drafted, made.accepted, made.rounds) == (2, 2, 3)


def test_a_lengths_rule_is_told_of_the_drafter_s_own_tokens() -> None:
    told = list[tuple[int, int]]()

    class Heard(FixedLength):
        def observe(self, stats: Any) -> None:
            told.append((stats.drafted, stats.accepted))

    target = ToyBackend.random(VOCAB, seed=0)
    target.table[:, :, 0] += 50
    strategy = SpeculativeDecoding(
        "test", neural(VOCAB, seed=7), speculative(neural(VOCAB, 7)).verifier, Heard(2)
    )
    run(target, strategy, Request(8))
    assert told and all(0 <= right <= drafted <= 2 for drafted, right in told)
