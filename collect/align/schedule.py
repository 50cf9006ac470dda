"""Learning rates over a run, and where a run is kept: the same for all that is trained."""

import math

CHECKPOINT = "training.safetensors"


def schedule(progress: float, warmup: float) -> float:
    """Share of the peak rate: a line up over the first `warmup` of a run, then a cosine to 2%."""
    if progress < warmup:
        return progress / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
