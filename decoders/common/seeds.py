"""Seeds of a run's parts: independent of each other, the same when the run is repeated."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def derived_seed(seed: int, *names: object) -> int:
    """The seed of one part of a run, for its arm's draw and its tokens'.

    seed: of the whole run.
    names: which part, distinguished as printed; for instance a query's id and a turn.
    Returns an integer in [0, 2^31) that depends on these alone: SHA-256 of them, so that the
    numbers drawn from two parts' seeds are independent.
    """
    text = "\0".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big") >> 1


def draw_of(seed: int | None, prompt: object) -> np.random.Generator:
    """The generator that draws an arm for a prompt: repeatable for a seed, and independent between
    prompts that come with the same seed. Without a seed it is not repeatable."""
    import numpy as np

    return np.random.default_rng(None if seed is None else derived_seed(seed, "arm", prompt))
