"""What a collection asks of a drafter whose drafts follow from known answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from decoders.protocols import Backend, Drafter, DraftLength, RequestScope

from .records import Expected, Replay, Written


class KnownAnswers(Protocol):
    """The target's answers to n prompts and what it made of each token: read when first asked for,
    once for all arms.

    ids: of each answer; the prompt's own pass gave the first.
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
    def batched(self) -> bool: ...

    @property
    def states(self) -> list[Tensor]:
        """Per answer [T, d], the target's final state in front of each of its T tokens."""
        ...

    def log_p(self, temperature: float) -> list[Tensor]:
        """Per answer [T], log p of each token; the first, which is never drafted, may have any."""
        ...


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


class Replayable(Protocol):
    """What a collection asks about a drafter, answered by an adapter in `decoders.ADAPTERS`: many
    answers at once, without the target's passes. A drafter without one is run for one query at a
    time. `offline.registry.ReplayAdapter` has a default for each member.

    timed: the drafter whose drafts are timed for what a drafted token costs.
    counts_calls: whether its `calls` are the tokens that models drafted, because it drafts others
        that cost nothing.
    """

    @property
    def timed(self) -> Drafter: ...

    @property
    def counts_calls(self) -> bool: ...

    def steps(self, answers: int) -> float:
        """Cost of a drafted token for a number of answers that share passes, over its cost for one
        answer."""
        ...

    def write(
        self,
        target: Backend,
        prompts: list[list[int]],
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Written | None:
        """The drafter's own greedy answers; None where it must be run for one query at a time."""
        ...

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        """The loop at temperature 0 along each answer; None as in `write`."""
        ...

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected] | None:
        """The loop at a temperature above 0 along each answer, on average; None where the arm must
        be run, because its drafts do not follow from the answers.

        seeds: one an answer, for what is simulated.
        """
        ...
