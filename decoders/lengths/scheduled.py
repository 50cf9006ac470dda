"""The draft length of transformers' assisted generation."""

from ..records import StepStats


class ScheduledLength:
    """Two tokens more after a draft accepted whole, one fewer after any other, from `first` on at
    every query (transformers' `num_assistant_tokens_schedule="heuristic_transient"`); at least 1,
    and here at most `longest`. A round without a draft changes nothing."""

    def __init__(self, first: int, min_confidence: float = 0.0, longest: int = 64) -> None:
        self.first, self.min_confidence, self.longest = first, min_confidence, longest
        self.reset()

    def reset(self) -> None:
        self._k = self.first

    def next(self) -> int:
        return self._k

    def observe(self, stats: StepStats) -> None:
        if stats.drafted == 0:
            return
        step = 2 if stats.accepted == stats.drafted else -1
        self._k = min(max(self._k + step, 1), self.longest)
