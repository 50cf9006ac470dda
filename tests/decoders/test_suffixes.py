"""The index of earlier texts against a plain search, what it votes for by hand-made cases, and that
nothing of one user reaches another."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.index import MAX_MATCH, MOST_PLACES, SuffixIndex
from decoders.earlier.votes import Wanted, draft

ROOT = Path(__file__).resolve().parents[2]


def half(matched: int) -> float:
    return 0.5


def index_of(*texts: list[int], slots: int = 64) -> SuffixIndex:
    made = SuffixIndex(slots)
    for text in texts:
        made.begin()
        made.extend(text)
    return made


def line(words: str) -> list[int]:
    return [int(word) for word in words.split()]


# -- the index ------------------------------------------------------------------------------------


def search(
    texts: list[list[int]], tail: list[int], shortest: int
) -> tuple[int, list[tuple[int, int]]]:
    """How long the longest known suffix of `tail` is that has `shortest` tokens or more, and where
    it ends: text and place, the latest first. Longer anchors are looked for first, as the index
    does, so that all that is found is what the longest suffix has."""
    for n in range(min(MAX_MATCH, len(tail)), shortest - 1, -1):
        found = [
            (number, end)
            for number, text in enumerate(texts)
            for end in range(n, len(text))
            if text[end - n : end] == tail[-n:]
        ]
        if found:
            return n, found[::-1][:MOST_PLACES]
    return 0, []


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=3)


@given(
    texts,
    st.lists(st.integers(0, 2), max_size=12),
    st.sampled_from([1, 2, 64]),
    st.integers(2, 9),
)
@examples(300)
def test_what_is_found_equals_a_plain_search(
    texts: list[list[int]], tail: list[int], slots: int, shortest: int
) -> None:
    """Also where everything shares a slot."""
    index = index_of(*texts, slots=slots)
    matched, places = index.find(tail, shortest)
    expected, where = search(texts, tail, shortest)
    if slots > 2 and len(where) < MOST_PLACES:  # else the chain may end before
        assert matched == expected
    starts = [0]
    for text in texts[:-1]:
        starts.append(starts[-1] + len(text) + 1)
    if matched == expected:
        assert set(places) <= {starts[number] + end for number, end in where}
        assert places == sorted(places, reverse=True)
    for place in places:
        after = index.after(place, 30)
        number = max(n for n, start in enumerate(starts) if start <= place)
        assert list(after) == texts[number][place - starts[number] :]


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=6), st.data())
@examples(200)
def test_what_was_taken_back_was_never_there(pieces: list[list[int]], data: st.DataObject) -> None:
    index, text = index_of([1, 2, 0, 1]), list[int]()
    index.begin()
    for piece in pieces:
        kept = data.draw(st.integers(0, len(text)))
        index.truncate(kept)
        index.extend(piece)
        text = text[:kept] + piece
        fresh = index_of([1, 2, 0, 1], text)
        tail = data.draw(st.lists(st.integers(0, 2), max_size=6))
        assert (len(index), index.end) == (len(text), fresh.end)
        assert index.find(tail) == fresh.find(tail)


@pytest.mark.parametrize(("shortest", "matched"), [(2, 3), (3, 3), (4, 0), (5, 0)])
def test_a_match_may_be_as_short_as_it_is_asked_for(shortest: int, matched: int) -> None:
    index = index_of([9, 1, 2, 3, 4, 7], [8, 2, 3, 5])
    assert index.find([6, 1, 2, 3], shortest)[0] == matched
    assert index.find([9, 1, 2, 3, 4], 5)[0] == 5


def test_what_is_forgotten_is_found_no_more_and_lets_memory_go() -> None:
    index = SuffixIndex(2**12)
    ends = []
    for turn in range(60):
        index.begin()
        index.extend([*range(100 * turn, 100 * turn + 99)])
        ends.append(index.end)
    assert index.find([5, 6, 7])[0] == 3
    index.forget(ends[49])
    assert len(index._tokens) <= 10 * 101
    assert index.find([5, 6, 7]) == (0, [])
    matched, (place,) = index.find([5503, 5504])
    assert (matched, index.after(place, 2)) == (2, (5505, 5506))
    index.begin()
    index.extend([5503, 5504, 9, 9])
    assert [index.after(p, 1) for p in index.find([5503, 5504])[1]] == [(9,), (5505,)]


def test_a_copy_that_reaches_the_end_goes_on_into_itself() -> None:
    index = index_of([1, 2, 3, 1, 2])
    _, (place,) = index.find([1, 2])
    assert index.after(place, 7, runs_on=True) == (3, 1, 2, 3, 1, 2, 3)
    assert index.after(place, 7) == (3, 1, 2)


# -- votes ----------------------------------------------------------------------------------------

VOTES = {
    # texts, tail, width, nodes: tokens, parents
    "one text": (["7 1 2 3 4"], "1 2", 1, 4, "3 4", None),
    "the longer match wins": (["7 1 2 3", "8 1 2 4", "8 1 2 4"], "7 1 2", 1, 1, "3", None),
    "what came more often": (["1 2 3 5", "1 2 4", "1 2 3 6"], "1 2", 1, 9, "3 6", None),
    "the latest of equals": (["1 2 3", "1 2 4"], "1 2", 1, 1, "4", None),
    "nothing": (["1 2 3"], "2 1", 1, 4, "", None),
    "a tree": (["1 2 3 5", "1 2 4 7", "1 2 3 6"], "1 2", 2, 9, "3 4 6 5 7", "-1 -1 0 0 1"),
    "a tree of few": (["1 2 3 5", "1 2 4 7", "1 2 3 6"], "1 2", 2, 3, "3 4 6", "-1 -1 0"),
    "a tree that is a chain": (["1 2 3 4"], "1 2", 3, 9, "3 4", "-1 0"),
}


@pytest.mark.parametrize("case", VOTES)
def test_hand_made(case: str) -> None:
    texts, tail, width, nodes, expected, parents = VOTES[case]
    made = draft(index_of(*map(line, texts)), line(tail), Wanted(4, 2, width, nodes), half)
    assert made.ids == line(expected)
    assert made.parents == (None if parents is None else line(parents))


def test_chances_are_shares_weighed_against_how_often_copies_are_right() -> None:
    once = draft(index_of([1, 2, 3]), [1, 2], Wanted(1), half)
    assert once.chances == [0.5]
    thrice = draft(index_of(*[[1, 2, 3]] * 3), [1, 2], Wanted(1), half)
    assert thrice.chances == [pytest.approx((2 + 1) / (2 + 2))]
    split = draft(index_of(*[[1, 2, 3]] * 3, [1, 2, 4]), [1, 2], Wanted(1, width=2), half)
    assert split.chances == [pytest.approx((2 + 1) / (3 + 2)), pytest.approx((0 + 1) / (3 + 2))]


counts = st.lists(st.sampled_from(["1 2 3 4 5", "1 2 3 6", "1 2 4 4 4", "9 1 2 3"]), min_size=1)


@given(counts, st.integers(1, 4), st.integers(1, 8), st.floats(0, 1))
@examples(100)
def test_chances_fall_and_siblings_share(
    texts: list[str], width: int, nodes: int, usual: float
) -> None:
    index = index_of(*map(line, texts))
    made = draft(index, [1, 2], Wanted(4, width=width, nodes=nodes), lambda matched: usual)
    assert all(a >= b for a, b in pairwise(made.chances))
    parents = made.parents or range(-1, len(made.ids) - 1)
    for node in range(-1, len(made.ids)):
        children = [at for at, parent in enumerate(parents) if parent == node]
        assert len({made.ids[at] for at in children}) == len(children) <= width
        whole = made.chances[node] if node >= 0 else 1.0
        assert sum(made.chances[at] for at in children) <= whole + 1e-9


# -- earlier answers ------------------------------------------------------------------------------

added = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=12)),
    min_size=1, max_size=12,
)  # fmt: skip


@given(added, st.integers(8, 40), st.integers(0, 2), st.lists(st.integers(0, 3), max_size=6))
@examples(300)
def test_a_user_is_answered_as_if_there_were_no_others(
    added: list[tuple[int, list[int]]], room: int, asking: int, tail: list[int]
) -> None:
    """Of the same texts those that are still kept, and no token of another's."""
    shared, clock = EarlierAnswers(room), iter(range(1000))
    for user, text in added:
        shared.add(str(user), text[:1], text[1:])
    kept = list(shared._texts)
    alone = EarlierAnswers(1000, clock=lambda: next(clock))
    for (user, text), _ in zip(added[len(added) - len(kept) :], kept, strict=True):
        if user == asking:
            end = text[-room:]  # of a text that is longer
            alone.add(str(user), end[:1], end[1:])
    wanted = Wanted(4, width=2)
    made = shared.draft(str(asking), tail, wanted, half)
    assert made == alone.draft(str(asking), tail, wanted, half)
    own = {token for user, text in added if user == asking for token in text}
    assert set(made.ids) <= own
    assert shared.tokens <= room and len(shared) == len(kept)


