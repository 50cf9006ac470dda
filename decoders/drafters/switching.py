"""One of several cheap drafters, chosen anew while the answer is written (Liu et al.,
"Not-a-Bandit", 2510.20064).

Once the tokens after a round's start are known, it is known of every drafter how many it would have
got right there, whichever of them drafted: no round is spent on trying one out. A part's gain is
the tokens a second that it would have given in that round, and Hedge learns from the gains of all.

The choice depends on accepted tokens and on the target's distributions before them, never on what
the target will draw, so that verification stays as lossless as it is for any part alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from ..costs.passes import PassCosts
from ..costs.theory import best_length
from ..protocols import DraftRequest, ScorableDrafter, work
from ..records import Proposal, Sampling
from ..sampling.filters import probabilities
from .catch_up import agreeing
from .hedge import Hedge
from .max_gram import MaxGramDrafter
from .null import NullDrafter

Part = MaxGramDrafter | NullDrafter | ScorableDrafter
PRIOR, PRIOR_WEIGHT = 0.55, 8.0  # of a model's token, and of how many tokens' evidence that is
CERTAIN = Sampling()  # greedy


@dataclass(frozen=True)
class Settings:
    """memory: rounds, as for Hedge.
    trust: of how many rounds' gains a part's own promise for the coming round counts.
    every: so many rounds are scored together, as one batch of a model's steps.
    after: score once, after so many tokens; until then the first part with anything to draft
        does. None goes on scoring.
    drawn: draw the part by its weight; else the leader drafts.
    draft_cost: of a token that a model drafts, in passes over one token.
    longest: tokens of a draft.
    """

    memory: float = 20.0
    trust: float = 4.0
    every: int = 8
    after: int | None = None
    drawn: bool = False
    draft_cost: float = 0.06
    longest: int = 16


@dataclass(frozen=True)
class Start:
    """Where a round begins, and what each part would draft there.

    at: tokens before it.
    lengths: by part, tokens; a part that copies is left out where it has nothing to copy.
    copied: by part, the drafts of those that copy.
    promises: by part, the gain to be expected, by match lengths and records.
    """

    at: int
    lengths: dict[int, int] = field(default_factory=dict)
    copied: dict[int, list[int]] = field(default_factory=dict)
    promises: dict[int, float] = field(default_factory=dict)


@dataclass
class Record:
    """Of a model's tokens, scored ones: how many were tried and right, older ones fading."""

    right: float = PRIOR * PRIOR_WEIGHT
    tried: float = PRIOR_WEIGHT

    def add(self, reached: Sequence[float], kept: float) -> None:
        """reached: at j, the chance that the first j + 1 tokens of a draft are all accepted."""
        self.right = kept * self.right + (1 - kept) * PRIOR * PRIOR_WEIGHT + sum(reached)
        tried = 1 + sum(reached[:-1])
        self.tried = kept * self.tried + (1 - kept) * PRIOR_WEIGHT + tried


@dataclass
class _Answer:
    """What is known of the answer that is being written.

    line: the context that `now` follows.
    starts: rounds not scored yet.
    likelihood: by place, the probability that the target gave the token there, when sampling.
    settled: whether nothing more is scored.
    """

    opening: int
    hedge: Hedge[int]
    records: list[Record]
    line: list[int] = field(default_factory=list)
    now: Start | None = None
    starts: list[Start] = field(default_factory=list)
    likelihood: dict[int, float] = field(default_factory=dict)
    sampling: Sampling = CERTAIN
    settled: bool = False


