"""Similarity of texts in any script, and what stored collections make of it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from collect import rouge
from collect.rouge import rouge_l, words

ASCII = st.text(st.characters(max_codepoint=127), max_size=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe über alles", ["grösse", "über", "alles"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("Привет, мир!", ["привет", "мир"]),
        ("你好，世界", ["你", "好", "世", "界"]),
        ("東京タワーは333m", ["東", "京", "タ", "ワ", "ー", "は", "333m"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("ສະບາຍ", ["ສ", "ະ", "ບ", "າ", "ຍ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("می\u200cخواهم", ["میخواهم"]),  # a joiner within a word
        ("ក\u200bខ", ["ក", "ខ"]),
        ("a\u200bb", ["a", "b"]),
        ("cafe\u0301", ["café"]),
        ("don't snake_case 3.14", ["don", "t", "snake", "case", "3", "14"]),
        ("x² ½", ["x²", "½"]),
        ("\u0301 ! 🙂", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "text", ["你好，世界", "Привет мир", "สวัสดีชาวโลก", "안녕 세계", "नमस्ते", "γειά σου", "שלום"]
)
def test_the_same_text_is_wholly_alike(text: str) -> None:
    assert rouge_l(text, text) == 1
    assert rouge_l(text, text.upper()) == 1
    assert rouge_l(text, unicodedata.normalize("NFD", text)) == 1
    assert rouge_l(text, "completely other") == 0


def test_rouge_l() -> None:
    assert rouge_l("the cat sat", "The cat sat!") == 1
    assert rouge_l("a b c d", "a x c") == pytest.approx(2 * (2 / 3 * 2 / 4) / (2 / 3 + 2 / 4))
    assert rouge_l("", "") == 0


@given(ASCII)
def test_ascii_words_are_those_of_before(text: str) -> None:
    assert words(text) == tokenize(text, None)


@given(ASCII, ASCII)
def test_ascii_scores_are_those_of_before(target: str, text: str) -> None:
    theirs = RougeScorer(["rouge2", "rougeL"]).score(target, text)
    for tokenizer in (rouge.WORDS, rouge.ASCII):
        found = rouge.scores(("rouge2", "rougeL"), target, text, tokenizer)
        assert found == {kind: score.fmeasure for kind, score in theirs.items()}


@given(st.text(max_size=40))
def test_any_text_is_like_itself_or_holds_no_word(text: str) -> None:
    assert rouge_l(text, text) == (1 if words(text) else 0)
    assert words(text) == words(unicodedata.normalize("NFD", text))


def test_a_paper_s_convention_is_named() -> None:
    stemmed = rouge.scores(("rougeL",), "dogs running", "dog runs", rouge.ASCII_STEMMED)
    assert stemmed["rougeL"] > rouge_l("dogs running", "dog runs") == 0
    with pytest.raises(ValueError, match="known: unicode-1, ascii, ascii-stemmed"):
        rouge.scores(("rougeL",), "a", "b", "bytes")
