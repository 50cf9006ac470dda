"""Tree attention over any chain of drafts (Chen et al., "Cascade Speculative Drafting",
appendix B): the leading drafts have siblings, which the target verifies in the same pass and which
cost the drafter nothing. `tree.py` has trees in which every node has children.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...earlier.prefixes import agreeing
from ...protocols import Drafter, DraftRequest, ModelDrafter, RequestScope, enter, work
from ...records import Proposal, Sampling
from ...sampling.filters import chosen, cooled
from ...sampling.tree_shape import TreeShape


class WidenedDrafter:
    """A chain whose leading tokens have siblings.

    inner: drafts the chain.
    branch: children at each leading depth, the chain's own among them. The others are those that
        the drafter would have drafted next there, and have no children. A copied token has no
        siblings: its drafter knows no second one.
    slots: positions that the target's cache holds; where a tree does not fit, the chain is alone.
    """

    def __init__(self, inner: Drafter, branch: tuple[int, ...], slots: int) -> None:
        self.inner, self._shape, self._slots = inner, TreeShape(branch), slots
        self.parameters, self.context = inner.parameters, inner.context
        if isinstance(inner, ModelDrafter):
            self.backend = inner.backend
        self._drafted: list[int] = []
        self._at = 0  # where it begins

    @property
    def calls(self) -> int:
        return self.inner.calls

    @property
    def work(self) -> int:
        return work(self.inner)

    def enter(self, scope: RequestScope) -> None:
        enter(self.inner, scope)

    def reset(self, prompt_ids: list[int]) -> None:
        self.inner.reset(prompt_ids)
        self._drafted = []

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        chain = self.inner.propose(context, replace(asked, needs_raw=True))
        depths = len(chain.ids)
        self._drafted, self._at = chain.ids.tolist(), len(context)
        if chain.raw is None or len(context) + self._shape.nodes(depths) > self._slots:
            return chain
        tokens, parents = [chain.ids], list(range(-1, depths - 1))
        for depth in range(min(depths, len(self._shape.branch))):
            more, place = self._shape.width(depth) - 1, len(context) + depth
            made = siblings(chain.raw[depth], chain.ids[depth], more, asked, place)
            tokens.append(made)
            parents += [depth - 1] * len(made)
        if len(parents) == depths:
            return chain
        return Proposal(torch.cat(tokens), parents=tuple(parents))

    def commit(self, context: list[int]) -> None:
        written = context[self._at : -1]  # but the newest token, which the target added
        accepted = agreeing(self._drafted, written)
        if self._drafted and accepted < len(written):  # a sibling was, in the chain's place
            self.inner.commit(context[: self._at + accepted + 1])
        self._drafted = []
        self.inner.commit(context)


def siblings(raw: Tensor, first: Tensor, count: int, asked: DraftRequest, place: int) -> Tensor:
    """At most `count` tokens [n] next to `first` [] that a drafter gives a chance, by `raw` [V]:
    those that it would have drafted in its place."""
    count = min(count, len(raw))
    if count < 1:
        return first.new_empty(0)
    sampling, logits = asked.sampling, raw.log().index_fill(0, first, -torch.inf).unsqueeze(0)
    if not (sampling.greedy or sampling.unfiltered):
        sampling, logits = Sampling(1.0), cooled(logits, sampling)
    best = chosen(logits, sampling, asked.chance, place, None, count)[0]
    return best[logits[0, best] > -torch.inf]
