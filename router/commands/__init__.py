"""The commands of `draftpick`, by name. Other rooms and packages add theirs to COMMANDS."""

from .builtin import COMMANDS

__all__ = ["COMMANDS"]
