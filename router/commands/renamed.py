"""Old names on the command line, and what to write instead.

Add a row when an option or a command gets another name. The old name is then refused by one
sentence that names the new one. A row must not name an option that its command still has.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from decoders.common.errors import DraftpickError

COMMANDS: dict[str, str] = {
    "reproduce": "make reproduce TABLE=NAME, in a clone",
}
"""Old command -> the command to run instead, as the user types it."""

OPTIONS: dict[str, dict[str, str]] = {
    "collect": {"--likeness": "--similarity", "--no-likeness": "--no-similarity"},
    "headroom": {"--loops": "--repetitive"},
    "serve": {"--seats": "--slots", "--steady": "--batch-invariant"},
    "train": {"--loops": "--repetitive"},
}
"""Command -> old option -> new option."""


class Renames(TyperGroup):
    """A group of commands that refuses old names.

    Raises DraftpickError for an old option or command; nothing has run by then.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            raise DraftpickError(f"the command {cmd_name} is now: {COMMANDS[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # the parser's own class differs among versions of typer
            command = getattr(getattr(error, "ctx", None), "info_name", None)
            option = getattr(error, "option_name", None)
            new = OPTIONS.get(command or "", {}).get(option or "")
            if new is None:
                raise
            raise DraftpickError(f"{option} is now {new}") from None
