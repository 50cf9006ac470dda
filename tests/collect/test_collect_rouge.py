"""Likeness of texts in any script, and what stored collections make of it."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collect_fakes import FakeEngine, make_queries, sweep
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from collect import rouge
from collect.rouge import rouge_l, words
from collect.store.dataset import MANIFEST, read_manifest
from collect.store.outcomes import read_outcomes
from collect.sweeps.batch import SweepOptions
from collect.table import reward_table
from decoders.common.errors import DraftpickError

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


def test_likeness_without_spaces_is_by_letters() -> None:
    assert rouge_l("你好世界", "你好天下") == pytest.approx(0.5)


def test_umlauts_part_no_words() -> None:
    # two words of three, not "gr", "e" and others of many
    assert rouge_l("die Größe zählt", "die Größe stimmt") == pytest.approx(2 / 3)


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


# -- stored collections -----------------------------------------------------------------------


def as_before(folder: Path, text: str, target: str, rouge_l: float) -> None:
    """What a collection of an earlier version looks like: other words, and it does not say so."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["identity"]["rouge_words"], manifest["identity"]["sizes"]
    manifest["arms"][1]["recipe"] = {"kind": "horizontal", "parts": [{"kind": "early_exit"}]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    changes = [
        ("outcomes", "text", text),
        ("outcomes", "rouge_l", rouge_l),
        ("queries", "target_text", target),
    ]
    for table, column, value in changes:
        for shard in (folder / table).glob("*.parquet"):
            stored = pq.read_table(shard)
            at = stored.column_names.index(column)
            filled = pa.array([value] * len(stored), stored.schema.field(column).type)
            pq.write_table(stored.set_column(at, stored.schema.field(column), filled), shard)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(FakeEngine(), make_queries(), tmp_path / "out", SweepOptions(max_new_tokens=8))
    return tmp_path / "out"


def likenesses(folder: Path) -> set[float | None]:
    return {row.rouge_l for arms in read_outcomes(folder).values() for row in arms.values()}


def test_a_collection_says_how_it_counted(folder: Path) -> None:
    identity = read_manifest(folder).identity
    assert (identity.rouge_words, identity.sizes) == ("unicode-1", 2)


def test_older_likeness_is_computed_anew(folder: Path) -> None:
    as_before(folder, "你好，世界", "你好世界", 0.0)
    assert likenesses(folder) == {1.0}
    assert np.allclose(reward_table(folder, "latency-ratio", alpha=1.0).rewards, 1)
    assert "rouge_words" not in (folder / MANIFEST).read_text(), "reading changes nothing"


def test_older_likeness_of_ascii_stands(folder: Path) -> None:
    as_before(folder, "a b", "a b", 0.125)  # not computed anew, or it would be 1
    assert likenesses(folder) == {0.125}


def test_older_and_newer_rows_do_not_mix(folder: Path) -> None:
    as_before(folder, "a", "b", 0.0)
    with pytest.raises(DraftpickError, match=r"rouge_words \(there 'ascii', now 'unicode-1'\)"):
        sweep(FakeEngine(), make_queries(3), folder, SweepOptions(max_new_tokens=8))


@pytest.mark.parametrize("reward", ["paper", "parameter-ratio"])
def test_older_sizes_of_exits_are_refused(folder: Path, reward: str) -> None:
    as_before(folder, "a", "b", 0.0)
    with pytest.raises(DraftpickError, match=r"early exit \(small\) still counted its adapter"):
        reward_table(folder, reward)
    assert reward_table(folder, reward, arms=["autoregressive", "ngram"]).arms
    assert reward_table(folder, "latency-ratio").arms
