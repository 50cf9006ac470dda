"""A drafter of any kind without the loop, one query at a time: writing on its own, and along a
given answer.

For drafters whose adapter cannot take many queries at once, and for queries past an arm's context:
prompt and answer may have more tokens than its drafter follows. The replay of these is the loop
itself, which knows where drafting ends; others follow from an adapter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from decoders.earlier.prefixes import agreeing
from decoders.loop import SpeculativeDecoding
from decoders.methods.chain import begin
from decoders.protocols import Backend, Drafter, DraftLength, DraftRequest, Job, decoder_prefix
from decoders.records import DecodeResult, Request, Sampling
from decoders.sampling.randomness import Generator
from decoders.sampling.stopping import Stopper
from decoders.sampling.tree_shape import lead

from .protocols import KnownAnswers, ReplayedLoop
from .records import Replay, ToWrite, Written
from .registry import adapter_of
from .replay import Draft, agreement
from .replay import replay as replay_loop


class UnbatchedDrafter:
    """A drafter and the target that some drafters read along with.

    temperature, seed: of the answers that it drafts along.
    branched: whether it has proposed a tree so far.
    """

    def __init__(
        self, drafter: Drafter, target: Backend, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self.drafter, self.target, self.branched = drafter, target, False
        self._sampling, self._seed = Sampling(temperature), seed
        self._after = 0  # how long the context was that it drafted for last
        self._drafted: list[int] = []
        self._renew()

    def _renew(self) -> None:
        self._chance = Generator(self.target.device, self._seed)

    @torch.inference_mode()
    def write(
        self, prompt_ids: list[int], most: int, eos_ids: tuple[int, ...], length: DraftLength
    ) -> list[int]:
        """Its own greedy answer: every draft counts as accepted, `length` says how long they are.
        Shorter than `most` where the drafter ends it or has nothing to say. `target` must have just
        read the prompt."""
        begin(self.drafter, self.target, prompt_ids)
        self._renew()
        length.reset()
        start, stopper = decoder_prefix(self.target, prompt_ids), Stopper(Request(most), eos_ids)
        context = list(start)
        while not stopper.reason:
            drafted = self._propose(context, min(max(1, length.next()), stopper.room))
            if not drafted:
                break
            context += stopper.admit(drafted)
            if not stopper.reason:
                self._follow(context)
        return context[len(start) :]

    def start(self, prompt_ids: list[int]) -> None:
        """Before `draft` leads along an answer to this prompt."""
        self.target.prefill(prompt_ids)
        self.drafter.reset(prompt_ids)
        self._renew()
        self._after, self._drafted = len(decoder_prefix(self.target, prompt_ids)), []

    @torch.inference_mode()
    def draft(self, context: list[int], k: int, min_confidence: float = 0.0) -> list[int]:
        """What it drafts to follow `context`: the last call's and at least one token more, as the
        target wrote them."""
        right = agreeing(self._drafted, context[self._after :])
        ended = self._after + right + 1  # the last round; then it may have sat out some
        if ended < len(context):
            self._follow(context[:ended])
        self._follow(context)
        drafted = self._propose(context, k, min_confidence) if k > 0 else []
        self._after, self._drafted = len(context), drafted
        return drafted

    def _follow(self, context: list[int]) -> None:
        """Leave the target as the loop leaves a round: it has read all of `context` but its newest
        token."""
        unread = context[self.target.length : -1]
        if unread:
            self.target.extend(torch.tensor(unread, device=self.target.device))
        self.drafter.commit(context)

    def _propose(self, context: list[int], k: int, min_confidence: float = 0.0) -> list[int]:
        asked = DraftRequest(k, self._sampling, self._chance, min_confidence)
        proposal = self.drafter.propose(context, asked)
        ids: list[int] = proposal.ids.tolist()
        if proposal.parents is None:
            return ids
        self.branched = True
        return [ids[node] for node in lead(proposal.parents)]


class KnownEnd(Stopper):
    """Ends an answer after `tokens` tokens, of which the loop knows no more than that it may have
    `most`."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(Request(most), ())
        self._tokens = tokens

    def _why(self, ids: list[int], *_: object) -> str:
        return "known" if len(ids) == self._tokens else ""


