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
    "tradeoff": "draftpick specbench --sweep FILE",
}
"""Old command -> the command to run instead, as the user types it."""

OPTIONS: dict[str, dict[str, str | None]] = {
    "collect": {"--likeness": "--similarity", "--no-likeness": "--no-similarity"},
    "headroom": {"--loops": "--repetitive"},
    "serve": {"--seats": "--slots", "--steady": "--batch-invariant"},
    "train": {"--loops": "--repetitive"},
}
"""Command -> old option -> new option; None where the option went without a successor."""

OPTIONS_OF_ALL: dict[str, str | None] = {}
"""The same for options that several commands share."""


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
            sentence = _refusal(command, getattr(error, "option_name", None))
            if sentence is None:
                raise
            raise DraftpickError(sentence) from None


def _refusal(command: str | None, option: str | None) -> str | None:
    old = OPTIONS_OF_ALL | OPTIONS.get(command or "", {})
    if option is None or option not in old:
        return None
    new = old[option]
    return f"{option} was removed" if new is None else f"{option} is now {new}"
