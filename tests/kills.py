"""Kills that leave nothing behind but what is on the disk."""

import os
import signal
from collections.abc import Callable


def killed(work: Callable[[], object]) -> None:
    """Do the work in a copy of this process, which has to end by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
