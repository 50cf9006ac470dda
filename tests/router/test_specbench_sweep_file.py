"""Sweep files: every point an arm, every mistake named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoders.arms import load_arms
from decoders.common.errors import DraftpickError
from router.specbench.sweep import Curve, arms_yaml, load_sweep, with_field

GOOD = """
sweep:
  confidence:
    arm: {kind: neural, drafter: small, length: {kind: fixed, k: 8}}
    field: length.min_confidence
    values: [0.0, 0.25, 0.5]
  length:
    arm: {kind: max_gram, note: copies}
    field: length.k
    values: [2, 6]
arms:
  copying: {kind: max_gram}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def test_every_value_is_an_arm(tmp_path: Path) -> None:
    sweep = load_sweep(write(tmp_path, GOOD))
    assert sweep.curves == (
        Curve(
            "confidence", "length.min_confidence", (0.0, 0.25, 0.5),
            ("confidence@0.0", "confidence@0.25", "confidence@0.5"),
        ),
        Curve("length", "length.k", (2, 6), ("length@2", "length@6")),
        Curve("copying", "", (), ("copying",)),
    )  # fmt: skip
    assert [curve.ordered for curve in sweep.curves] == [True, True, False]
    arms: dict[str, Any] = sweep.arms
    assert set(arms) == {
        "autoregressive", "copying", "confidence@0.0", "confidence@0.25", "confidence@0.5",
        "length@2", "length@6",
    }  # fmt: skip
    assert arms["confidence@0.25"].length.min_confidence == 0.25
    assert arms["confidence@0.25"].length.k == 8, "the rest of the template stays"
    assert (arms["length@6"].length.k, arms["length@6"].note) == (6, "copies")
    assert arms["length@2"].length.k == 2, "points do not share their mappings"


def test_the_points_can_be_used_as_arms(tmp_path: Path) -> None:
    sweep = load_sweep(write(tmp_path, GOOD))
    path = tmp_path / "arms.yaml"
    path.write_text(arms_yaml(sweep))
    assert load_arms(path) == sweep.arms


def test_fields_deep_in_an_arm() -> None:
    arm = {"kind": "x", "verifier": {"rule": "chow"}}
    assert with_field(arm, "verifier.alpha", 0.3)["verifier"] == {"rule": "chow", "alpha": 0.3}
    assert with_field(arm, "a.b.c", 1)["a"] == {"b": {"c": 1}}
    assert with_field(arm, "drafter", "y")["drafter"] == "y"
    assert arm == {"kind": "x", "verifier": {"rule": "chow"}}, "the template is left alone"


@pytest.mark.parametrize(
    ("values", "ordered"),
    [((1, 2), True), ((0.5,), False), (("a", "b"), False), ((True, False), False)],
)
def test_what_can_be_interpolated(values: tuple[Any, ...], ordered: bool) -> None:
    assert Curve("c", "f", values, ("x",) * len(values)).ordered is ordered


TEMPLATE = "arm: {kind: max_gram}, field: length.k, values: [2, 4]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["needs a top-level `sweep:`"]),
        ("sweep: {}", ["sweep: Dictionary should have at least 1 item"]),
        ("sweep: {a: {arm: {kind: max_gram}}}", ["sweep.a.field: ", "sweep.a.values: "]),
        (f"sweep: {{a: {{{TEMPLATE}, by: 3}}}}", ["sweep.a.by: "]),
        ("sweep: {a: {arm: {}, field: k, values: []}}", ["sweep.a.values: ", "at least 1 item"]),
        ("sweep: {a: {arm: {}, field: 'k..x', values: [1]}}", ["sweep.a.field: "]),
        ("sweep: {a: {arm: {}, field: k, values: [1, 2, 1]}}", ["values: a value is there"]),
        (
            f"sweep: {{a: {{{TEMPLATE}}}}}\narms: {{a@2: {{kind: max_gram}}}}",
            ["1 mistake(s): arms.a@2: that is a point of the sweep"],
        ),
        (
            "sweep: {a: {arm: {kind: max_gram, verifier: lossless}, field: verifier.alpha,"
            " values: [0.1, 0.2]}}",
            ["1 mistake(s): sweep.a.field: `verifier` is 'lossless' in the arm, no mapping"],
        ),
        (
            "sweep: {a: {arm: {kind: max_gram}, field: length.k, values: [4, 99]}}",
            ["1 mistake(s): arms.a@99.length.k: Input should be less than or equal to 64"],
        ),
        (
            "sweep: {a: {arm: {kind: max_gram}, field: height, values: [4]}, b: {arm: {},"
            " field: k, values: [1]}}",
            ["2 mistake(s)", "arms.a@4.height: there is no such", "arms.b@1.kind: is miss"],
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(DraftpickError) as caught:
        load_sweep(write(tmp_path, text))
    for part in words:
        assert part in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match=r"cannot read the sweep file .*nowhere\.yaml"):
        load_sweep(tmp_path / "nowhere.yaml")
