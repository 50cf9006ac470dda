"""Text piece by piece is the text, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from router.serve.text import TextStream, spelled


class Bytes:
    """A token a byte: characters come in parts."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


TEXT = st.text(alphabet="ab é日🎉\n", max_size=20)
CUTS = st.lists(st.integers(1, 4), max_size=40)


@given(TEXT, st.lists(st.text(alphabet="ab é🎉", min_size=1, max_size=3), max_size=3), CUTS)
@examples(400)
def test_the_pieces_are_the_text_before_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    ids, stream, pieces = list(text.encode()), TextStream(Bytes(), stops), []
    for cut in [*cuts, 10**6]:
        pieces.append(stream.add(ids[:cut]))
        ids = ids[cut:]
        told = "".join(pieces)
        assert text.startswith(told)
        assert not any(stop in told for stop in stops)
    pieces.append(stream.finish())
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert "".join(pieces) == text[: min(ends, default=(0, len(text)))[1]]


class Words:
    """As SentencePiece: a text's first word loses its space."""

    words = (" a", " cat", "s", " sat")

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(self.words[at] for at in ids).removeprefix(" ")


def test_a_token_is_spelled_as_after_the_ones_before_it() -> None:
    ids = [0, 1, 2, 3]
    told = [spelled(Words(), ids[:at], token) for at, token in enumerate(ids)]
    assert told == ["a", " cat", "s", " sat"] and "".join(told) == Words().decode(ids)
    party = list("x🎉".encode())
    assert "".join(spelled(Bytes(), party[:at], token) for at, token in enumerate(party))


def test_an_answer_that_goes_on_a_text_keeps_its_first_space() -> None:
    told = TextStream(Words(), after=[2, 0]).add([1, 2, 3])
    assert told == " cats sat" and TextStream(Words()).add([1, 2, 3]) == "cats sat"


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    for cuts in (["x a b"], ["x", " ", "a", " b"]):
        stream = TextStream(Bytes(), ["a", " a b"])
        told = [stream.add(list(cut.encode())) for cut in cuts]
        assert "".join(told) + stream.finish() == "x "


def test_what_is_sure_comes_at_once_and_the_rest_waits() -> None:
    stream = TextStream(Bytes(), ["end"])
    assert stream.add(list(b"the e")) == "the "
    assert stream.add(list(b"x")) == "ex"
    party = "🎉".encode()
    assert stream.add([*party[:3]]) == ""
    assert stream.add([party[3]]) == "🎉"
    assert stream.add(list(b"en")) == ""
    assert stream.add(list(b"d of it")) == ""
    assert stream.finish() == ""


@given(TEXT)
def test_each_token_spells_what_it_adds(text: str) -> None:
    stream = TextStream(Bytes())
    spelled = "".join(stream.spell(byte) for byte in text.encode())
    assert spelled == text
