"""Which request a row holds, though rows move and requests are alike."""

import random

import numpy as np
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from vllm_stand_in import EOS, Asked, Batch

from router.engines.vllm.rows import RequestRows, TrackedRequest

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


class Drafts:
    """Drafts at random; remembers which request of the scheduler a tracked one was."""

    def __init__(self, batch: Batch, chance: random.Random) -> None:
        self.rows, self._batch, self._chance = RequestRows(ends=[EOS]), batch, chance
        self.owners: dict[TrackedRequest, set[str]] = {}
        self.ended = list[TrackedRequest]()

    def step(self) -> None:
        batch = self._batch
        batch.schedule()
        came = batch.run()
        found, ended = self.rows.step(came, batch.lengths, batch.token_ids)
        self.ended += ended
        for each, request, tokens in zip(batch.rows, found, came, strict=True):
            assert (request is None) == (not tokens)
            if request is None:
                continue
            assert request.ids.tolist() == each.ids and request.came == tokens
            assert request.prompt_tokens == len(each.prompt)
            self.owners.setdefault(request, set()).add(each.name)
            request.draft = [self._chance.randrange(3, 9) for _ in range(self._chance.randrange(4))]
            if self._chance.random() < 0.5 and not each.over:
                request.draft = batch._verified(each) + request.draft
        batch.take([[] if r is None else r.draft for r in found], 8)


def simulated(seed: int, prompts: list[list[int]], rows: int, preempt: float) -> Drafts:
    chance = random.Random(seed)
    asked = [
        Asked(str(at), prompt, chance.randrange(3, 24), []) for at, prompt in enumerate(prompts)
    ]
    drafts = Drafts(Batch(asked, rows, chance, preempt), chance)
    for _ in range(2000):
        if all(each.over for each in asked):
            break
        drafts.step()
    assert all(each.over for each in asked)
    return drafts


@examples(200)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), preempt=st.sampled_from([0.0, 0.2]))
def test_every_request_is_followed_from_beginning_to_end(
    seed: int, rows: int, preempt: float
) -> None:
    prompts = [[20 + at, *PROMPT] for at in range(9)]  # of one length, and alike at the end
    drafts = simulated(seed, prompts, rows, preempt)
    assert all(len(names) == 1 for names in drafts.owners.values())
    assert len(drafts.owners) == len(prompts)


@examples(200)
@given(seed=st.integers(0, 2**32), rows=st.integers(2, 6), preempt=st.sampled_from([0.0, 0.2]))
def test_requests_of_one_prompt_are_as_many_as_there_are(
    seed: int, rows: int, preempt: float
) -> None:
    """n > 1: while they are alike none can be told from another, but none is begun twice."""
    drafts = simulated(seed, [PROMPT] * 4 + [PROMPT[1:]] * 3, rows, preempt)
    assert len(drafts.owners) == 7


def array(*rows: list[int]) -> np.ndarray:
    held = np.zeros((len(rows), 32), dtype=np.int32)
    for at, row in enumerate(rows):
        held[at, : len(row)] = row
    return held


def test_alike_requests_that_change_rows_are_told_by_their_drafts() -> None:
    rows = RequestRows()
    ids = np.zeros((2, 16), dtype=np.int32)
    ids[:, :9] = [*PROMPT, 1]
    (first, second), _ = rows.step([[1], [1]], [9, 9], ids)
    first.draft, second.draft = [5], [6]
    ids[:, 9:11] = [[6, 9], [5, 9]]  # each draft was accepted, in the other's row
    assert rows.step([[6, 9], [5, 9]], [11, 11], ids)[0] == [second, first]


def test_a_preempted_request_comes_back_and_its_draft_was_dropped() -> None:
    rows = RequestRows()
    (one, _), _ = rows.step([[3], [3]], [3, 3], array([7, 8, 3], [9, 8, 3]))
    one.draft = [4]
    rows.step([[4]], [4], array([9, 8, 3, 4]))
    found, _ = rows.step([[4], [4]], [5, 4], array([9, 8, 3, 4, 4], [7, 8, 3, 4]))
    assert found[1] is one and one.verified == []


def test_the_next_turn_is_a_request_of_its_own() -> None:
    """Its prompt begins with all that the last turn was."""
    rows = RequestRows(ends=[EOS])
    (one,), _ = rows.step([[EOS]], [3], array([7, 8, EOS]))
    (two,), ended = rows.step([[4]], [6], array([7, 8, EOS, 5, 6, 4]))
    assert ended == [one] and two is not one and two is not None and two.prompt_tokens == 5


def test_an_absent_request_is_given_up_in_the_end() -> None:
    rows = RequestRows(patience=3)
    (one,), _ = rows.step([[3]], [3], array([7, 8, 3]))
    gone = [rows.step([[]], [4], array([1, 2, 3, 4]))[1] for _ in range(5)]
    assert gone == [[], [], [], [one], []] and not rows.known
