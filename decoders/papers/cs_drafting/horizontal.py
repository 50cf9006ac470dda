"""Horizontal cascade: earlier draft positions from the better drafter, later ones from cheaper ones
(Chen et al., "Cascade Speculative Drafting", section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...lengths import FixedLength
from ...protocols import Backend, Drafter, DraftRequest, RequestScope, enter, work
from ...records import Proposal
from ...verify.chains import joined
from .vertical import VerticalDrafter


@dataclass(frozen=True)
class Part:
    """One drafter of the cascade.

    tokens: by how many its limit lies above that of the part before it.
    min_confidence: it stops before a token that it gives less.
    """

    drafter: Drafter
    tokens: int
    min_confidence: float = 0.0


class HorizontalDrafter:
    """Each part drafts until the limits of the parts up to it are reached together: where one was
    short, the next makes up for it. A vertical cascade may pass its limit, as the tokens that it
    has accepted beyond it cost nothing more.

    owned: how many parts, from the first, are this drafter's own to reset and commit. The others
        must be at work inside those, sharing their cache: None for all.
    """

    def __init__(self, parts: Sequence[Part], owned: int | None = None) -> None:
        self.parts = list(parts)
        self._own = [part.drafter for part in self.parts[:owned]]
        self.parameters = sum(drafter.parameters for drafter in self._own)
        self.context = min(drafter.context for drafter in self._own)

    @property
    def calls(self) -> int:
        return sum(drafter.calls for drafter in self._own)

    @property
    def work(self) -> int:
        return sum(work(drafter) for drafter in self._own)

    def enter(self, scope: RequestScope) -> None:
        for drafter in self._own:
            enter(drafter, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        for drafter in self._own:
            drafter.reset(prompt_ids)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        line, made, limit = list(context), list[Proposal](), 0
        for part in self.parts:
            limit = min(limit + part.tokens, asked.k)
            drafted = len(line) - len(context)
            if drafted >= limit:
                continue
            least, most, drafter = limit - drafted, asked.k - drafted, part.drafter
            if isinstance(drafter, VerticalDrafter):
                proposal = drafter.draft(line, least, replace(asked, k=most))
            else:
                bar = max(asked.min_confidence, part.min_confidence)
                proposal = drafter.propose(line, replace(asked, k=least, min_confidence=bar))
            made.append(proposal)
            line += proposal.ids.tolist()
        return joined(made)

    def commit(self, context: list[int]) -> None:
        for drafter in self._own:
            drafter.commit(context)


def cs_drafter(
    verifier_models: Sequence[Backend],
    last: Drafter,
    K: Sequence[Sequence[int]],
    lenience: float,
    longest: int,
) -> HorizontalDrafter:
    """What drafts for the target.

    verifier_models: from larger to smaller.
    last: drafts with no help.
    K: row 0 is for the target, row i + 1 for verifier_models[i]; each says how many tokens the
        models after the row's own add in turn.
    longest: bounds any one draft.

    A model's step is the same inside a larger model's step and next to it, so each model has one
    drafter and one cache.
    """
    drafters = [last]

    def row(i: int) -> HorizontalDrafter:
        parts = [Part(d, tokens) for d, tokens in zip(drafters, K[i][i:], strict=True)]
        return HorizontalDrafter(parts, owned=1)  # the largest holds the others inside

    for i in reversed(range(len(verifier_models))):
        step = VerticalDrafter(verifier_models[i], row(i + 1), FixedLength(longest), lenience)
        drafters.insert(0, step)
    return row(0)
