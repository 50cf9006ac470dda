"""SuffixDecoding (Oliaro et al., arXiv 2411.04975): what followed the longest earlier match, in the
conversation or in earlier answers, as often as it did.

The conversation has an index of its own. The earlier answers are those of the request's user, from
all places where answers are written. Per round the one is drafted from that promises more
tokens a second. The draft depends on accepted tokens and on earlier answers alone, never on what
the target will draw, so that it is verified as losslessly as any copy.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from ...costs.pass_costs import PassCosts
from ...earlier.index import MAX_MATCH, SuffixIndex
from ...earlier.prefixes import agreeing
from ...earlier.votes import Draft, Wanted, draft
from ...protocols import DraftRequest, RequestScope
from ...records import Proposal
from ...sampling.tree_shape import lead, lead_first
from ..max_gram.copying import CopyChances


class SuffixDrafter:
    """Deterministic: its probabilities are one-hot.

    passes: what the target's passes cost; the draft ends where it pays best.
    wanted: of every draft, but for its depth.
    source_apart: as of MaxGramDrafter.
    slots: positions that the target's cache holds; where a tree does not fit, a chain is drafted.
    """

    parameters = 0
    context = sys.maxsize

    def __init__(
        self,
        device: torch.device,
        passes: PassCosts,
        wanted: Wanted,
        source_apart: bool = False,
        slots: int = sys.maxsize,
    ) -> None:
        self.device, self._scope, self._passes = device, RequestScope(), passes
        self._wanted, self._source_apart, self._slots = wanted, source_apart, slots
        self._chances = CopyChances(), CopyChances()  # of this conversation, of earlier answers
        self._source: list[int] = []
        self._line: list[int] = []  # the text that is indexed
        self._own = SuffixIndex()
        self.calls = 0
        self._forget()

    @property
    def branches(self) -> bool:
        """Whether its drafts are trees."""
        return self._wanted.width > 1

    def enter(self, scope: RequestScope) -> None:
        self._scope = scope

    def reset(self, prompt_ids: list[int]) -> None:
        if prompt_ids != self._source:  # of the same prompt only what followed it is forgotten
            self._own, self._line = SuffixIndex(), []
        self._source = prompt_ids
        self.calls = 0
        for chances in self._chances:
            chances.reset()
        self._forget()
        self._index(prompt_ids)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.calls += 1
        made = self.copy(context, asked.k, asked.sampling.temperature)
        made = made.cut(self._passes.best_cut(made.chances))
        return proposal(made, self.device)

    def commit(self, context: list[int]) -> None:
        self.learn(context[self._at :] if self._at else [])
        self._index(self._text(context))

    def copy(self, context: list[int], k: int, temperature: float = 0.0) -> Draft:
        text = self._text(context)
        self._index(text)
        self._at, tail = len(context), text[-MAX_MATCH:]
        own, earlier = self._chances
        own.temperature = earlier.temperature = temperature
        wanted = replace(self._wanted, depth=k)
        if wanted.width > 1 and len(context) + wanted.nodes > self._slots:
            wanted = replace(wanted, width=1)
        self._made = (
            draft(self._own, tail, wanted, own, runs_on=True),
            self._earlier(tail, wanted, earlier),
        )
        return max(self._made, key=self._speed)

    def _earlier(self, tail: list[int], wanted: Wanted, chances: CopyChances) -> Draft:
        answers, user = self._scope.answers, self._scope.user
        if answers is None or user is None:
            return Draft()
        return answers.draft(user, tail, wanted, chances)

    def learn(self, written: list[int]) -> None:
        if not written:
            return
        for chances, made in zip(self._chances, self._made, strict=True):
            leading = range(len(made.ids)) if made.parents is None else lead(made.parents)
            ids = [made.ids[node] for node in leading]
            matched = [made.matched[node] for node in leading]
            chances.observe(matched, agreeing(ids, written), len(written))
        self._forget()

    def _forget(self) -> None:
        self._at = 0  # where the last drafts begin; 0 for none
        self._made = Draft(), Draft()

    def _speed(self, made: Draft) -> float:
        """Tokens that it promises in the time of a pass over one."""
        cut = self._passes.best_cut(made.chances)
        return (1 + sum(made.chances[:cut])) / self._passes.ratios(cut)[cut]

    def _text(self, context: list[int]) -> list[int]:
        """All text there is to copy from."""
        return self._source + context[1:] if self._source_apart else context

    def _index(self, text: list[int]) -> None:
        same = agreeing(self._line, text)
        self._own.truncate(same)
        self._own.extend(text[same:])
        self._line[same:] = text[same:]


def proposal(made: Draft, device: torch.device) -> Proposal:
    """A tree with its lead, the likeliest token after each, in front."""
    if made.parents is None:
        return Proposal(torch.tensor(made.ids, dtype=torch.int64, device=device))
    order, parents = lead_first(made.parents)
    ids = [made.ids[node] for node in order]
    return Proposal(torch.tensor(ids, dtype=torch.int64, device=device), parents=parents)
