"""How long a server's step takes by the number of answers that it writes at once, from outside.

While n answers are streamed, each gets a token a step: the time between two tokens is the time of a
step that reads n tokens. Only the stretch counts in which all n are being written.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import httpx
import numpy as np

from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import WIDEST
from decoders.endpoints.recipe import EndpointRecipe

from .server import Stream, side_by_side, streamed

MIN_STRETCH_TOKENS = 8  # tokens of each answer in the stretch that counts
BURST = 0.1  # of the usual time between two events: they came together
BURSTS = 0.25  # the share of events that may
MOST_AN_EVENT = 1.3  # tokens; some spell no whole character, and come with the next
REPEATS = 3
ABOUT = (
    "a lighthouse and the people who keep it, a harbour in winter, the repair of an old wooden "
    "boat, and the letters that its owner wrote to a friend in another town"
)


class Fewer(Exception):
    """The server writes fewer answers at once than were asked for."""


def sweep(
    connections: httpx.Client,
    server: EndpointRecipe,
    counts: Sequence[int],
    tokens: int,
    on_done: Callable[[int, int, str], None] = lambda done, total, more: None,
    repeats: int = REPEATS,
) -> list[dict[int, float]]:
    """For each repeat, the seconds of a step by answers at once.

    counts: of answers at once, growing; those that the server does not write at once are left out.
    tokens: of each answer.

    Raises DraftpickError where the server does not answer, and where it drafts.
    """
    server = _endless(connections, server)
    _require_single_tokens(connections, server, tokens)
    made: list[dict[int, float]] = [{} for _ in range(repeats)]
    wanted, done = list(counts), 0
    for repeat in range(repeats):
        for count in list(wanted):
            on_done(done, repeats * len(wanted), f"{count} at once")
            try:
                made[repeat][count] = step_s(connections, server, count, tokens)
            except Fewer:
                wanted = [each for each in wanted if each < count]
                if not wanted:
                    raise DraftpickError(
                        f"{server.name} gave too few tokens to time a step; give more --tokens"
                    ) from None
                break
            done += 1
    on_done(1, 1, "")
    return [{n: each[n] for n in wanted} for each in made]


def step_s(connections: httpx.Client, server: EndpointRecipe, count: int, tokens: int) -> float:
    """Seconds of a step while `count` answers are written. Raises Fewer, and DraftpickError."""
    streams = side_by_side(connections, server, [_question(n) for n in range(count)], tokens, count)
    return step_of([stream.times for stream in streams], _tokens_an_event(server, streams))


def step_of(times: Sequence[Sequence[float]], tokens_an_event: float = 1.0) -> float:
    """Seconds of a step. times: of each answer, when its events came. Raises Fewer."""
    begins = max((each[0] for each in times if each), default=0.0)
    ends = min((each[-1] for each in times if each), default=0.0)
    within = [sum(begins <= at <= ends for at in each) - 1 for each in times]
    if min(within, default=0) * tokens_an_event < MIN_STRETCH_TOKENS:
        raise Fewer
    return (ends - begins) / (statistics.fmean(within) * tokens_an_event)


def _require_single_tokens(connections: httpx.Client, server: EndpointRecipe, tokens: int) -> None:
    """Raises DraftpickError where, in each of a few answers, many tokens come together, as they do
    from a server that drafts. In one of them something else may have held them up."""
    for _ in range(REPEATS):
        stream = streamed(connections, server, _question(0), tokens)
        _tokens_an_event(server, [stream])
        gaps = [b - a for a, b in pairwise(stream.times)]
        usual = statistics.median(gaps) if gaps else 0.0
        if sum(gap < BURST * usual for gap in gaps) <= BURSTS * len(gaps):
            return
    raise _several(server)


def _several(server: EndpointRecipe) -> DraftpickError:
    return DraftpickError(
        f"{server.name} sends several tokens at a time, so that it drafts or holds its answers "
        "back; start it without drafts, since costs are of plain decoding"
    )


def _tokens_an_event(server: EndpointRecipe, streams: Sequence[Stream]) -> float:
    """Raises DraftpickError where an event brings several, or the server does not count them."""
    events = sum(len(stream.times) for stream in streams)
    counted = [stream.tokens for stream in streams if stream.tokens]
    if len(counted) < len(streams) or not events:
        raise DraftpickError(
            f"{server.name} does not count the tokens of its answers (`usage` in a stream), so "
            "that its steps cannot be timed"
        )
    each = sum(counted) / events
    if each > MOST_AN_EVENT:
        raise _several(server)
    return each


def _endless(connections: httpx.Client, server: EndpointRecipe) -> EndpointRecipe:
    """The server, asked to go on past the end of an answer where it knows how; a first request also
    warms it up."""
    whole = server.model_copy(update={"extra_body": {**server.extra_body, "ignore_eos": True}})
    try:
        streamed(connections, whole, _question(0), MIN_STRETCH_TOKENS)
        return whole
    except Exception:  # whatever it does not take; without it another request says what is wrong
        streamed(connections, server, _question(0), MIN_STRETCH_TOKENS)
        return server


def _question(number: int) -> str:
    """Another one for each answer."""
    return f"Tell a long story, number {number + 1}, about {ABOUT}. Do not stop before the end."


def costs_of_steps(repeats: Sequence[Mapping[int, float]]) -> Costs:
    """What passes cost, by a server's steps.

    repeats: of each, seconds of a step by answers at once, from 1 on.

    A pass over w tokens of each of n answers is taken to cost what a step of n w answers does. The
    weights are read once in both; attention is not: the step reads the context of n w answers, so
    that wide passes are charged too much where contexts are long. (Liu et al., TurboSpec, arXiv
    2406.14066, section 4, fit costs to the tokens of a step too.)
    """
    return Costs.of_repeats([_costs_of_steps(each) for each in repeats])


def _costs_of_steps(seconds: Mapping[int, float]) -> Costs:
    known = sorted(seconds)
    # more answers never take less
    least = np.minimum.accumulate([seconds[count] for count in reversed(known)])[::-1]
    steps = PassCosts(tuple(np.interp(range(1, known[-1] + 1), known, least).tolist()))

    def at(answers: int) -> Costs:
        widest = min(WIDEST, known[-1] // answers)
        return Costs(tuple(steps(answers * width) for width in range(1, widest + 1)), {})

    at_once = {n: at(n) for n in known if n > 1 and 2 * n <= known[-1]}
    return Costs(at(1).verify_s, {}, at_once)
