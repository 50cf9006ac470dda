"""Copying or a model's draft, chosen in every round by the higher expected tokens a
second.

A copy's acceptance is that of its match lengths, a model's that of its drafts so far; both are
learnt within the answer. Where neither promises more than plain decoding, the model is asked all
the same where `ProbeSchedule` says so, so that it goes on learning. The choice depends on accepted
tokens alone, never on what the target will draw, so that verification stays as lossless as for
either alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...costs.pass_costs import PassCosts, ProbeSchedule
from ...device_rounds import DeviceDrafter
from ...earlier.prefixes import agreeing
from ...protocols import Drafter, DraftRequest, RequestScope, enter, work
from ...records import Proposal
from ..device import PRIOR, PRIOR_WEIGHT, REMEMBERED, Chain
from ..max_gram.drafter import MaxGramDrafter
from ..suffix.drafter import SuffixDrafter, proposal

if TYPE_CHECKING:
    from .device import HybridRoundDraft


Copying = MaxGramDrafter | SuffixDrafter


def fastest_draft(
    share: float, ratios: Sequence[float], k: int, cost: float
) -> tuple[int, float, bool]:
    """The length of a model's draft that promises the most tokens a second, its tokens in the time
    of a pass over one, and whether any draft would be worth its time, were all of its tokens
    accepted.

    share: of the model's tokens that are accepted.
    ratios: of passes, as `PassCosts.ratios`.
    k: tokens, at least 1 and at most so many.
    cost: of a token, in passes over one.
    """
    length, speed, may_pay, expected, chance = 1, 0.0, False, 1.0, 1.0
    for n in range(1, k + 1):
        chance *= share
        expected += chance
        spent = ratios[n] + n * cost
        may_pay = may_pay or n + 1 > spent
        if expected / spent > speed:
            length, speed = n, expected / spent
    return length, speed, may_pay


class HybridDrafter:
    """Proposes what `copying` or `model` does.

    model: any drafter of a chain.
    passes: what the target's passes cost.
    draft_cost: of a token that the model drafts, in passes over one token.
    in_turn: whether the model drafts for one answer after the other, which costs more the more
        answers share the target's passes.
    """

    def __init__(
        self,
        copying: Copying,
        model: Drafter,
        passes: PassCosts,
        draft_cost: float = 0.06,
        in_turn: bool = False,
    ) -> None:
        self.copying, self.model = copying, model
        self._passes, self._draft_cost, self._in_turn = passes, draft_cost, in_turn
        self.parameters = model.parameters
        self.context = model.context
        self._forget()

    def over(self, model: Drafter) -> HybridDrafter:
        """The same with another model. What copies is shared: use one at a time."""
        return HybridDrafter(self.copying, model, self._passes, self._draft_cost, self._in_turn)

    @property
    def calls(self) -> int:
        return self.model.calls

    @property
    def work(self) -> int:
        return work(self.model)

    def enter(self, scope: RequestScope) -> None:
        enter(self.copying, scope)
        enter(self.model, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        self.copying.reset(prompt_ids)
        self.model.reset(prompt_ids)
        self._right, self._tried = PRIOR * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._probes = ProbeSchedule()  # of the model
        self._barred = False  # whether it would not pay if all of its tokens were accepted
        self._committed = 0  # how long the context was that the model has followed
        self._behind = False  # whether it has sat out rounds since, as it was barred
        self._forget()

    def _forget(self) -> None:
        self._at = 0  # where the last round's drafts begin; 0 for none
        self._drafted = list[int]()

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self._forget()
        k = asked.k
        self._at = len(context)
        self.copying.commit(context)  # the first round's token comes without one
        copy = self.copying.copy(context, k, asked.sampling.temperature)
        cut = self._passes.best_cut(copy.chances)
        ratios = self._passes.ratios(max(k, cut))
        share = self._right / self._tried
        cost = self._draft_cost * (self._passes.turns() if self._in_turn else 1.0)
        length, speed, may_pay = fastest_draft(share, ratios, k, cost)
        copying = (1 + sum(copy.chances[:cut])) / ratios[cut]
        self._barred = not may_pay
        if copying < speed:
            self._probes.reset()
        elif cut or self._barred or not self._probes.should_probe():  # it may be that of no draft
            return proposal(copy.cut(cut), self.copying.device)
        if self._behind:
            self.model.commit(context)
            self._behind = False
        made = self.model.propose(context, replace(asked, k=length))
        self._drafted = made.ids.tolist()
        return made

    def round_draft(self) -> HybridRoundDraft | None:
        """The device form, where both parts have one."""
        from ..max_gram.device import Copies
        from .device import HybridRoundDraft

        parts = [
            part.round_draft() if isinstance(part, DeviceDrafter) else None
            for part in (self.copying, self.model)
        ]
        match parts:
            case Copies() as copies, Chain() as model:
                return HybridRoundDraft(copies, model)
        return None

    def commit(self, context: list[int]) -> None:
        sits_out = self._barred and self._in_turn and not self._drafted
        self._learn(context)
        self.copying.commit(context)
        self._behind = sits_out and len(context) > self._committed  # a cascade may take some back
        if not self._behind:
            self.model.commit(context)
            self._committed = len(context)

    def _learn(self, context: list[int]) -> None:
        """From what was accepted since the last draft, once a round."""
        written = context[self._at :] if self._at else []
        if not written:
            return
        self.copying.learn(written)
        right, tried = (1 - REMEMBERED) * PRIOR * PRIOR_WEIGHT, (1 - REMEMBERED) * PRIOR_WEIGHT
        if self._drafted:
            right = agreeing(self._drafted, written)
            tried = min(right + 1, len(written), len(self._drafted))
            if right == 0:
                self._probes.rejected()
        self._right, self._tried = (
            REMEMBERED * self._right + right,
            REMEMBERED * self._tried + tried,
        )
        self._forget()
