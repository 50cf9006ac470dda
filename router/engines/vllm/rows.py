"""Which request each row of vLLM's batch holds, and what drafts for requests.

vLLM gives a proposer arrays by row, and no request ids. Rows move: where a request ends, the last
row takes its place, and a preempted request comes back in any row, as long as it was. So a request
is known by its content alone. Requests of equal content are interchangeable until their first
different token, as those of one prompt with `n` > 1; of these a row keeps its own where it can, and
none that could not have given the tokens that came, by what was drafted for it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.earlier.votes import Draft

PATIENCE = 256  # steps that a request may be absent, as while it is preempted


class TrackedRequest:
    """One request, as far as it was seen.

    prompt_tokens: of its content when it was first seen, but for the tokens that came then.
    length: tokens of its content.
    row: where it was last.
    came: tokens of the last step.
    draft: proposed for the coming step.
    verified: the draft that was verified for `came`.
    missed: steps since it was last seen.
    id: which its lines in the log share.
    stretch: an `answers.Stretch`, of the arm that drafts for it; None where none was chosen.
    made: its drafter's last draft, before what would not pay was cut off.
    """

    def __init__(self, ids: NDArray[np.int32], came: int, row: int) -> None:
        self.length = len(ids)
        self.prompt_tokens = self.length - came
        self._ids = np.empty(max(64, 2 * self.length), dtype=np.int32)
        self._ids[: self.length] = ids
        self.row = row
        self.came: list[int] = ids[self.prompt_tokens :].tolist()
        self.draft: list[int] = []
        self.verified: list[int] = []
        self.missed = 0
        self.id = uuid.uuid4().hex
        self.stretch: Any = None
        self.made = Draft()

    @property
    def ids(self) -> NDArray[np.int32]:
        """[length], the prompt and the answer so far."""
        return self._ids[: self.length]

    def precedes(self, ids: NDArray[np.int32], came: Sequence[int]) -> bool:
        """Whether a row with this content can be this request one step later. came: its last
        tokens, which that step gave."""
        accepted = len(came) - 1
        return (
            self.length == len(ids) - len(came)
            and accepted <= len(self.draft)
            and list(came[:accepted]) == self.draft[:accepted]
            and np.array_equal(self.ids, ids[: self.length])
        )

    def unlikely(self, row: int) -> tuple[bool, bool]:
        """Sorts requests that could be in a row alike: first those of the last step, and of them
        the one that was in it."""
        return self.missed > 0, self.row != row

    def go_on(self, ids: NDArray[np.int32], came: Sequence[int], row: int) -> None:
        if len(ids) > len(self._ids):
            self._ids = np.concatenate([self.ids, np.empty(2 * len(ids), dtype=np.int32)])
        self._ids[self.length : len(ids)] = ids[self.length :]
        dropped = self.missed > 0 and len(came) == 1  # with preemption the draft is
        self.verified, self.draft = [] if dropped else self.draft, []
        self.length, self.row, self.missed = len(ids), row, 0
        self.came = list(came)


class RequestRows:
    """Finds the request of every row, step after step.

    patience: steps after which an absent request is taken to have ended.
    ends: tokens that end an answer; a request that ends in one has ended once it is absent.
    """

    def __init__(self, patience: int = PATIENCE, ends: Sequence[int] = ()) -> None:
        self._patience, self._ends = patience, frozenset(ends)
        self.known: list[TrackedRequest] = []

    def step(
        self,
        came: Sequence[Sequence[int]],
        lengths: Sequence[int] | NDArray[np.integer[Any]],
        token_ids: NDArray[np.int32],
    ) -> tuple[list[TrackedRequest | None], list[TrackedRequest]]:
        """(the request of each row, those that ended).

        came: by row, the tokens of the step; none while a prompt is being read, and then the row's
            request is None.
        lengths: by row, tokens of the content, those of the step included.
        token_ids: [rows or more, most tokens].
        """
        found: list[TrackedRequest | None] = [None] * len(came)
        waiting: dict[int, list[TrackedRequest]] = defaultdict(list)
        for request in self.known:
            waiting[request.length].append(request)
        reading = [row for row, tokens in enumerate(came) if len(tokens)]
        # A row that more came to fits fewer of the requests that are alike, and any that fits it
        # fits those that less of the same came to: so none is left without.
        for row in sorted(reading, key=lambda row: -len(came[row])):
            ids = token_ids[row, : int(lengths[row])]
            tokens = came[row]
            alike = waiting[len(ids) - len(tokens)]
            fitting = (each for each in alike if each.precedes(ids, tokens))
            before = min(fitting, key=lambda each: each.unlikely(row), default=None)
            if before is None:
                found[row] = TrackedRequest(ids, len(tokens), row)
            else:
                alike.remove(before)
                before.go_on(ids, tokens, row)
                found[row] = before
        return found, self._absent(list(filter(None, found)))

    def _absent(self, present: list[TrackedRequest]) -> list[TrackedRequest]:
        """Keep those that may come back; the others."""
        here = set(map(id, present))
        ended, kept = list[TrackedRequest](), list[TrackedRequest]()
        for request in self.known:
            if id(request) in here:
                continue
            request.missed += 1
            over = request.missed > self._patience or int(request.ids[-1]) in self._ends
            (ended if over else kept).append(request)
        self.known = present + kept
        return ended


class ArmDrafter:
    """Drafts for all rows of one arm; as it is here, of plain decoding, none.

    by_cost: its drafts end where they no longer pay, by what steps of the engine cost.
    """

    by_cost = False

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        """A draft for each request, of at most this many tokens."""
        return [self.drafted(request, k) for request, k in zip(requests, most, strict=True)]

    def drafted(self, request: TrackedRequest, k: int) -> Draft:
        """A draft of at most k tokens."""
        return Draft()

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        """Learn from what came after a draft of this arm, `request.came`.

        draft: as it was before what would not pay was cut off.
        """

    def forget(self, request: TrackedRequest) -> None:
        """It has ended, or it is absent and is taken to have; or the arm failed for it."""
