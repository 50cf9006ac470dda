"""Help that lists what a dict holds when it is asked for, other packages' parts included."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperOption

PLACE = re.compile(r"\{([\w.]+)\.(\w+)\}")


class Listing(TyperCommand):
    """A command in whose options' help `{package.DICT}` stands for the names in that dict."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            if isinstance(option, TyperOption) and option.help:
                option.help = PLACE.sub(_names, option.help)
        super().format_help(ctx, formatter)


def _names(place: re.Match[str]) -> str:
    return ", ".join(getattr(import_module(place[1]), place[2]))
