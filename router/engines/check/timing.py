"""A minute of answers, by which the time of a server's pass is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import httpx

from decoders.common.errors import DraftpickError
from decoders.endpoints.recipe import EndpointRecipe

from ..server import Stream, side_by_side
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


def windows(
    connections: httpx.Client,
    server: EndpointRecipe,
    metrics: Metrics,
    questions: Sequence[str],
    tokens: int,
    seconds: float,
    on_done: Callable[[int, int, str], None],
) -> list[Window]:
    """Windows of every number at once, again and again until the seconds are over or the next ones
    would ask a question again. Raises DraftpickError.

    tokens: of an answer.
    """
    others = cycle(questions)

    def answers(at_once: int) -> list[Stream]:
        asked = list(islice(others, max(EACH, at_once)))
        return side_by_side(connections, server, asked, tokens, at_once)

    answers(1)  # warms it up
    page, began = metrics.read(), time.monotonic()
    made = list[Window]()
    for turn in range(most_turns(questions)):
        if turn and time.monotonic() >= began + seconds:
            break
        for at_once in AT_ONCE:
            passed = int(time.monotonic() - began)
            on_done(min(passed, int(seconds)), int(seconds) + 1, f"{at_once} at once")
            before, given = page.counts, answers(at_once)
            page = metrics.read()
            made.append(_window(at_once, given, before, page, server.name))
    on_done(1, 1, "")
    return made


def most_turns(questions: Sequence[str]) -> int:
    """Turns of all numbers at once, one at least, that ask nothing twice: a server may remember its
    answers, and draft them."""
    return max(1, (len(questions) - EACH) // sum(max(EACH, at_once) for at_once in AT_ONCE))


def _window(
    at_once: int, answers: Sequence[Stream], before: Counts, page: Page, named: str
) -> Window:
    whole = [each.times for each in answers if len(each.times) > 1]
    if not whole:
        raise DraftpickError(
            f"{named} gave answers of one piece, of which no step can be timed; take --queries "
            "with longer answers, or a server that streams"
        )
    decode_s = sum(times[-1] - times[0] for times in whole)
    wall_s = max(times[-1] for times in whole) - min(times[0] for times in whole)
    if at_once == 1:
        wall_s = decode_s  # prompts lie between
    counts, many = page.counts - before, len(answers)
    if counts.written <= many:
        raise DraftpickError(f"{named} counts no tokens of its answers, so that nothing is known")
    if page.length is not None:  # means in place of counts
        rounds = (counts.written - many) / max(1.0, page.length)
        accepted = counts.written - many - rounds
        drafted = accepted / page.rate if page.rate else 0.0
        counts = Counts(counts.written, rounds if drafted else 0.0, drafted, accepted)
    return Window(at_once, many, decode_s, wall_s, counts)
