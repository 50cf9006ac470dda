"""A grammar along one answer: which tokens the target may write at each place of a draft.

The target's distribution at every position of a draft is masked by what the grammar takes after the
tokens before it, and the verifier then sees these distributions alone. So answers are distributed
as token-by-token constrained decoding's, whatever is drafted. A draft ends before a token that the
grammar refuses, unless it was drawn in turn for a rule that reads its probabilities: then that
token must stay, to be rejected and its position drawn from the residual. To drop it and draw from
the target anew would favour what the drafter favours.

Tokens that the grammar forces are drafted for nothing, before a draft and at its end. The drafter
goes on from those before it, as they are certain.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..protocols import GrammarAt, GrammarState
from ..records import Proposal
from .chains import joined

FORCED = 16  # most tokens of a draft that the grammar forces


class Guide:
    """Guides one answer through its grammar, from its beginning.

    cut: whether the last draft was fitted by leaving some of it out.
    """

    def __init__(self, state: GrammarState) -> None:
        self._state = state
        self.cut = False
        self._masks: list[Tensor | None] = []  # of the last draft's rows; None for any token

    def first(self, logits: Tensor) -> Tensor:
        """[V] logits of the next token, without those that may not come."""
        return _masked(logits.unsqueeze(0), [self._state.allowed()])[0]

    def take(self, ids: list[int]) -> None:
        """These tokens were written, of which only the last may end the answer."""
        for token in ids:
            self._state.take(token)

    def forced(self, room: int) -> list[int]:
        """At most `room` tokens that alone may come next."""
        return self._state.forced()[: min(room, FORCED)]

    def after(self, forced: list[int], context: list[int]) -> GrammarAt:
        """For a drafter that goes on from `context`, which ends with the forced tokens."""
        state = self._state.copy()
        for token in forced:
            state.take(token)
        return GrammarAt(state, len(context))

    def fit(self, forced: list[int], drafted: Proposal, room: int) -> Proposal:
        """The forced tokens and the draft that goes on from them, up to its first token that may
        not come, which stays where it was drawn, and else with those that must follow it, to at
        most `room`; a tree whole. `masked` comes next."""
        proposal, self.cut = _prefixed(forced, drafted), False
        if proposal.parents is not None:
            self._masks = self._along_tree(proposal.ids.tolist(), proposal.parents)
            return proposal
        state = self._state.copy()
        mask = state.allowed()
        self._masks, kept, open_ = [mask], 0, True
        for token in proposal.ids.tolist():
            if not mask[token]:
                self.cut = True
                if proposal.probs is None:
                    break
                return _cut(proposal, kept + 1)
            kept += 1
            open_ = state.take(token)
            if not open_:
                self.cut = kept < len(proposal.ids)
                break
            mask = state.allowed()
            self._masks.append(mask)
        more = state.forced()[: max(0, min(FORCED, room - kept))] if open_ else []
        for token in more:
            state.take(token)
            self._masks.append(state.allowed())
        kept_part = _cut(proposal, kept)
        return joined([kept_part, _certain(more, proposal)]) if more else kept_part

    def masked(self, logits: Tensor) -> Tensor:
        """[K + 1, V] the target's logits of the draft that was fitted, each row without what may
        not come there. Rows behind a token that may not come are never reached, and left alone."""
        return _masked(logits, self._masks)

    def _along_tree(self, ids: list[int], parents: tuple[int, ...]) -> list[Tensor | None]:
        """One mask for the newest token and one for each node."""
        states: list[GrammarState | None] = [self._state]
        masks: list[Tensor | None] = [self._state.allowed()]
        for token, parent in zip(ids, parents, strict=True):
            above, mask = states[parent + 1], masks[parent + 1]
            if above is None or mask is None or not mask[token]:
                states.append(None)
                masks.append(None)
                continue
            state = above.copy()
            goes_on = state.take(token)
            states.append(state if goes_on else None)
            masks.append(state.allowed() if goes_on else None)
        return masks


def _masked(logits: Tensor, masks: list[Tensor] | list[Tensor | None]) -> Tensor:
    """A copy of [n, V] without the tokens that each row's mask leaves out; rows without a mask, and
    those after the last one, keep all."""
    rows = [row for row, mask in enumerate(masks) if mask is not None]
    allowed = torch.stack([mask for mask in masks if mask is not None]).to(logits.device)
    if len(rows) == len(logits):
        return logits.where(allowed, -torch.inf)
    made = logits.clone()
    made[rows] = logits[rows].where(allowed, -torch.inf)
    return made


def _certain(tokens: list[int], like: Proposal) -> Proposal:
    """A draft of tokens of which each alone may come."""
    return Proposal(torch.tensor(tokens, dtype=torch.int64, device=like.ids.device))


def _prefixed(forced: list[int], proposal: Proposal) -> Proposal:
    """A proposal behind tokens of which each is certain."""
    if not forced:
        return proposal
    made, count = joined([_certain(forced, proposal), proposal]), len(forced)
    if proposal.parents is None:
        return made
    parents = (*range(-1, count - 1), *(count + parent for parent in proposal.parents))
    return replace(made, parents=parents)


def _cut(proposal: Proposal, count: int) -> Proposal:
    """The first `count` tokens of a chain."""
    if count == len(proposal.ids):
        return proposal
    probs, raw = (None if rows is None else rows[:count] for rows in (proposal.probs, proposal.raw))
    return Proposal(proposal.ids[:count], probs, raw)
