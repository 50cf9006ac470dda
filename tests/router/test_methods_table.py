"""benchmarks/methods.py: the table of all methods, on a toy target."""

from pathlib import Path
from types import SimpleNamespace

import methods
import pytest
from router_fakes import make_turn
from toy_engine import ToyEngine

from decoders import Engine, Request
from decoders.arms import load_arms
from router.routing.router import Router
from router.specbench.bench import ask_all, load_questions
from router.specbench.run import Asker

ARMS = """
arms:
  copying: {kind: max_gram, shortest: 1}
  broken: {kind: max_gram}
"""


@pytest.fixture
def engine(tmp_path: Path) -> ToyEngine:
    path = tmp_path / "arms.yaml"
    path.write_text(ARMS)
    made = ToyEngine(load_arms(path))
    made.fails = "broken"
    return made


def test_a_row_for_each_arm(engine: ToyEngine, question_file: Path, tmp_path: Path) -> None:
    asked = load_questions([question_file], limit=1)
    request = Request(48, seed=0)
    asker = Asker(Router(engine, None), engine.arm_names, request)
    answered = ask_all(asker, asked, tmp_path)
    headings, rows = methods.table_of(engine, answered, methods.first_answers(answered), request)
    table = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    assert list(table) == ["autoregressive", "copying", "broken"]
    plain, copying, broken = table.values()
    assert (plain["speed-up"], plain["accepted a round"]) == ("1.00x", "1.00")
    assert plain["SWI"] == "1.00x"
    assert (plain["target calls a token"], plain["failed"]) == ("1.000", "-")
    assert (copying["lossless"], copying["agreement"]) == ("yes", "100.0%")
    assert copying["other ids"].startswith("0 of ")
    assert copying["math, exact match"] == plain["math, exact match"]
    # its drafter has no parameters: what is saved is target passes alone
    turns = [turn for row in answered for turn in row.answers["copying"].turns]
    saved = sum(len(t.result.ids) for t in turns) / sum(t.result.target_calls for t in turns)
    assert copying["SWI"] == f"{saved:.2f}x" != "1.00x"
    assert (broken["speed-up"], broken["failed"]) == ("-", "3 of 3")


def test_swi_charges_what_the_drafter_read(engine: ToyEngine) -> None:
    spent = 2 * engine.target.parameters
    turn = make_turn(ids=[1] * 8, target_calls=4, draft_work=spent)
    row = SimpleNamespace(answers={"copying": SimpleNamespace(turns=[turn])})
    assert methods.swi_of(engine, [row], "copying") == pytest.approx(8 / (4 + 2))


def test_the_whole_page_and_going_on(
    engine: ToyEngine, question_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Engine, "load", lambda *_, **__: engine)
    out = tmp_path / "methods.md"
    arguments = [
        "--queries", str(question_file), "--limit", "1", "--max-new-tokens", "8",
        "--work", str(tmp_path / "work"), "--out", str(out),
    ]  # fmt: skip
    methods.main(arguments)
    page = out.read_text()
    assert page.count("| copying | yes |") == 2
    assert "## Temperature 0\n" in page and "## Temperature 1\n" in page
    assert {temperature for _, temperature in engine.asked} == {0.0, 1.0}
    engine.asked.clear()
    methods.main(arguments)
    assert engine.asked == [], "a finished run asks nothing again"
    assert out.read_text() == page
    monkeypatch.setattr(ToyEngine, "timed_by", "another machine")
    methods.main([*arguments, "--no-ask"])
    assert engine.asked == []
    assert out.read_text() == page
