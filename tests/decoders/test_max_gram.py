"""What followed the longest earlier match, by hand-made cases and against a plain search."""

from pathlib import Path
from typing import Any

import pytest
from decoder_toys import CPU, greedy, max_gram
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from decoders.common.errors import DraftpickError
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.max_gram.next_token_table import NextTokenTable
from decoders.protocols import DraftRequest
from decoders.records import Sampling
from decoders.sampling.randomness import Generator

NEXT = [1, 2, 3, -1, 6, 6, 5, -1]  # a bigram table over 0..7

CASES: dict[str, tuple[dict[str, Any], list[int] | None, str, int, str]] = {
    # name: (options, bigram table, context, k, proposal)
    "a plain match": ({}, None, "1 2 3 4 9 1 2", 2, "3 4"),
    "no match": ({}, None, "1 2 3 4 5", 3, ""),
    "a prompt never matches itself": ({}, None, "1 2", 3, ""),
    "one token": ({}, None, "1", 3, ""),
    "one token alone with shortest 1": ({"shortest": 1}, None, "1", 3, ""),
    "the most recent match": ({}, None, "1 2 3 1 2 4 1 2", 1, "4"),
    "the earliest match": ({"earliest": True}, None, "1 2 3 1 2 4 1 2", 1, "3"),
    "the longer match wins over the more recent": ({}, None, "5 1 2 7 6 1 2 8 5 1 2", 1, "7"),
    "also where the earliest is taken": (
        {"earliest": True}, None, "6 1 2 8 5 1 2 7 5 1 2", 1, "7"
    ),
    "longest bounds the match": ({"longest": 2}, None, "5 1 2 7 6 1 2 8 5 1 2", 1, "8"),
    "shortest bounds the match": ({"shortest": 3}, None, "1 2 3 4 9 1 2", 2, ""),
    "shortest 1 matches one token": ({"shortest": 1}, None, "7 3 5 7", 2, "3 5"),
    "a run past the end goes on with what it copied": ({}, None, "1 2 3 1 2", 7, "3 1 2 3 1 2 3"),
    "one token over and over": ({}, None, "4 4 4", 4, "4 4 4 4"),
    "a period of two": ({}, None, "8 9 8 9 8", 5, "9 8 9 8 9"),
    "the match may overlap the suffix": ({}, None, "0 3 3 3", 2, "3 3"),
    "the bigram table where nothing matches": ({}, NEXT, "7 0", 3, "1 2 3"),
    "the table has no answer": ({}, NEXT, "0 7", 3, ""),
    "the table runs dry": ({}, NEXT, "7 1", 5, "2 3"),
    "a match goes before the table": ({}, NEXT, "0 1 5 7 0 1", 1, "5"),
    "a bigram's token completes a known n-gram": ({}, NEXT, "0 1 2 9 7 7 1", 3, "2 9 7"),
    "the table knows one token": ({}, NEXT, "0", 2, "1 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hand_made(case: str) -> None:
    options, table, line, k, expected = CASES[case]
    if table is not None:
        table = table + [-1] * (10 - len(table))
    context = [int(token) for token in line.split()]
    drafter = max_gram(table, **options)
    drafter.reset(context)
    assert drafter.guess(context, k) == [int(token) for token in expected.split()]


def test_a_new_prompt_forgets_the_last() -> None:
    drafter = max_gram()
    drafter.reset([1, 2, 3, 1, 2])
    drafter.reset([4, 1, 2])
    assert drafter.guess([4, 1, 2], 2) == []


def test_a_proposal_is_deterministic_and_counted() -> None:
    drafter = max_gram()
    drafter.reset([1, 2, 3, 1, 2])
    proposal = drafter.propose([1, 2, 3, 1, 2], DraftRequest(2, Sampling(1.0), Generator(CPU, 0)))
    assert (proposal.ids.tolist(), proposal.probs, drafter.calls) == ([3, 1], None, 1)
    assert drafter.parameters == 0


# -- the index against a plain search -------------------------------------------------------------


def search(line: list[int], known: int, shortest: int, longest: int, earliest: bool) -> int | None:
    """Where in line[:known] the longest suffix of `line` ended before, followed by something."""
    for n in range(min(longest, len(line)), shortest - 1, -1):
        ends = [e for e in range(n, known) if line[e - n : e] == line[-n:] and e < len(line)]
        if ends:
            return ends[0] if earliest else ends[-1]
    return None


def plain_guess(
    context: list[int], k: int, table: list[int] | None, shortest: int, longest: int, earliest: bool
) -> list[int]:
    line = list(context)
    source = search(line, len(context), shortest, longest, earliest)
    while len(line) < len(context) + k:
        if source is None:
            token = -1 if table is None else table[line[-1]]
            if token < 0:
                break
            line.append(token)
            source = search(line, len(context), shortest, longest, earliest)
        else:
            line.append(line[source])
            source += 1
    return line[len(context) :]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 8),
    st.one_of(st.none(), st.lists(st.integers(-1, 3), min_size=4, max_size=4)),
    st.integers(1, 3),
    st.integers(0, 4),
    st.booleans(),
)
@examples(300)
def test_the_index_equals_a_plain_search(
    pieces: list[list[int]],
    k: int,
    table: list[int] | None,
    shortest: int,
    more: int,
    earliest: bool,
) -> None:
    options: dict[str, Any] = {
        "shortest": shortest,
        "longest": shortest + more,
        "earliest": earliest,
    }
    drafter, context = max_gram(table, **options), pieces[0]
    drafter.reset(context)
    for piece in [[], *pieces[1:]]:
        context = context + piece
        drafter.commit(context)
        assert drafter.guess(context, k) == plain_guess(context, k, table, **options)


