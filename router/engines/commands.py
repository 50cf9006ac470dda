"""Commands about other engines: a plugin by the entry points."""

from ..commands import COMMANDS
from ..commands.headroom import SOURCES
from .audit.command import audit
from .check.command import check
from .costs import costs
from .export import export
from .logs.command import LogSource

SOURCES["--from-logs FILE"] = LogSource
COMMANDS |= {"audit": audit, "check": check, "costs": costs, "export": export}