def test_old_answers_are_forgotten() -> None:
    now = 0.0
    earlier = EarlierAnswers(100, age_s=10, clock=lambda: now)
    earlier.add("a", [1], [2, 3])
    now = 9
    earlier.add("b", [1], [2, 4])
    assert earlier.draft("a", [1, 2], Wanted(1), half).ids == [3]
    now = 11
    assert earlier.draft("a", [1, 2], Wanted(1), half).ids == []
    assert (len(earlier), earlier.tokens, earlier.users) == (1, 3, 1)
    assert earlier.draft("b", [1, 2], Wanted(1), half).ids == [4]
    assert (earlier.asked, earlier.found) == (3, 2)


def test_places_that_are_used_up_are_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("index", "answers"):
        monkeypatch.setattr(f"decoders.earlier.{module}.LAST", 40)
    earlier = EarlierAnswers(12)
    for number in range(100):
        earlier.add("ab"[number % 2], [1, 2], [number, 3, 4])
        assert earlier.draft("ab"[number % 2], [1, 2], Wanted(1), half).ids == [number]
    assert earlier.added == 100 and earlier.tokens <= 12


def test_a_copy_is_apart() -> None:
    earlier = EarlierAnswers(100)
    earlier.add("a", [1, 2], [3])
    other = earlier.copy()
    other.add("a", [1, 2], [4])
    assert earlier.draft("a", [1, 2], Wanted(1), half).ids == [3]
    assert other.draft("a", [1, 2], Wanted(1), half).ids == [4]
    assert (len(earlier), len(other)) == (1, 2)


@pytest.mark.parametrize(("tokens", "age_s"), [(0, None), (5, 0.0)])
def test_bounds_are_checked(tokens: int, age_s: float | None) -> None:
    with pytest.raises(DraftpickError, match="earlier answers"):
        EarlierAnswers(tokens, age_s)


def test_importing_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, decoders.earlier.answers, decoders.earlier.prefixes; "
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
