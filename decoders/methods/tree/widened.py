"""Tree attention over any chain of drafts (D17; Chen et al., "Cascade Speculative Drafting",
appendix B): the leading drafts have siblings, which the target verifies in the same pass and which
cost the drafter nothing. `tree.py` has trees in which every node has children.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...earlier.prefixes import agreeing
from ...protocols import Drafter, DraftRequest, RequestScope, enter, work
from ...records import Proposal
from ...sampling.randomness import RandomSource
from ...sampling.tree_shape import TreeShape


class WidenedDrafter:
    """A chain whose leading tokens have siblings.

    inner: drafts the chain.
    branch: children at each leading depth, the chain's own among them. The others come from the
        distribution that the chain's token was drawn from, at temperature 0 from the drafter's
        confidence there, and have no children. A copied token has no siblings: its drafter knows
        no second one.
    slots: positions that the target's cache holds; where a tree does not fit, the chain is alone.
    """

    def __init__(self, inner: Drafter, branch: tuple[int, ...], slots: int) -> None:
        self.inner, self._shape, self._slots = inner, TreeShape(branch), slots
        self._drafted: list[int] = []
        self._at = 0  # where it begins

    @property
    def parameters(self) -> int:
        return self.inner.parameters

    @property
    def context(self) -> int:
        return self.inner.context

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
        greedy = asked.sampling.greedy
        chain = self.inner.propose(context, replace(asked, needs_raw=asked.needs_raw or greedy))
        depths = len(chain.ids)
        self._drafted, self._at = chain.ids.tolist(), len(context)
        distributions = chain.raw if greedy else chain.probs
        if distributions is None or len(context) + self._shape.nodes(depths) > self._slots:
            return chain
        tokens, drawn_from, parents = [chain.ids], list(distributions), list(range(-1, depths - 1))
        for depth in range(min(depths, len(self._shape.branch))):
            more = self._shape.width(depth) - 1
            made, drawn = siblings(
                distributions[depth], chain.ids[depth], more, greedy, asked.chance
            )
            tokens.append(made)
            drawn_from += drawn
            parents += [depth - 1] * len(made)
        if len(parents) == depths:
            return chain
        probs = None if greedy else torch.stack(drawn_from)
        return Proposal(torch.cat(tokens), probs, parents=tuple(parents))

    def commit(self, context: list[int]) -> None:
        written = context[self._at : -1]  # but the newest token, which the target added
        accepted = agreeing(self._drafted, written)
        if self._drafted and accepted < len(written):  # a sibling was, in the chain's place
            self.inner.commit(context[: self._at + accepted + 1])
        self._drafted = []
        self.inner.commit(context)


def siblings(
    distribution: Tensor, first: Tensor, count: int, greedy: bool, chance: RandomSource
) -> tuple[Tensor, list[Tensor]]:
    """At most `count` tokens [n] next to `first` [] that `distribution` [V] gives a chance.

    Greedy: the most likely. Sampled: each drawn from what those before it leave, with that [V].
    """
    left = distribution.index_fill(0, first, 0.0)
    if greedy:
        likely = left.topk(min(count, len(left)))
        return likely.indices[likely.values > 0], []
    tokens = [first.new_empty(0)]
    distributions: list[Tensor] = []
    while len(distributions) < count and (mass := left.sum()) > 0:
        distributions.append(left / mass)
        tokens.append(chance.draw(distributions[-1]).view(1))
        left = left.index_fill(0, tokens[-1], 0.0)
    return torch.cat(tokens), distributions