class SwitchingDrafter:
    """Proposes what one of `parts` does.

    parts: those before others are preferred on a tie, as at the beginning. None of them may need to
        catch up with rounds that it sat out.
    passes: what the target's passes cost.
    source_apart: as for MaxGramDrafter.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        passes: PassCosts,
        settings: Settings,
        device: torch.device,
        source_apart: bool = False,
    ) -> None:
        self.parts, self.device = list(parts), device
        self._models = {
            number: part for number, part in enumerate(parts) if isinstance(part, ScorableDrafter)
        }
        self._passes, self._settings, self._source_apart = passes, settings, source_apart
        self.parameters = max(part.parameters for part in self.parts)
        self.context = min(part.context for part in self.parts)
        self._begin(0)

    def over(self, parts: Sequence[Part]) -> SwitchingDrafter:
        """The same with other parts."""
        return SwitchingDrafter(
            parts, self._passes, self._settings, self.device, self._source_apart
        )

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.parts)

    @property
    def work(self) -> int:
        return sum(work(part) for part in self.parts)

    def reset(self, prompt_ids: list[int]) -> None:
        for part in self.parts:
            part.reset(prompt_ids)
        self._begin(1 if self._source_apart else len(prompt_ids))

    def _begin(self, opening: int) -> None:
        hedge = Hedge[int](len(self.parts), self._settings.memory)
        self._answer = _Answer(opening, hedge, [Record() for _ in self.parts])

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self._answer.sampling = asked.sampling
        start = self._start(context)
        part = self._choose(start, asked)
        most = min(asked.k, start.lengths.get(part, 0))
        if part in self._models and most:
            return self._models[part].propose(context, replace(asked, k=most))
        ids = start.copied.get(part, [])[:most]
        return Proposal(torch.tensor(ids, dtype=torch.int64, device=self.device))

    def observe(self, context: list[int], logits: Tensor, sampling: Sampling) -> None:
        """As in Observer: how likely the target was to give each token."""
        answer, first = self._answer, len(context) - len(logits)
        answer.sampling = sampling
        if sampling.greedy or answer.settled:
            return
        ids = torch.tensor(context[first:], device=logits.device).unsqueeze(1)
        given = probabilities(logits, sampling).gather(1, ids).squeeze(1).tolist()
        answer.likelihood.update(enumerate(given, first))

    def commit(self, context: list[int]) -> None:
        for part in self.parts:
            part.commit(context)
        answer = self._answer
        held = agreeing(answer.line, context)  # less than all of it only inside a cascade
        answer.starts = [start for start in answer.starts if start.at <= held]
        if not answer.settled:
            self._learn(context)
        self._start(context)

    def _start(self, context: list[int]) -> Start:
        """Of the coming round."""
        answer, at, longest = self._answer, len(context), self._settings.longest
        if answer.now is not None and answer.now.at == at and answer.line == context:
            return answer.now
        start = Start(at)
        for number, part in enumerate(self.parts):
            if isinstance(part, MaxGramDrafter):
                part.commit(context)  # the first round's token comes without one
                copy = part.cut(context, longest)
                if not copy.ids:
                    continue
                start.copied[number], reached = copy.ids, copy.chances
            else:
                reached = self._expected(number)
            start.lengths[number] = len(reached)
            start.promises[number] = self._gain(number, reached)
        answer.line, answer.now = list(context), start
        if at > 1 and start.lengths and not answer.settled:  # else there is no state to go on from
            answer.starts.append(start)
        return start

    def _expected(self, number: int) -> list[float]:
        """At j, the chance that the first j + 1 tokens that a model drafts are accepted, by its
        record; of as many tokens as pay by it, at least one. Nothing for no model."""
        if number not in self._models:
            return []
        record, settings = self._answer.records[number], self._settings
        share = record.right / record.tried
        widths = self._passes.ratios(settings.longest)
        length = best_length(share, settings.draft_cost, settings.longest, widths)
        return [share**j for j in range(1, max(1, length) + 1)]

    def _choose(self, start: Start, asked: DraftRequest) -> int:
        among = list(start.lengths)
        if not among:
            return 0
        if self._settings.after is not None and not self._answer.settled:
            return among[0]
        hints = {part: self._settings.trust * promise for part, promise in start.promises.items()}
        if self._settings.drawn:
            weights = torch.tensor(self._answer.hedge.weights(hints), device=self.device)
            return among[int(asked.chance.draw(weights))]
        return self._answer.hedge.leader(hints)

    # -- learning ------------------------------------------------------------------------------

    def _learn(self, context: list[int]) -> None:
        """Score rounds of which all is known; or once, as far as they are known by then."""
        answer, settings = self._answer, self._settings
        seen = min((model.seen for model in self._models.values()), default=len(context))
        due = [start for start in answer.starts if start.at - 1 <= seen]
        if settings.after is not None:
            if len(context) - answer.opening >= settings.after:
                self._score([start for start in due if start.at < len(context)], context)
                answer.settled, answer.starts = True, []
            return
        due = [s for s in due if s.at + max(s.lengths.values()) <= len(context)]
        if len(due) >= settings.every:
            self._score(due, context)
            answer.starts = [start for start in answer.starts if start not in due]

    def _score(self, starts: list[Start], context: list[int]) -> None:
        gains: list[dict[int, float]] = [{} for _ in starts]
        for number in range(len(self.parts)):
            among = [i for i, start in enumerate(starts) if number in start.lengths]
            chances = self._acceptance(number, [starts[i] for i in among], context)
            for i, each in zip(among, chances, strict=True):
                reached = list(accumulate(each, mul))
                if number in self._models:
                    self._answer.records[number].add(reached, self._answer.hedge.kept)
                gains[i][number] = self._gain(number, reached)
        for gain in gains:
            self._answer.hedge.learn(gain)

    def _acceptance(
        self, number: int, starts: list[Start], context: list[int]
    ) -> list[list[float]]:
        """By start, the chance of each token of the part's draft there, as far as `context` goes,
        given that those before it were accepted."""
        if not starts:
            return []
        answer = self._answer
        if number in self._models:
            drafts = {s.at: min(s.lengths[number], len(context) - s.at) for s in starts}
            model = self._models[number]
            return model.acceptance(context, drafts, answer.sampling, answer.likelihood)
        copies = [(s.copied.get(number, []), context[s.at :]) for s in starts]
        return [[float(a == b) for a, b in zip(*pair, strict=False)] for pair in copies]

    def _gain(self, number: int, reached: list[float]) -> float:
        """Tokens that the round would have given, in the time of a pass over one token."""
        drafted = len(reached)
        cost = self._settings.draft_cost if number in self._models else 0.0
        width = self._passes(drafted + 1) / self._passes(1)
        return (1 + sum(reached)) / (width + cost * drafted)
