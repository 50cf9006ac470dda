"""The cost models against simulations of what they model, and against the paper's own table; and
`draftpick theory`, which prints them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import best_length, horizontal, speculative
from router.cli import make_app
from router.theory.command import measured

ROUNDS = 100_000
SHARE = st.floats(0, 0.99)
COST = st.floats(0, 1)


def right(rng: np.random.Generator, rates: list[float], rounds: int = ROUNDS) -> np.ndarray:
    """[rounds] drafted tokens accepted before the first rejection; a coin for each."""
    accept = rng.random((rounds, len(rates))) < np.array(rates)
    return np.cumprod(accept, axis=1).sum(1)


@pytest.mark.parametrize(
    ("rates", "costs"),
    [
        ([0.9, 0.6, 0.6, 0.2], [0.2, 0.05, 0.05, 0.0]),
        ([0.5, 0.5, 0.9], [0.1, 0.1, 0.3]),
        ([0.0, 1.0], [0.1, 0.1]),
        ([], []),
    ],
)
def test_horizontal_is_the_mean_of_many_rounds(rates: list[float], costs: list[float]) -> None:
    tokens = 1 + right(np.random.default_rng(0), rates)
    found = tokens.mean() / (1 + sum(costs))
    assert horizontal(rates, costs) == pytest.approx(found, rel=0.01)


# -- formulas against each other ------------------------------------------------------------------


@given(SHARE, COST, st.integers(0, 12))
@examples(100)
def test_one_drafter_is_a_horizontal_cascade_of_equals(a: float, c: float, k: int) -> None:
    assert speculative(a, c, k) == pytest.approx(horizontal([a] * k, [c] * k))


def test_certain_drafts() -> None:
    assert speculative(1.0, 0.1, 4) == pytest.approx(5 / 1.4)


def test_a_dear_verifying_pass_shortens_the_draft() -> None:
    flat, steep = [1.0] * 9, [1 + 0.3 * k for k in range(9)]
    assert best_length(0.8, 0.05, 8, flat) == best_length(0.8, 0.05, 8) > 0
    assert best_length(0.8, 0.05, 8, steep) < best_length(0.8, 0.05, 8)
    assert speculative(0.8, 0.05, 3, verify=2.0) == pytest.approx(2.952 / 2.15)


# Chen et al., table 1, takes both from elsewhere and prints neither. Acceptance at temperature 0 is
# that of Leviathan et al., table 3 (drafts of T5-small and T5-base for T5-XXL). Costs are ratios of
# parameters, 77M and 248M over 11.1B, to two digits: with them all six figures come out.
ACCEPTANCE = {"CNNDM": {"small": 0.65, "base": 0.73}, "ENDE": {"small": 0.75, "base": 0.80}}
COSTS = {"small": 0.0069, "base": 0.022}


@pytest.mark.parametrize(
    ("data", "lengths", "printed"),
    [
        ("CNNDM", {"small": 9}, 2.65),
        ("CNNDM", {"base": 8}, 2.96),
        ("CNNDM", {"base": 5, "small": 3}, 3.03),
        ("ENDE", {"small": 12}, 3.61),
        ("ENDE", {"base": 11}, 3.75),
        ("ENDE", {"base": 5, "small": 8}, 3.93),
    ],
)
def test_table_1_comes_out(data: str, lengths: dict[str, int], printed: float) -> None:
    drafted = [drafter for drafter, k in lengths.items() for _ in range(k)]
    rates = [ACCEPTANCE[data][drafter] for drafter in drafted]
    assert round(horizontal(rates, [COSTS[drafter] for drafter in drafted]), 2) == printed
    if len(lengths) == 1:  # the paper's lengths of single drafters are the best ones
        ((drafter, k),) = lengths.items()
        assert best_length(ACCEPTANCE[data][drafter], COSTS[drafter], 30) == k


def test_measured_seconds_become_target_passes() -> None:
    costs = Costs((0.010, 0.011, 0.013), {"small": 0.002})
    cost, verify = measured(costs, "small", 4)
    assert cost == pytest.approx(0.2)
    beyond = (1.3 + 0.15, 1.3 + 0.3)  # a token more takes what it took on average up to there
    assert verify == pytest.approx([1.0, 1.1, 1.3, *beyond])
    with pytest.raises(DraftpickError, match="known: small"):
        measured(costs, "big", 4)


# -- `draftpick theory` ---------------------------------------------------------------------------


def told(*arguments: str) -> str:
    found = CliRunner().invoke(make_app(), ["theory", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return str(found.stdout)


def as_json(*arguments: str) -> Any:
    return json.loads(told(*arguments, "--json"))


def test_a_drafter_by_the_command() -> None:
    found = as_json("--acceptance", "0.7", "--cost", "0.1", "--longest", "6")
    assert [row["k"] for row in found["over_k"]] == list(range(7))
    assert found["best_k"] == 4
    assert found["speedup"] == pytest.approx(speculative(0.7, 0.1, 4))
    assert found["over_k"][2]["tokens"] == pytest.approx(1 + 0.7 + 0.49)
    assert found["over_k"][2]["cost"] == pytest.approx(1.2)
    shown = told("--acceptance", "0.7", "--cost", "0.1")
    assert f"{found['speedup']:.2f}x │ best" in shown


def test_a_cost_by_size() -> None:
    found = as_json("--acceptance", "0.7", "--parameters", "100e6,5e6")
    assert found["cost"] == pytest.approx(0.05)


@pytest.mark.parametrize("nested", [True, False])
def test_measured_costs_from_a_file(nested: bool, tmp_path: Path) -> None:
    costs = {"verify_s": [0.010, 0.010, 0.020], "draft_s": {"small": 0.001}}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": 1, "costs": costs} if nested else costs))
    arguments = ["--acceptance", "0.9", "--costs", str(path), "--arm", "small", "--longest", "4"]
    found = as_json(*arguments)
    assert found["best_k"] == 1  # a wider pass costs too much
    assert [row["cost"] for row in found["over_k"]] == pytest.approx(
        [1.0, 1.1, 2.2, 0.3 + 2.5, 0.4 + 3.0]
    )


MISTAKES = [
    ([], "in one way"),
    (["--cost", "0.1", "--parameters", "2,1"], "in one way"),
    (["--parameters", "0,1"], "the target's count, then"),
    (["--parameters", "100"], "the target's count, then"),
    (["--parameters", "2,inf"], "the target's count, then"),
    (["--costs", "x.json"], "go together"),
    (["--cost", "0.1", "--arm", "a"], "go together"),
    (["--costs", "nowhere.json", "--arm", "a"], "cannot read"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_mistakes_of_the_command(arguments: list[str], words: str) -> None:
    with pytest.raises(DraftpickError, match=words):
        told("--acceptance", "0.5", *arguments)


@pytest.mark.parametrize("options", [["--cost", "0.1"], ["--acceptance", "1.2", "--cost", "0.1"],
                                     ["--acceptance", "0.5", "--cost", "-1"]])  # fmt: skip
def test_numbers_out_of_range_and_missing(options: list[str]) -> None:
    assert CliRunner().invoke(make_app(), ["theory", *options]).exit_code == 2


def test_a_file_without_costs(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    for text in ("[]", "{", '{"costs": {"verify_s": [], "draft_s": {}}}'):
        path.write_text(text)
        with pytest.raises(DraftpickError, match="holds no measured costs"):
            told("--acceptance", "0.5", "--costs", str(path), "--arm", "a")
