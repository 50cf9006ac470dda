"""Tables that break no figure, and progress where there is no terminal."""

import io

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from decoders.common import terminal
from decoders.common.terminal import Lines, bars_as_lines, progress, show, tables, texts

WORDS = st.text("abcdefgh", min_size=1, max_size=9)


def shown(made: list[object], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    for table in made:
        console.print(table)
    return console.file.getvalue()


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=3).map(" ".join), min_size=2, max_size=14),
    st.lists(WORDS, min_size=1, max_size=4),
    st.integers(60, 200),
    st.booleans(),
)
@examples(60)
def test_every_cell_is_whole_whatever_the_width(
    headings: list[str], names: list[str], width: int, last_apart: bool
) -> None:
    rows = [
        [name, *(f"{17.25 * row + at:.2f} to {at}x" for at in range(1, len(headings)))]
        for row, name in enumerate(names)
    ]
    text = shown(list(tables("Some figures", headings, rows, width, last_apart)), width)
    assert all(len(line) <= width for line in text.splitlines())
    for row in rows:
        assert all(cell in text for cell in row)
    assert "…" not in text


def test_a_table_that_fits_stays_one() -> None:
    rows = [["a", "1.00x", "[bold]2.00x[/bold]"], ["b", "3.00x", "-"]]
    (wide,) = tables("T", ["method", "speed-up", "decode only"], rows, 80)
    assert "┃" in shown([wide], 80)
    (bare,) = tables("T", ["method", "speed-up", "decode only"], rows, 27)
    text = shown([bare], 27)
    assert "┃" not in text and "2.00x" in text and "[bold]" not in text
    first, second = tables("T", ["method", "speed-up", "decode only"], rows, 20)
    text = shown([first, second], 20)
    assert text.count("3.00x") == 1 and text.count("method") == 2 and "continued" in text


@pytest.mark.parametrize(("step_s", "lines"), [(0.1, 2), (20.0, 51), (2.0, 11)])
def test_a_log_shows_that_the_work_goes_on(step_s: float, lines: int) -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), width=40)
    told = Lines(console, "collecting", "queries", clock=lambda: now[0])
    for done in range(101):
        told(done, 100, "0 errors")
        now[0] += step_s
    said = console.file.getvalue().splitlines()
    assert len(said) == lines
    assert said[0] == "collecting: 0 of 100 queries, 0 s passed, 0 errors"
    assert said[-1] == f"collecting: 100 of 100 queries, {100 * step_s:.0f} s passed, 0 errors"
    if lines > 2:
        assert "s left" in said[1]


def test_a_run_that_goes_on_judges_the_time_left_by_its_own_share() -> None:
    now = [0.0]
    console = Console(file=io.StringIO())
    told = Lines(console, "collecting", "queries", clock=lambda: now[0])
    told(80, 100)
    now[0] = 60.0
    told(90, 100)
    assert "90 of 100 queries, 60 s passed, about 60 s left" in console.file.getvalue()


def test_a_pipe_is_as_wide_as_columns_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        show(lambda room: [texts(f"At {room}", ["arm", "how"], [["a", "[x] " * 99]])])
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) == int(width) and f"At {width}" in lines[0]
        assert sum(line.count("[x]") for line in lines) == 99


def test_progress_is_a_bar_on_a_terminal_alone() -> None:
    for drawn in (True, False):
        console = Console(file=io.StringIO(), width=100, force_terminal=drawn)
        with progress("collecting", "queries", console) as tick:
            tick(3, 10, "2 errors")
        text = console.file.getvalue()
        assert "━" in text if drawn else "\r" not in text
        assert "2 errors" in text and ("3/10" if drawn else "3 of 10 queries") in text


def test_the_bars_of_libraries_become_lines_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from tqdm.auto import tqdm

    with bars_as_lines():
        assert list(tqdm(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == "", "it took a moment"
    monkeypatch.setattr(terminal, "MOMENT_S", 0.0)
    with bars_as_lines():
        for step in tqdm(range(300), desc="Converting GGUF tensors...", mininterval=0):
            if step == 150:
                print("a warning", file=sys.stderr)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Converting GGUF tensors: 0 of 100 %, 0 s passed"
    assert lines[1] == "a warning" and lines[-1].startswith("Converting GGUF tensors: 100 of 100 %")
    assert len(lines) == 3, lines
