"""The seam between a collection and drafters whose drafts follow from known answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from decoders.protocols import Backend, DraftLength, RequestScope


class KnownAnswers(Protocol):
    """The target's answers to n prompts and what it made of each token: read when first asked for,
    once for all arms.

    ids: of each answer; the prompt's own pass gave the first.
    temperature, seeds: what each was drawn at, without filters, and by (`decoders.sampling.race`).
        The drafts of its tokens are drawn by the same clocks.
    batched: whether the target reads many of them at once.
    kept: what adapters have worked out of these answers, for other arms and loads, by their keys.
    """

    kept: dict[Hashable, Any]

    @property
    def target(self) -> Backend: ...

    @property
    def prompts(self) -> list[list[int]]: ...

    @property
    def ids(self) -> list[list[int]]: ...

    @property
    def temperature(self) -> float: ...

    @property
    def seeds(self) -> list[int]: ...

    @property
    def batched(self) -> bool: ...

    @property
    def states(self) -> list[Tensor]:
        """Per answer [T, d], the target's final state in front of each of its T tokens."""


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
