"""A minute of answers, by which the time of a server's pass is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import httpx

from decoders.common.errors import DraftpickError
from decoders.endpoints.recipe import EndpointRecipe

from ..streams import side_by_side
from .metrics import Counts, Metrics, Page

AT_ONCE = (1, 2, 4)  # answers, by whose steps a pass over more tokens is known
EACH = 4  # answers of a window, or as many as are under way


@dataclass(frozen=True)
class Window:
    """Some answers that were under way together.

    asked: answers at once. answers: how many. decode_s: seconds of all of them after their first
    token. wall_s: from the first token of the first to the last of the last.
    counts: of the server meanwhile; `written` is what these answers have, where nobody else asks.
    """

    asked: int
    answers: int
    decode_s: float
    wall_s: float
    counts: Counts

    @property
    def rounds(self) -> float:
        """Passes, of which each wrote one token and what was accepted; the first token of an answer
        comes with its prompt."""
        return max(1.0, self.counts.written - self.answers - self.counts.accepted)

    @property
    def running(self) -> float:
        """Answers under way, on average."""
        return self.decode_s / self.wall_s

    @property
    def step_s(self) -> float:
        return self.decode_s / self.rounds

    @property
    def width(self) -> float:
        """Tokens that a step read, on average, of all answers."""
        return self.running * (1 + self.counts.drafted / self.rounds)


@dataclass
class Asking:
    """Asks a server questions, each of them once as long as there are others."""

    connections: httpx.Client
    server: EndpointRecipe
    metrics: Metrics
    questions: Sequence[str]
    tokens: int
    _next: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self._next = cycle(self.questions)

    def windows(self, seconds: float, on_done: Callable[[int, int, str], None]) -> list[Window]:
        """Windows of every number at once, again and again until the seconds are over. Raises
        DraftpickError."""
        self._window(1, Counts())  # warms it up
        page, began = self.metrics.read(), time.monotonic()
        made = list[Window]()
        while not made or time.monotonic() < began + seconds:
            for at_once in AT_ONCE:
                passed = int(time.monotonic() - began)
                on_done(min(passed, int(seconds)), int(seconds) + 1, f"{at_once} at once")
                window = self._window(at_once, page.counts)
                page = self.metrics.read()
                made.append(_counted(window, page, self.server.name))
        on_done(1, 1, "")
        return made

    def _window(self, at_once: int, before: Counts) -> Window:
        """Ask, with the counts before it, which are to be completed."""
        asked = list(islice(self._next, max(EACH, at_once)))
        answers = side_by_side(self.connections, self.server, asked, self.tokens, at_once)
        whole = [each.times for each in answers if len(each.times) > 1]
        if not whole:
            raise DraftpickError(
                f"{self.server.name} gave answers of one piece, of which no step can be timed; "
                "take --queries with longer answers, or a server that streams"
            )
        decode_s = sum(times[-1] - times[0] for times in whole)
        wall_s = max(times[-1] for times in whole) - min(times[0] for times in whole)
        if at_once == 1:
            wall_s = decode_s  # prompts lie between
        return Window(at_once, len(answers), decode_s, wall_s, before)


def _counted(window: Window, page: Page, named: str) -> Window:
    counts = page.counts - window.counts
    if counts.written <= window.answers:
        raise DraftpickError(f"{named} counts no tokens of its answers, so that nothing is known")
    if page.length is not None:  # means in place of counts
        rounds = (counts.written - window.answers) / max(1.0, page.length)
        accepted = counts.written - window.answers - rounds
        drafted = accepted / page.rate if page.rate else 0.0
        counts = Counts(counts.written, rounds if drafted else 0.0, drafted, accepted)
    return Window(window.asked, window.answers, window.decode_s, window.wall_s, counts)
