"""Several policies in one benchmark: each a row, its draws its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Draftpick
from router_fakes import FakePolicy

from decoders.common.errors import DraftpickError
from decoders.records import Request
from decoders.testing.fake_engine import FakeEngine
from policies import PolicyError
from router.routing.router import Router
from router.specbench.bench import load_questions, specbench
from router.specbench.candidates import candidates_of, named_folders
from router.specbench.journal import read_rows

REQUEST = Request(16, seed=0)


class Always(FakePolicy):
    """Takes one arm; `fingerprint` tells two of them apart."""

    def __init__(self, arm: str) -> None:
        super().__init__()
        self.arm, self.fingerprint = arm, f"always {arm}"

    def distribution(self, x: Any) -> Any:
        return np.array([[float(arm == self.arm) for arm in self.arms]])

    def choose(self, x: Any, rng: Any = None) -> Any:
        return replace(super().choose(x, rng), arm=self.arm, propensity=1.0)


def bench(engine: FakeEngine, questions: Path, out: Path, *named: Any, **how: Any) -> Any:
    router = Router(engine, None)
    beside = candidates_of(router, named, how.pop("dynamic", False))
    asked = load_questions([questions])
    return specbench(router, asked, REQUEST, out, candidates=beside, **how)


def test_a_row_each(engine: FakeEngine, question_file: Path, tmp_path: Path) -> None:
    found = bench(
        engine, question_file, tmp_path / "b", ("p", Always("small")), ("one", FakePolicy())
    )
    assert list(found["arms"]) == ["autoregressive", "small", "wide"], "policies are no arms"
    assert list(found["candidates"]) == ["p", "one"]
    assert found["candidates"]["p"]["math"]["speedup_vs_ar"] > 0
    assert found["candidate_choices"]["p"]["math"] == {"small": 2}
    assert found["best_fixed"]["arm"] in found["arms"]


def test_every_dynamic_policy_draws_for_itself(
    engine: FakeEngine, question_file: Path, tmp_path: Path
) -> None:
    """Seeds of one policy that drew the same number would have no deviation."""
    same = [(f"p{i}", FakePolicy()) for i in range(4)]
    found = bench(engine, question_file, tmp_path, *same, dynamic=True)
    rows = read_rows(tmp_path)
    drawn = {
        method: [turn.result.arm for row in rows for turn in row.answers[method].turns]
        for method in found["candidates"]
    }
    greedy = [arms for method, arms in drawn.items() if "dynamic" not in method]
    dynamic = [tuple(arms) for method, arms in drawn.items() if "dynamic" in method]
    assert all(arms == greedy[0] for arms in greedy)
    assert len(set(dynamic)) > 1
    again = bench(FakeEngine(), question_file, tmp_path / "again", *same, dynamic=True)
    assert again["candidate_choices"] == found["candidate_choices"], "a run can be repeated"


def test_a_run_goes_on_with_the_same_policies_only(
    engine: FakeEngine, question_file: Path, tmp_path: Path
) -> None:
    bench(engine, question_file, tmp_path, ("p", Always("small")))
    asked = len(engine.calls)
    bench(engine, question_file, tmp_path, ("p", Always("small")))
    assert len(engine.calls) == asked
    with pytest.raises(DraftpickError, match="candidates"):
        bench(engine, question_file, tmp_path, ("p", Always("wide")))


@pytest.mark.parametrize("names", [["small"], ["routed"], ["oracle"], ["p", "p"]])
def test_a_name_that_is_another_row_s(engine: FakeEngine, names: list[str]) -> None:
    with pytest.raises(DraftpickError, match=f"'{names[0]}' is named like another row"):
        candidates_of(Router(engine, None), [(name, FakePolicy()) for name in names])


def test_a_policy_that_does_not_fit(engine: FakeEngine) -> None:
    other = FakePolicy(("autoregressive", "small", "unheard-of"))
    with pytest.raises(PolicyError, match="unheard-of"):
        candidates_of(Router(engine, None), [("p", other)])


@pytest.mark.parametrize("pair", ["knn", "=policies/knn", "knn=", "a b=x"])
def test_a_pair_that_is_none(pair: str) -> None:
    with pytest.raises(DraftpickError, match="NAME=POLICY"):
        named_folders([pair])


def test_dynamic_needs_a_candidate(draftpick: Draftpick, tmp_path: Path) -> None:
    said = draftpick("specbench", "--dynamic", "--out", tmp_path / "b", code=2)
    assert "--candidate" in said.err