@dataclass(frozen=True)
class UnbatchedReplay:
    """A lossless arm whatever its drafter, one query after the other."""

    strategy: SpeculativeDecoding
    target: Backend

    def write(self, asked: ToWrite) -> Written:
        drafter, answers, decode_s = UnbatchedDrafter(self.strategy.drafter, self.target), [], 0.0
        limits = asked.max_new_tokens, asked.eos_ids
        for prompt in asked.prompts:
            self.target.prefill(prompt)
            started = time.perf_counter()
            answers.append(drafter.write(prompt, *limits, self.strategy.length))
            decode_s += time.perf_counter() - started
        return Written(answers, decode_s=decode_s)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        return [self._replayed(answers, row, loop) for row in range(len(answers.ids))]

    def _replayed(self, answers: KnownAnswers, row: int, loop: ReplayedLoop) -> Replay:
        """If the drafter proposed a tree, of which any branch may be accepted, the loop itself
        counts."""
        prompt, answer, seed = answers.prompts[row], answers.ids[row], answers.seeds[row]
        drafter = UnbatchedDrafter(self.strategy.drafter, self.target, answers.temperature, seed)
        start = decoder_prefix(self.target, prompt)

        def begin(min_confidence: float) -> Draft:
            drafter.start(prompt)
            before = drafter.drafter.calls  # reading the prompt is none of its steps
            return Draft(
                lambda at, k: drafter.draft(start + answer[:at], k, min_confidence),
                (lambda: drafter.drafter.calls - before) if self._counted else None,
            )

        agree = agreement(answer, begin(0.0)) if loop.agreement else []
        if not drafter.branched:
            made = replay_loop(answer, begin(loop.length.min_confidence), loop, agree)
            if not drafter.branched:
                return made
        return replace(self.live(answers, row, loop), agree=agree)

    @property
    def _counted(self) -> bool:
        """Whether its models draft fewer tokens than it does."""
        return adapter_of(self.strategy.drafter).counts_calls

    def live(self, answers: KnownAnswers, row: int, loop: ReplayedLoop) -> Replay:
        """Count what the loop itself does while it writes the answer again."""
        prompt, seed = answers.prompts[row], answers.seeds[row]
        prefilled, chance = self.target.prefill(prompt), Generator(self.target.device, seed)
        request = Request(loop.max_new_tokens, Sampling(answers.temperature), seed=seed)
        stopper = KnownEnd(len(answers.ids[row]), request.max_new_tokens)
        parts = self.target, prompt, prefilled, request, stopper, chance
        job = Job(*parts, lambda *_: None, scope=loop.scope)
        return live(self.strategy.decode(job), self._counted)


def live(made: DecodeResult, counted: bool) -> Replay:
    """What the loop itself counted. counted: whether its drafter's models draft fewer tokens than
    it does; their pass over the prompt counts as a step here."""
    calls = made.draft_calls if counted else None
    return Replay([], made.target_calls - 1, made.drafted, made.accepted, calls, made.widths)


def replayed(
    strategy: SpeculativeDecoding, known: KnownAnswers, loop: ReplayedLoop
) -> list[Replay]:
    """A lossless arm along known answers: by its drafter's adapter, else one after the other."""
    found = adapter_of(strategy.drafter).replay(known, loop)
    return UnbatchedReplay(strategy, known.target).replay(known, loop) if found is None else found


def written(strategy: SpeculativeDecoding, asked: ToWrite) -> Written:
    """Let its drafter write alone, likewise."""
    found = adapter_of(strategy.drafter).write(asked)
    return UnbatchedReplay(strategy, asked.target).write(asked) if found is None else found


def prompts_past_context(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, most: int
) -> list[int]:
    """The rows of prompts that with their answers may have more than `most` tokens."""
    return [row for row, prompt in enumerate(prompts) if len(prompt) + max_new_tokens > most]


def replayed_to_context(
    strategy: SpeculativeDecoding, known: KnownAnswers, loop: ReplayedLoop
) -> list[Replay]:
    """`replayed` of the rows that the drafter can follow, and the loop's own counts of
    the others."""
    rows = prompts_past_context(known.prompts, loop.max_new_tokens, strategy.drafts_to)
    if not rows:
        return replayed(strategy, known, loop)
    others = [row for row in range(len(known.ids)) if row not in rows]
    made = dict[int, Replay]()
    if others:
        found = replayed(strategy, known.rows(others), loop)
        made |= zip(others, found, strict=True)
    replay = UnbatchedReplay(strategy, known.target)
    for row in rows:
        made[row] = replay.live(known, row, loop)
    return [made[row] for row in range(len(known.ids))]


def written_to_context(strategy: SpeculativeDecoding, asked: ToWrite) -> Written:
    """Let the drafter write on its own: as many tokens as its context has room for."""
    context, prompts = strategy.drafter.context, asked.prompts
    rows = prompts_past_context(prompts, asked.max_new_tokens, context)
    if not rows:
        return written(strategy, asked)
    others = [row for row in range(len(prompts)) if row not in rows]
    groups = [(others, asked.max_new_tokens)] if others else []
    groups += [([row], context - len(prompts[row])) for row in rows if len(prompts[row]) < context]
    ids, prefill_s, decode_s = [list[int]() for _ in prompts], 0.0, 0.0
    for group, most in groups:
        own = [prompts[row] for row in group]
        made = written(strategy, asked._replace(prompts=own, max_new_tokens=most))
        prefill_s, decode_s = prefill_s + made.prefill_s, decode_s + made.decode_s
        for row, answer in zip(group, made.ids, strict=True):
            ids[row] = answer
    return Written(ids, None, prefill_s, decode_s)
