"""Commands that train drafters and teach policies by logs: a plugin by the entry points."""

from ..commands import COMMANDS
from . import align, learn

COMMANDS |= {"align": align.align, "learn": learn.learn}
