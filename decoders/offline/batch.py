"""Many prompts at once: what collection asks of an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..arms import AUTOREGRESSIVE
from ..backends.native import LlamaBackend
from ..common.errors import DraftpickError
from ..common.seeds import derived_seed
from ..costs.measured import Costs
from ..drafters import HybridDrafter, MaxGramDrafter, NullDrafter, RecurrentDrafter
from ..lengths import FixedLength
from ..loop import SpeculativeDecoding
from ..protocols import opening
from ..records import Request, Sampling
from . import rounds
from .alone import Alone
from .at_once import costs_at_once, follow, require_shared
from .composed import along, models_of, over
from .costs import costs_of
from .expected import Chances, Draft, drawn, expected, simulated
from .records import Expected, Replay, Written
from .replay import replay
from .sampled import Along, Tries, tries
from .stack import Guess, Stack, score
from .unrolled import Known, Unrolled
from .writer import write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..engine import Engine


class Batch:
    """Batched where the models are native, one by one elsewhere; the answers are the same, but for
    near-ties in bfloat16, whose sums run in another order where many rows are multiplied at once.

    An arm that drafts for a lossless verifier can only speed up the target's answer: its figures
    follow from what its drafter writes alone and from its loop replayed along that answer. An arm
    with a lossy verifier, or that does not draft, has an answer of its own and is run as it is.
    What is taken apart here for speed is known by its very class: a subclass may do otherwise.

    costs: what passes cost on this machine; None measures them when they are first needed.
    at_once: numbers of answers written at once of which something will be asked (`among`).
    folder: where the costs of shared passes are kept; None keeps nothing.
    """

    def __init__(
        self,
        engine: Engine,
        costs: Costs | None = None,
        at_once: Sequence[int] = (1,),
        folder: Path | None = None,
    ) -> None:
        self._engine, self._costs, self._answers = engine, costs, 1
        self._at_once = [answers for answers in at_once if answers > 1]
        self._folder, self._shared = folder, None
        if self._at_once:
            require_shared(engine.target)
        target = engine.target
        self._target = Stack.of_backend(target) if type(target) is LlamaBackend else None
        self._along: Along | None = None  # the answers that were read last

    @property
    def cost_table(self) -> Costs:
        """What passes and drafted tokens cost on this machine, measured when first asked for."""
        if self._costs is None:
            costs = costs_of(self._engine)
            greedy, drawn = rounds.alone(self._engine, costs)
            self._costs = replace(costs, round_s=greedy, drawn_round_s=drawn)
        if self._at_once and not self._costs.at_once:
            most = max(self._at_once)
            batch, shared = follow(self._engine, most, self._folder, lambda: self._answers)
            at_once = costs_at_once(self._engine, self._costs, batch, shared, self._at_once)
            self._costs = replace(self._costs, at_once=at_once)
        return self._costs

    @contextmanager
    def among(self, answers: int) -> Iterator[None]:
        """Within the block arms are replayed as where so many answers are written at once: 1, or
        one of `at_once`."""
        assert answers == 1 or answers in self._at_once
        before, self._answers = self._answers, answers
        try:
            yield
        finally:
            self._answers = before

    @property
    def _now(self) -> Costs:
        return self.cost_table.of_answers(self._answers)

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int | Sequence[int] = 0,
    ) -> Written:
        """The target's own answers, greedy or sampled.

        seed: of the batch; what the i-th answer draws depends on it and on i. Or each answer's own,
            which alone it then depends on.
        """
        request = Request(max_new_tokens, Sampling(temperature))
        for prompt in prompts:
            self._engine.check(prompt, request)
        if self._target is None:
            return self._one_by_one(prompts, request, seed)
        return self._write(self._target, prompts, max_new_tokens, temperature, seed)

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> Written:
        """What the arm's drafter writes on its own, greedily; or, with `replays`, the arm's own
        answers."""
        strategy = self._lossless(name)
        if strategy is None:
            return self._live(name, prompts, max_new_tokens)
        if type(strategy.drafter) is MaxGramDrafter:
            return self._copied(strategy.drafter, prompts, max_new_tokens)
        stack = Stack.of_drafter(strategy.drafter)
        if stack is None:
            return self._alone(strategy, prompts, max_new_tokens)
        return self._write(stack, prompts, max_new_tokens, 0.0, 0)

    def follows(self, name: str) -> bool:
        """Whether the arm's answers are the target's, so that its loop can be replayed along them
        (`teacher_forced`)."""
        return self._lossless(name) is not None

    def teacher_forced(
        self, name: str, prompts: list[list[int]], target_ids: list[list[int]]
    ) -> list[Replay]:
        """The arm's loop at temperature 0, replayed along the target's answers."""
        strategy = self._lossless(name)
        if strategy is None:
            raise DraftpickError(
                f"arm {name!r} gives answers of its own, so that it cannot be replayed along the "
                "target's; its figures come with the answers"
            )
        pairs = list(zip(prompts, target_ids, strict=True))
        if type(strategy.drafter) is MaxGramDrafter:
            return [self._forced_copy(name, prompt, answer) for prompt, answer in pairs]
        drafter, models = strategy.drafter, models_of(strategy.drafter)
        if models and self._target is not None:
            states = self._read(prompts, target_ids).states
            unrolled = {id(model): Unrolled(model.head, states, target_ids) for model in models}
            if type(drafter) is RecurrentDrafter:
                return [
                    self._forced(name, answer, partial(unrolled[id(drafter)], row))
                    for row, answer in enumerate(target_ids)
                ]
            return [self._forced_composed(name, unrolled, row, *p) for row, p in enumerate(pairs)]
        stack = Stack.of_drafter(strategy.drafter)
        if stack is None:
            return [self._forced_alone(name, prompt, answer) for prompt, answer in pairs]
        scored = score(stack, prompts, target_ids)
        return [
            self._forced(name, answer, partial(_run, own))
            for answer, own in zip(target_ids, scored, strict=True)
        ]

    def expected(
        self,
        name: str,
        prompts: list[list[int]],
        answers: list[list[int]],
        temperature: float,
        seeds: Sequence[int],
    ) -> list[Expected] | None:
        """The arm's loop at a temperature above 0, on average along answers that the target drew.

        One pass of the target over the answers serves all arms that are asked for in turn.

        seeds: of each answer's simulated runs.
        None for an arm that must be run (`live`): its answers are its own, or what its drafter
        draws cannot be told from the answers alone.
        """
        strategy = self._lossless(name)
        if strategy is None:
            return None
        drafter = strategy.drafter
        pairs = list(zip(prompts, answers, strict=True))
        if type(drafter) is MaxGramDrafter:  # it goes one way, whatever the seed
            return [Expected.of(self._forced_copy(name, *pair)) for pair in pairs]
        model = drafter.model if type(drafter) is HybridDrafter else drafter
        found = tries(model, self._read(prompts, answers), temperature)
        if found is None:
            return None
        each = zip(prompts, answers, seeds, strict=True)
        return [
            self._expected_of(name, prompt, answer, self._chances(name, found, row), temperature, s)
            for row, (prompt, answer, s) in enumerate(each)
        ]

    def live(
        self,
        name: str,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> Written:
        """The arm's own sampled answers, with `replays`; each depends on its seed alone."""
        return self._live(name, prompts, max_new_tokens, temperature, seeds)

    def _read(self, prompts: list[list[int]], answers: list[list[int]]) -> Along:
        """What the target makes of the answers; kept until others are asked for."""
        held = self._along
        if held is None or (held.prompts, held.answers) != (prompts, answers):
            held = self._along = Along(self._engine.target, self._target, prompts, answers)
        return held

    def _chances(self, name: str, found: Tries, row: int) -> Chances:
        """Of one answer, up to where its drafter is too unsure to go on."""
        bar = self._drafting(name).length.min_confidence

        def chances(at: int, k: int) -> list[float]:
            made = list[float]()
            for chance, confidence in found(row, at, k):
                if confidence < bar:
                    break
                made.append(chance)
            return made

        return chances

    def _expected_of(
        self,
        name: str,
        prompt: list[int],
        answer: list[int],
        chances: Chances,
        temperature: float,
        seed: int,
    ) -> Expected:
        """chances: of what its model drafts."""
        strategy, costs = self._drafting(name), self._now
        length = strategy.length
        if isinstance(strategy.drafter, HybridDrafter):

            def drafts(heights: NDArray[np.float64]) -> Draft:
                model = drawn(answer, chances, heights).draft
                return self._hybrid(name, prompt, answer, model, temperature)

        elif type(length) is FixedLength:
            return expected(len(answer), chances, length.k)
        else:
            drafts = partial(drawn, answer, chances)
        return simulated(answer, drafts, length, seed, costs.draft_s[name], costs.verify)

    def _lossless(self, name: str) -> SpeculativeDecoding | None:
        """The arm's parts where it drafts for a lossless verifier, else None."""
        if self._at_once:
            _ = self.cost_table  # makes arms anew, which then follow the load
        strategy = self._engine.strategy(name)
        if type(strategy) is not SpeculativeDecoding or not strategy.verifier.lossless:
            return None
        if isinstance(strategy.drafter, NullDrafter):
            raise DraftpickError(f"arm {name!r} drafts nothing; its answers are the target's")
        return strategy

    def _drafting(self, name: str) -> SpeculativeDecoding:
        strategy = self._lossless(name)
        assert strategy is not None
        return strategy

    def _forced(
        self, name: str, answer: Sequence[int], guesses: Callable[[int, int], list[Guess]]
    ) -> Replay:
        """guesses: (at, k) -> the k that would follow answer[:at].

        Each is made on the true prefix, as in the loop while a draft is accepted; tokens after the
        first rejected one only count as drafted. Where `min_confidence` stops a draft, the live
        loop may draft more or fewer of those.
        """
        length, costs = self._drafting(name).length, self._now

        def draft(at: int, k: int) -> list[int]:
            run = guesses(at, k)
            for count, guess in enumerate(run):
                if guess.confidence < length.min_confidence:
                    return [g.token for g in run[:count]]
            return [g.token for g in run]

        agree = [i == 0 or guesses(i, 1)[0].token == token for i, token in enumerate(answer)]
        return replay(answer, draft, length, agree, costs.draft_s[name], costs.verify)

    def _forced_copy(self, name: str, prompt: list[int], answer: list[int]) -> Replay:
        strategy, costs = self._drafting(name), self._now
        drafter = strategy.drafter
        assert isinstance(drafter, MaxGramDrafter)
        drafter.reset(prompt)
        start, agree = opening(self._engine.target, prompt), [True]
        for at in range(1, len(answer)):
            context = start + answer[:at]
            drafter.commit(context)
            agree.append(drafter.guess(context, 1) == answer[at : at + 1])
        drafter.reset(prompt)

        def draft(at: int, k: int) -> list[int]:
            context = start + answer[:at]
            drafter.commit(context)
            return drafter.guess(context, k)

        return replay(answer, draft, strategy.length, agree, costs.draft_s[name], costs.verify)

    def _forced_composed(
        self,
        name: str,
        unrolled: Mapping[int, Unrolled],
        row: int,
        prompt: list[int],
        answer: list[int],
    ) -> Replay:
        """unrolled: by the id of each recurrent drafter in it, what that drafts along all answers;
        `row` is this one's."""
        strategy, costs, target = self._drafting(name), self._now, self._engine.target
        start = opening(target, prompt)

        def known(model: RecurrentDrafter) -> Known:
            guesses = partial(unrolled[id(model)], row)
            return Known(
                lambda context, k: [g.token for g in guesses(len(context) - len(start), k)], target
            )

        drafter = over(strategy.drafter, known)
        single = along(drafter, target, prompt, answer).draft
        agree = [at == 0 or single(at, 1) == [token] for at, token in enumerate(answer)]
        draft, calls = along(drafter, target, prompt, answer)
        draft_s = costs.draft_s[name]
        return replay(answer, draft, strategy.length, agree, draft_s, costs.verify, calls)

    def _hybrid(
        self,
        name: str,
        prompt: list[int],
        answer: list[int],
        model: Callable[[int, int], Sequence[int]],
        temperature: float,
    ) -> Draft:
        """What the arm drafts to follow answer[:at], asked from round to round.

        model(at, k): what its model would draft there.
        """
        target = self._engine.target
        start = opening(target, prompt)

        def known(context: list[int], k: int) -> list[int]:
            return list(model(len(context) - len(start), k))

        drafter = over(self._drafting(name).drafter, lambda _: Known(known, target))
        return along(drafter, target, prompt, answer, temperature)

    def _forced_alone(self, name: str, prompt: list[int], answer: list[int]) -> Replay:
        """One pass for the agreement, a draft of one token everywhere; another for the rounds. If
        one of them saw a tree, of which any branch may be accepted, the loop itself counts them."""
        strategy, costs = self._drafting(name), self._now
        alone, confidence = (
            Alone(strategy.drafter, self._engine.target),
            strategy.length.min_confidence,
        )
        start = opening(self._engine.target, prompt)
        alone.start(prompt)
        agree = [
            at == 0 or alone.draft(start + answer[:at], 1) == [token]
            for at, token in enumerate(answer)
        ]
        if not alone.branched:
            alone.start(prompt)

            def draft(at: int, k: int) -> list[int]:
                return alone.draft(start + answer[:at], k, confidence)

            draft_s = costs.draft_s[name]
            along = replay(answer, draft, strategy.length, agree, draft_s, costs.verify)
            if not alone.branched:
                return along
        result = self._engine.decode(name, prompt, Request(len(answer)))
        return Replay(agree, result.rounds, result.drafted, result.accepted)

    def _alone(
        self, strategy: SpeculativeDecoding, prompts: list[list[int]], max_new_tokens: int
    ) -> Written:
        alone, answers, decode_s = Alone(strategy.drafter, self._engine.target), [], 0.0
        for prompt in prompts:
            self._engine.prefill(prompt)
            started = time.perf_counter()
            answers.append(
                alone.write(prompt, max_new_tokens, self._engine.eos_ids, strategy.length)
            )
            decode_s += time.perf_counter() - started
        none = np.zeros((len(prompts), 0), dtype=np.float32)
        return Written(answers, none, 0.0, decode_s)

    def _live(
        self,
        name: str,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int | None] | None = None,
    ) -> Written:
        sampling, seeds = Sampling(temperature), seeds or [None] * len(prompts)
        results = [
            self._engine.decode(name, prompt, Request(max_new_tokens, sampling, seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return Written(
            [result.ids for result in results],
            np.zeros((len(prompts), 0), dtype=np.float32),
            sum(result.prefill_s for result in results),
            sum(result.decode_s for result in results),
            [
                Replay([], result.target_calls - 1, result.drafted, result.accepted)
                for result in results
            ],
        )

    def _copied(
        self, drafter: MaxGramDrafter, prompts: list[list[int]], max_new_tokens: int
    ) -> Written:
        started = time.perf_counter()
        answers = []
        for prompt in prompts:
            drafter.reset(prompt)
            start = opening(self._engine.target, prompt)
            context = list(start)
            while len(context) < len(start) + max_new_tokens:
                drafter.commit(context)
                token = drafter.guess(context, 1)
                context += token
                if not token or token[0] in self._engine.eos_ids:
                    break
            answers.append(context[len(start) :])
        none = np.zeros((len(prompts), 0), dtype=np.float32)
        return Written(answers, none, 0.0, time.perf_counter() - started)

    def _write(
        self,
        stack: Stack,
        prompts: list[list[int]],
        most: int,
        temperature: float,
        seed: int | Sequence[int],
    ) -> Written:
        return write(stack, prompts, most, self._engine.eos_ids, temperature, seed)

    def _one_by_one(
        self, prompts: list[list[int]], request: Request, seed: int | Sequence[int]
    ) -> Written:
        ids, embeddings, prefill_s, decode_s = [], [], 0.0, 0.0
        if isinstance(seed, int):
            seed = [derived_seed(seed, index) for index in range(len(prompts))]
        for prompt, own in zip(prompts, seed, strict=True):
            prefilled = self._engine.prefill(prompt)
            asked = replace(request, seed=own)
            result = self._engine.decode(AUTOREGRESSIVE, prompt, asked, prefilled)
            ids.append(result.ids)
            embeddings.append(prefilled.embedding.cpu().numpy())
            prefill_s += prefilled.prefill_s
            decode_s += result.decode_s
        return Written(ids, np.stack(embeddings), prefill_s, decode_s)


def _run(guesses: list[Guess], at: int, k: int) -> list[Guess]:
    return guesses[at : at + k]
