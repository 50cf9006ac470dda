"""How much the tests try: little by default, everything in `make slow`.

Property tests try a quarter of their examples, the same in every run, so that a red run repeats;
with HYPOTHESIS_PROFILE=full all of them, drawn at random. Of a long list of cases the first ones
run, the others are slow tests; of a product every nth along each parameter (the mark `every`). A
test whose own size depends on FULL has the mark `property`, so that `make slow` runs it in full.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("full", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)
FULL = PROFILE == "full"


def examples(most: int, **others: Any) -> settings:
    """Settings of a property test. most: examples in the full profile."""
    return settings(max_examples=most if FULL else max(10, most // 4), **others)


def slow_after(first: int, cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test, those after the first few marked slow."""
    return [
        case
        if number < first
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
