"""An old name of an option or a command is refused in one sentence that gives the new one."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from router import cli
from router.commands import renamed

COMMANDS: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]


def options_of(command: str) -> set[str]:
    return {name for p in COMMANDS[command].params for name in (*p.opts, *p.secondary_opts)}


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("error: ")
    return err


def test_every_old_option_names_its_successor(capsys: pytest.CaptureFixture[str]) -> None:
    each = [(c, old, new) for c, of in renamed.OPTIONS.items() for old, new in of.items()]
    for command, old, new in each:
        known = options_of(command)
        assert old not in known, f"{command} still has {old}"
        for form in ([old, "x"], [f"{old}=x"]):
            sentence = refused(capsys, command, *form)
            assert old in sentence and new in sentence
        assert new.split()[0] in known, f"{command} has no {new}"


def test_every_old_command_names_its_successor(capsys: pytest.CaptureFixture[str]) -> None:
    for old, new in renamed.COMMANDS.items():
        assert old not in COMMANDS, f"{old} is still a command"
        assert new in refused(capsys, old) and new in refused(capsys, old, "--out", "x")


def test_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(renamed.COMMANDS, "tell", "draftpick report")
    monkeypatch.setitem(renamed.OPTIONS, "arms", {"--sorts": "--kinds"})
    assert refused(capsys, "tell") == "error: the command tell is now: draftpick report\n"
    assert refused(capsys, "arms", "--sorts") == "error: --sorts is now --kinds\n"
    test_every_old_option_names_its_successor(capsys)
    test_every_old_command_names_its_successor(capsys)


def test_other_mistakes_stay_the_parsers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["arms", "--never-was"]) == 2
    assert "No such option: --never-was" in capsys.readouterr().err
    assert cli.main(["never-was"]) == 2
    assert "No such command" in capsys.readouterr().err
