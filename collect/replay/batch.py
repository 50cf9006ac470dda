"""Many prompts at once: what collection asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from decoders.arms import AUTOREGRESSIVE
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError, NotANumber
from decoders.continuous_batching import ContinuousBatch
from decoders.costs import measured, under_load
from decoders.costs.measured import Costs
from decoders.lengths import AdaptiveLength
from decoders.loop import SpeculativeDecoding
from decoders.protocols import DraftLength, LearningLength, RequestScope, Strategy
from decoders.records import Request, Sampling
from decoders.verify import Coupled

from .costs import costs_at_once, costs_of, install_costs, require_shared
from .known import Before, Draws, teacher_forced
from .protocols import KnownAnswers, ReplayedLoop
from .records import Replay, ToWrite, Written
from .registry import adapter_of
from .stack import Stack
from .unbatched import live, replayed_to_context, written_to_context
from .writer import write_all

if TYPE_CHECKING:
    from decoders.engine import Engine

KEPT = 8  # sets of answers whose states are kept: a batch's at each temperature and draw


class _Asked(NamedTuple):
    """The request that answers of the target are to."""

    prompts: list[list[int]]
    max_new_tokens: int
    draws: Draws


class Batch:
    """Batched where the models are native, one by one elsewhere; the answers are the same, but for
    near-ties in bfloat16, whose sums run in another order where many rows are multiplied at once.

    An arm that drafts for a lossless verifier can only speed up the target's answer: its figures
    follow from what its drafter writes alone and from its loop replayed along that answer
    (`ReplayAdapter`). An arm that does not draft, one with a lossy verifier, and one whose verifier
    writes above temperature 0 other answers than the target to the same seed, have answers of their
    own and are run as they are. A strategy or a target is taken apart only if it is of the very
    class that is known here: a subclass may do otherwise.

    An arm that drafts from earlier answers is replayed one query after the other: before each it
    has the target's answers to those before it in the same call, at that temperature, and all that
    `keep` was told. What a drafter writes alone comes after the latter only.

    costs: what passes cost on this machine; None measures them when they are first needed.
    at_once: numbers of answers written at once of which something will be asked (`at_batch_size`).
    folder: where the costs of shared passes are kept; None keeps nothing.
    on_costs: called before costs are measured, with how often that was done and the most answers
        at once; it takes minutes with a large model.
    """

    def __init__(
        self,
        engine: Engine,
        costs: Costs | None = None,
        at_once: Sequence[int] = (1,),
        folder: Path | None = None,
        on_costs: Callable[[int, int], None] = lambda times, answers: None,
    ) -> None:
        self._engine, self._costs, self._answers = engine, costs, 1
        self._at_once = [answers for answers in at_once if answers > 1]
        self._folder, self._on_costs = folder, on_costs
        if self._at_once:
            require_shared(engine.target)
        target = engine.target
        self._target: Stack | None = None
        if type(target) is LlamaBackend and not target.eight_bits:
            self._target = Stack.of_backend(target)
        self._known: list[KnownAnswers] = []  # the answers that were asked for last
        self._ahead: list[tuple[_Asked, Written]] = []  # written, not yet asked for
        self._lengths: dict[tuple[str, int], DraftLength] = {}  # by arm and answers at once
        self._before = Before(engine)

    @property
    def cost_table(self) -> Costs:
        """Costs of passes and drafted tokens on this machine, measured when first asked for, and a
        few times, or those of `go_on_with`."""
        return self._costs or self.go_on_with(self._measured())

    def go_on_with(self, costs: Costs) -> Costs:
        """Let arms draft by these costs from now on, such as those of a folder's first run."""
        if costs != self._costs:
            self._costs = costs
            self._lengths.clear()
            install_costs(self._engine, costs, lambda: self._answers)
        return costs

    def _measured(self) -> Costs:
        engine, most = self._engine, max(self._at_once, default=1)
        if self._at_once:  # raises where there is no room, before minutes are spent
            ContinuousBatch(engine, most)
        found = []
        for time in range(measured.MEASUREMENTS):
            self._on_costs(time, 1)
            found.append(costs_of(engine, time > 0))
        if not self._at_once:
            return Costs.of_repeats(found)
        batch = ContinuousBatch(engine, most)
        shared = batch.learn_costs(engine.target_fingerprint, self._folder)
        made = []
        for time, alone in enumerate(found):
            self._on_costs(time, most)
            if time > 0:
                shared = under_load.timed(batch.passes, self._at_once, shared.narrow)
            at_once = costs_at_once(engine, alone, batch, shared, self._at_once)
            made.append(replace(alone, at_once=at_once))
        return Costs.of_repeats(made)

    @contextmanager
    def at_batch_size(self, answers: int) -> Iterator[None]:
        """Within the block arms are replayed as if this many answers were written at once: 1, or
        one of `at_once`."""
        assert answers == 1 or answers in self._at_once
        before, self._answers = self._answers, answers
        try:
            yield
        finally:
            self._answers = before

    def keep(self, prompt: list[int], answer: list[int], temperature: float = 0.0) -> None:
        """Let arms draft at that temperature from the target's answer to a prompt, from now on."""
        self._before.keep(prompt, answer, temperature)

    def target(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
        also: Sequence[tuple[float, Sequence[int]]] = (),
    ) -> Written:
        """The target's own answers, greedy, or sampled: those that `Engine.decode` writes to the
        same seeds.

        also: temperatures and seeds of answers to the same prompts that will be asked for next;
            they are written now, where the prompts are read anyway.
        """
        wanted = [Draws(temperature, seeds), *(Draws(*each) for each in also)]
        asked = _Asked(prompts, max_new_tokens, wanted[0])
        for at, (before, written) in enumerate(self._ahead):
            if before == asked:
                del self._ahead[at]
                return written
        for draws in wanted:
            request = Request(max_new_tokens, Sampling(draws.temperature))
            for prompt in prompts:
                self._engine.check(prompt, request)
        if self._target is None:
            return self._one_by_one(asked)
        try:
            first, *others = self._write(asked, wanted)
        except NotANumber:
            if not also:
                raise
            (first,), others = self._write(asked, wanted[:1]), []
        self._ahead = [
            (asked._replace(draws=draws), written)
            for draws, written in zip(wanted[1:], others, strict=False)
        ]
        return first

    def _write(self, asked: _Asked, wanted: Sequence[Draws]) -> list[Written]:
        assert self._target is not None
        keep = self._engine.target.device.type == "cpu"  # elsewhere room is dearer than a pass
        prompts, most = asked.prompts, asked.max_new_tokens
        made = write_all(self._target, prompts, most, self._engine.eos_ids, wanted, keep)
        for draws, written in zip(wanted, made, strict=True):
            if written.states is not None:
                parts = self._engine.target, self._target, prompts, written.ids
                self._remember(teacher_forced(*parts, draws, written.states))
        return made

    def arm(self, name: str, prompts: list[list[int]], max_new_tokens: int) -> Written:
        """What the arm's drafter writes on its own, greedily; or, with `replays`, the arm's own
        answers."""
        strategy = self._lossless(name)
        if strategy is None:
            return self.live(name, prompts, max_new_tokens)
        engine = self._engine
        asked = ToWrite(engine.target, prompts, max_new_tokens, engine.eos_ids)
        with self._in_turn(name, strategy, 0.0):
            return written_to_context(strategy, asked)

    def is_replayable(self, name: str, temperature: float = 0.0) -> bool:
        """Whether the arm's answers are the target's, so that `replay` can follow them."""
        return self._lossless(name, temperature) is not None

    def replay(
        self,
        name: str,
        prompts: list[list[int]],
        answers: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
    ) -> list[Replay]:
        """The arm's loop replayed along the target's answers.

        max_new_tokens: the limit under which the answers were written.
        temperature, seeds: what they were written at, and by; no seeds for greedy ones.
        """
        strategy = self._lossless(name, temperature)
        if strategy is None:
            raise DraftpickError(
                f"arm {name!r} gives answers of its own, so that it cannot be replayed along the "
                "target's; its figures come with the answers"
            )
        draws = Draws(temperature, seeds)
        known = self._read(prompts, answers, max_new_tokens, draws)
        loop = self._loop(name, strategy, max_new_tokens, draws)
        if not self._engine.arm(name).reads_earlier:
            return replayed_to_context(strategy, known, loop)
        made: list[Replay] = []
        with self._before.going_on(strategy, temperature) as earlier:
            loop = replace(loop, scope=RequestScope(answers=earlier))
            for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                made += replayed_to_context(strategy, known.rows([row]), loop)
                earlier.add("", prompt, answer)
        return made

    def live(
        self,
        name: str,
        prompts: list[list[int]],
        max_new_tokens: int,
        temperature: float = 0.0,
        seeds: Sequence[int | None] | None = None,
    ) -> Written:
        """The arm's own answers, with `replays`; each that is sampled depends on its seed alone."""
        sampling, seeds = Sampling(temperature), seeds or [None] * len(prompts)
        strategy = self._engine.strategy(name)
        counted = (
            isinstance(strategy, SpeculativeDecoding) and adapter_of(strategy.drafter).counts_calls
        )
        with self._in_turn(name, strategy, temperature):  # and its own answers, as they come
            results = [
                self._engine.decode(name, prompt, Request(max_new_tokens, sampling, seed=seed))
                for prompt, seed in zip(prompts, seeds, strict=True)
            ]
        return Written(
            [result.ids for result in results],
            None,
            sum(result.prefill_s for result in results),
            sum(result.decode_s for result in results),
            [live(each, counted) for each in results],
        )

    def _in_turn(
        self, name: str, strategy: Strategy, temperature: float
    ) -> AbstractContextManager[Any]:
        """Within the block the arm drafts from what was kept, if it drafts from earlier answers."""
        reads = self._engine.arm(name).reads_earlier
        return self._before.going_on(strategy, temperature) if reads else nullcontext()

    def _read(
        self, prompts: list[list[int]], answers: list[list[int]], max_new_tokens: int, draws: Draws
    ) -> KnownAnswers:
        """What the target makes of the answers; the states of the last few are kept, as they are
        asked for again at every load."""
        if len(prompts) != len(answers):
            raise ValueError(f"{len(prompts)} prompts with {len(answers)} answers")
        longest = max(map(len, answers), default=0)
        if longest > max_new_tokens:
            raise DraftpickError(
                f"an answer of {longest} tokens was not written under a limit of {max_new_tokens}; "
                "give the limit that it had"
            )
        asked = teacher_forced(self._engine.target, self._target, prompts, answers, draws)
        return self._remember(next((one for one in self._known if one.same(asked)), asked))

    def _remember(self, known: KnownAnswers) -> KnownAnswers:
        """Keep as the newest of the last few."""
        others = [one for one in self._known if one is not known]
        self._known = [*others[1 - KEPT :], known]
        return known

    def _loop(
        self, name: str, strategy: SpeculativeDecoding, max_new_tokens: int, draws: Draws
    ) -> ReplayedLoop:
        costs, length = self.cost_table.of_answers(self._answers), strategy.length
        in_turn = isinstance(length, AdaptiveLength) and length.in_turn
        if isinstance(length, LearningLength):  # at each load by itself
            length = self._lengths.setdefault((name, self._answers), length.apart())
        draft_s = (self.cost_table if in_turn else costs).draft_s[name]  # as the loop would see it
        return ReplayedLoop(length, max_new_tokens, draft_s, costs.verify, not draws.temperature)

    def _lossless(self, name: str, temperature: float = 0.0) -> SpeculativeDecoding | None:
        """The arm's parts where it drafts for a verifier that writes the target's own answers, else
        None."""
        if self._at_once:
            _ = self.cost_table  # makes the arms again, which then follow the load
        strategy = self._engine.strategy(name)
        if type(strategy) is not SpeculativeDecoding or not strategy.verifier.lossless:
            return None
        if temperature > 0 and type(strategy.verifier) is not Coupled:
            return None
        if self._engine.arm(name).kind == AUTOREGRESSIVE:
            raise DraftpickError(f"arm {name!r} drafts nothing; its answers are the target's")
        return strategy

    def _one_by_one(self, asked: _Asked) -> Written:
        ids, embeddings, prefill_s, decode_s = [], [], 0.0, 0.0
        sampling, seeds = Sampling(asked.draws.temperature), asked.draws.of(asked.prompts)
        for prompt, seed in zip(asked.prompts, seeds, strict=True):
            prefilled = self._engine.prefill(prompt)
            request = Request(asked.max_new_tokens, sampling, seed=seed)
            result = self._engine.decode(AUTOREGRESSIVE, prompt, request, prefilled)
            ids.append(result.ids)
            embeddings.append(prefilled.embedding.cpu().numpy())
            prefill_s += prefilled.prefill_s
            decode_s += result.decode_s
        return Written(ids, np.stack(embeddings), prefill_s, decode_s)
