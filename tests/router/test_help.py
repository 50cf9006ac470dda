"""Every `--help`: a short paragraph, then examples, then options, within 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from router.cli import make_app

GROUP: Any = typer.main.get_command(make_app())
COMMANDS = [(), *((name,) for name in sorted(GROUP.commands))]


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_log_text_says_all_that_it_keeps(command: str) -> None:
    words = " ".join(CliRunner().invoke(make_app(), [command, "--help"]).stdout.split())
    assert "(system prompt and earlier turns too)" in words


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "".join(command) or "draftpick")
def test_help_is_a_paragraph_examples_and_options(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(make_app(), [*command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    usage, paragraph, examples, *rest = result.stdout.strip().split("\n\n")
    assert usage.startswith("Usage: ")
    assert len(paragraph) <= 400 and len(paragraph.splitlines()) <= 3, paragraph
    heading, *lines = examples.splitlines()
    assert heading.strip() in ("Example:", "Examples:")
    own = " ".join(("draftpick", *command))
    assert any(line.strip().startswith(own) for line in lines)
    assert any(part.startswith("Options:") for part in rest)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not re.search(r"\{\w+\.\w+", result.stdout), "a list of names was not filled in"
    assert command or all(name in result.stdout for name in GROUP.commands)
