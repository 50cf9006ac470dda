"""Arms files: every mistake named, with the path of its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoders.arms import choose, load_arms
from decoders.errors import DraftpickError, NoSuchName


def write(folder: Path, text: str) -> Path:
    path = folder / "arms.yaml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    arms = load_arms(
        write(
            tmp_path,
            """
            arms:
              copy: {kind: max_gram, shortest: 3, earliest: true}
              small: {kind: neural, drafter: ./x, length: {kind: adaptive, k: 9}, note: hello}
            """,
        )
    )
    assert list(arms) == ["autoregressive", "copy", "small"]  # always there
    assert (arms["copy"].shortest, arms["copy"].earliest, arms["copy"].lossless) == (3, True, True)
    assert (arms["small"].length.kind, arms["small"].length.k) == ("adaptive", 9)
    assert arms["autoregressive"].kind == "autoregressive"


def test_autoregressive_stays_where_it_is_declared(tmp_path: Path) -> None:
    text = "arms: {copy: {kind: max_gram}, autoregressive: {kind: autoregressive, note: plain}}"
    arms = load_arms(write(tmp_path, text))
    assert list(arms) == ["copy", "autoregressive"]
    assert arms["autoregressive"].note == "plain"


def test_the_arms_that_ship() -> None:
    arms = load_arms()
    assert {"autoregressive", "max-gram"} <= set(arms)
    assert all(recipe.lossless for recipe in arms.values())


def test_three_mistakes_are_all_named(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        arms:
          a: {kind: telepathy}
          b: {kind: neural}
          c: {kind: max_gram, length: {k: 0}, colour: red}
        """,
    )
    with pytest.raises(DraftpickError) as caught:
        load_arms(path)
    said = str(caught.value)
    assert "\n" not in said and str(path) in said and "4 mistake(s)" in said
    for word in ("arms.a.kind", "arms.b", "arms.b.drafter", "arms.c.length.k", "arms.c.colour"):
        assert word in said


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("arms: {a: {kind: autoregressive, drafter: x}}", "arms.a.drafter"),
        ("arms: {a: {kind: max_gram, shortest: 5, longest: 3}}", "longest"),
        ("arms: {a: {kind: max_gram, verifier: kind}}", "arms.a.verifier"),
        (
            "arms: {a: {kind: early_exit}}",
            "arms.a: give either `drafter`, a trained exit, or `layer`",
        ),
        ("arms: {a: {kind: max_gram, length: {min_confidence: 1.5}}}", "min_confidence"),
        ("arms: {a: null}", "arms.a.kind"),
        ("arms: {a: 5}", "arms.a.kind"),
        ("arms: 5", "arms"),
        ("arms: [a, b]", "arms"),
        ("tools: {}", "tools"),
        ("{arms: {}, more: 1}", "more"),
    ],
)
def test_one_mistake(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(DraftpickError) as caught:
        load_arms(write(tmp_path, text))
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "hello"])
def test_an_empty_file_or_no_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(DraftpickError, match="top-level `arms:`"):
        load_arms(write(tmp_path, text))


@pytest.mark.parametrize("text", ["arms: {a: [", "arms:\n\t- b", "a: b: c"])
def test_not_yaml(tmp_path: Path, text: str) -> None:
    with pytest.raises(DraftpickError, match="is not YAML") as caught:
        load_arms(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_bytes(b"\xff\xfe\x00arms")
    with pytest.raises(DraftpickError, match=r"arms\.yaml"):
        load_arms(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match=r"cannot read the arms file.*No such file"):
        load_arms(tmp_path / "none.yaml")
    with pytest.raises(DraftpickError, match="cannot read the arms file"):
        load_arms(tmp_path)


def test_choosing() -> None:
    arms = load_arms()
    assert choose(arms, None) == arms
    assert list(choose(arms, ["max-gram", "autoregressive"])) == ["autoregressive", "max-gram"]
    with pytest.raises(NoSuchName, match=r"unknown arm 'magic'; known: .*max-gram"):
        choose(arms, ["max-gram", "magic"])
