"""How many examples property tests try.

By default a quarter, the same in every run, so that a red run repeats. With
HYPOTHESIS_PROFILE=full all of them, drawn at random (`make slow`).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("full", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)


def examples(most: int, **others: Any) -> settings:
    """Settings of a property test. most: examples in the full profile."""
    return settings(max_examples=most if PROFILE == "full" else max(10, most // 4), **others)
