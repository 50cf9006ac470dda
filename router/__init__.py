"""Answer a query through the arm that a learned policy picks.

from router import Router
print(Router.from_pretrained().generate("Why is the sky blue?").result.text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands import COMMANDS
    from .records import AskOptions, RoutedResult
    from .routing.router import Router

__all__ = ["COMMANDS", "AskOptions", "RoutedResult", "Router"]


def __getattr__(name: str) -> Any:
    """Import `route` (and with it torch) only when one of its names is asked for."""
    if name == "COMMANDS":
        from . import commands

        return commands.COMMANDS
    if name in __all__:
        from .routing import router as route

        return getattr(route, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
