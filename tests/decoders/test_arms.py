"""Arms files: every mistake named, with the path of its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from decoders.arms import choose, load_arms
from decoders.common.errors import DraftpickError, NoSuchName

SMALL = "kind: neural, drafter: x"


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
    assert Path(arms["small"].drafter) == tmp_path / "x"  # next to the file
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
        ("arms: {a: {kind: max_gram, length: {min_confidence: 1.5}}}", "a.length.min_confidence"),
        ("arms: {a: null}", "arms.a.kind"),
        ("arms: {a: 5}", "arms.a.kind"),
        ("arms: 5", "arms"),
        ("arms: [a, b]", "arms"),
        ("tools: {}", "tools"),
        ("{arms: {}, more: 1}", "more"),
        ("arms: {a: [1, 2]}", "arms.a.kind: [1, 2] is not known"),
        ("arms: {a: {kind: [neural]}}", "arms.a.kind: ['neural'] is not known"),
        ("arms: {a: {kind: max_gram, 3: 4}}", "arms.a.3: there is no such field"),
        ("arms: {a: {kind: max_gram, lenght: 4}}", "arms.a.lenght: there is no such field; there"),
        ("arms: {a: {kind: max_gram, name: b}}", "arms.a.name: leave it out"),
        ("arms: {a: {kind: max_gram}, a: {kind: calm}}", "line 1 gives 'a' a second time"),
        ("arms: {autoregressive: {kind: max_gram}}", "arms.autoregressive: by this name"),
        ("arms: {a: {kind: beam, beams: 2, length_penalty: .inf}}", "a finite number, not inf"),
        ("arms: {a: {kind: max_gram, length: {min_confidence: 0.2}}}", "give `stop_below`"),
        ("arms: {a: {kind: max_gram, length: 5}}", "arms.a.length: give a mapping"),
        (f"arms: {{a: {{{SMALL}, verifier: chaw}}}}", "arms.a.verifier: `rule: chaw` is not one"),
        (f"arms: {{a: {{{SMALL}, verifier: {{alpha: 1}}}}}}", "arms.a.verifier: give a `rule:`"),
        (
            f"arms: {{a: {{{SMALL}, verifier: {{rule: lossy, alpha: 3}}}}}}",
            "1 mistake(s): arms.a.verifier.alpha: Input should be less than 1, not 3",
        ),
        (
            "arms: {a: {kind: tree, drafter: x, branch: [-1]}}",
            "1 mistake(s): arms.a.branch.0: Input should be greater than or equal to 1, not -1",
        ),
        (
            "arms: {a: {kind: cs_drafting, models: [x, {kind: max_gram, shortest: 0}], "
            "K: [[1, 1], [0, 1]]}}",
            "1 mistake(s): arms.a.models.1.shortest: Input should be greater",
        ),
        (
            "arms: {a: {kind: cs_drafting, models: [x, {kind: max_gram, length: {k: 3}}], "
            "K: [[1, 1], [0, 1]]}}",
            "arms.a.models: leave out `length` of the Max-Gram",
        ),
        (
            f"arms: {{a: {{kind: horizontal, parts: [{{{SMALL}}}, {{kind: early_exit, layer: 2, "
            "branch: [3]}]}}",
            "branch: leave it out; only the target verifies a tree",
        ),
        (
            "arms: {a: {kind: early_exit, layer: 2, branch: [3], verifier: {rule: chow, "
            "alpha: 0.1}}}",
            "a tree is verified by the target's own tokens",
        ),
        (
            f"arms: {{a: {{kind: horizontal, parts: [{{{SMALL}}}, {{kind: max_gram}}], "
            "verifier: {rule: chow, alpha: 0.1}}}",
            "compares confidences, and a copy has none",
        ),
        (
            f"arms: {{a: {{kind: horizontal, parts: [{{{SMALL}}}, {{kind: max_gram}}], "
            "length: {min_confidence: 0.1}}}",
            "not all of the parts stop at an unsure token",
        ),
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
