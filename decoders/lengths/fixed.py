"""The same draft length every round, cut short where the drafter is unsure."""

from ..records import StepStats


class FixedLength:
    """k tokens a round; with min_confidence the drafter stops before a token it gives less
    (transformers' `assistant_confidence_threshold`)."""

    def __init__(self, k: int, min_confidence: float = 0.0) -> None:
        self.k, self.min_confidence = k, min_confidence

    def next(self) -> int:
        return self.k

    def observe(self, stats: StepStats) -> None:
        pass

    def reset(self) -> None:
        pass
