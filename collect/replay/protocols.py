"""The seam between a collection and drafters whose drafts follow from known answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from decoders.protocols import Backend, DraftLength, RequestScope


@dataclass(frozen=True, eq=False)
class KnownAnswers:
    """The target's answers to n prompts and what it made of each token.

    ids: of each answer; the prompt's own pass gave the first.
    temperature, seeds: what each was drawn at, without filters, and by (`decoders.sampling.race`);
        seeds of 0 where nothing was drawn. The drafts of its tokens are drawn by the same clocks.
    batched: whether the target reads many of them at once.
    read: gives `states`.
    kept: what adapters have worked out of these answers, for other arms and loads, by their keys.
    """

    target: Backend
    prompts: list[list[int]]
    ids: list[list[int]]
    temperature: float
    seeds: list[int]
    batched: bool
    read: Callable[[], list[Tensor]]
    kept: dict[Hashable, Any] = field(default_factory=dict)

    @cached_property
    def states(self) -> list[Tensor]:
        """Per answer [T, d], the target's final state in front of each of its T tokens: read when
        first asked for, once for all arms."""
        return self.read()

    def same(self, other: KnownAnswers) -> bool:
        """Whether these are the same answers, written in the same way."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("prompts", "ids", "temperature", "seeds")
        )

    def rows(self, rows: Sequence[int]) -> KnownAnswers:
        """Some of them; all are read together all the same."""
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            ids=[self.ids[row] for row in rows],
            seeds=[self.seeds[row] for row in rows],
            read=lambda: [self.states[row] for row in rows],
            kept={},
        )


@dataclass(frozen=True)
class ReplayedLoop:
    """The loop of an arm that is replayed along known answers.

    length: decides how many tokens each round drafts.
    max_new_tokens: the limit under which the answers were written. What is left of it bounds a
        draft, as in the loop, which cannot know that an answer will end sooner.
    draft_s: seconds that `length` is shown for a drafted token.
    verify_s: seconds of a pass over the number of tokens.
    agreement: whether `Replay.agree` is asked for, which takes a draft at every token.
    scope: of the answers, where the loop itself writes them.
    """

    length: DraftLength
    max_new_tokens: int
    draft_s: float = 0.0
    verify_s: Callable[[int], float] = lambda width: 0.0
    agreement: bool = True
    scope: RequestScope = field(default_factory=RequestScope)
