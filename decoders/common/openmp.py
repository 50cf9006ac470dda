"""How long OpenMP's threads spin while they wait for each other."""

from __future__ import annotations

import os
import sys


def spin_briefly() -> None:
    """Threads that wait for one that lost its core to another process spin for 10,000 turns, not
    the usual 300,000: no slower on a quiet machine, ten times faster on a busy one.

    For the whole process, before torch is imported: OpenMP reads `GOMP_SPINCOUNT` when it is
    loaded. Afterwards, and where the variable is set, nothing changes. Commands call it; importing
    a package never does.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