# -- where a draft ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(("heat", "expected"), [(0.0, [5, 4, 2, 1, 0]), (1.0, [5, 1, 0, 0, 0])])
def test_a_draft_ends_where_it_is_unlikely_to_stand(heat: float, expected: list[int]) -> None:
    """A match of two is accepted with 0.57 (0.31 at temperature 1), its second token (a match of
    three) with 0.66 (0.42), and so on."""
    context = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2]
    lengths = []
    for least in (0.0, 0.2, 0.35, 0.5, 0.6):
        drafter = max_gram(stop_below=least)
        drafter.reset(context)
        asked = DraftRequest(5, Sampling(heat), Generator(CPU, 0))
        lengths.append(len(drafter.propose(context, asked).ids))
    assert lengths == expected


def test_a_table_s_token_counts_with_its_share() -> None:
    table = NextTokenTable({1: (2, 0.6), 2: (3, 0.5), 3: (4, 0.9)})
    drafter = MaxGramDrafter(CPU, table, stop_below=0.28)
    drafter.reset([7, 1])
    assert drafter.guess([7, 1], 9) == [2, 3]  # 0.6, 0.3, then 0.27


# -- the table ------------------------------------------------------------------------------------


def test_two_tokens_are_asked_before_one() -> None:
    table = NextTokenTable({1: (2, 0.6)}, {(5, 1): (3, 0.7)})
    assert table.next([5, 1]) == (3, 0.7)
    assert table.next([4, 1]) == table.next([1]) == (2, 0.6)
    assert table.next([1, 5]) is None


@pytest.mark.parametrize("pairs", [{}, {(5, 1): (3, 0.75), (0, 1): (0, 0.125)}])
def test_a_table_is_read_and_must_fit(
    tmp_path: Path, pairs: dict[tuple[int, int], tuple[int, float]]
) -> None:
    table = NextTokenTable({1: (2, 0.5), 6: (0, 0.25)}, pairs)
    table.save(tmp_path, 7)
    assert NextTokenTable.load(tmp_path, 7) == table
    with pytest.raises(DraftpickError, match="vocabulary of 7, the target has 5"):
        NextTokenTable.load(tmp_path, 5)


# -- a source apart: an encoder-decoder's context is its start token and the answer ----------------


def apart(source: list[int], **options: Any) -> MaxGramDrafter:
    drafter = max_gram(source_apart=True, **options)
    drafter.reset(source)
    return drafter


def test_the_start_token_is_no_text() -> None:
    """0 is in the source and starts the answer; only the source's counts."""
    drafter = apart([0, 5, 8, 8], shortest=1)
    drafter.commit([0, 9])
    assert drafter.guess([0, 9], 1) == []
    assert drafter.guess([0, 9, 0], 1) == [5]


def test_proposing_and_committing_read_the_same_text() -> None:
    """Round by round as the loop calls it, beside one drafter that has source and answer as one:
    copies of the source, of the answer and across their border."""
    source, answer = [3, 4, 5, 3, 4], [5, 3, 9, 3, 4, 5, 9, 3, 4]
    drafter, whole = apart(source), max_gram()
    whole.reset(source)
    for end in range(1, len(answer) + 1):
        context, line = [0, *answer[:end]], source + answer[:end]
        made = drafter.propose(context, greedy(3))
        assert made.ids.equal(whole.propose(line, greedy(3)).ids)
        drafter.commit(context)
        whole.commit(line)
