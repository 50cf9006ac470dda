"""Commands that train drafters and teach policies by logs: a plugin by the entry points."""

from ..commands import COMMANDS
from . import align, learn
from .specialise.command import specialise

COMMANDS |= {"align": align.align, "learn": learn.learn, "specialise": specialise}
