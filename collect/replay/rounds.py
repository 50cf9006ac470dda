"""The time of a round outside the target's pass and the drafts: for arms that are replayed.

Copies are looked for, tokens are drawn, drafts are compared with what the target says. For one
answer that is little next to a pass. Many answers do it one after the other.
Measured by decoding; each prompt is read once for all arms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from decoders.common.sync import synchronize
from decoders.continuous_batching import ContinuousBatch, EngineSlot
from decoders.costs.measured import Costs
from decoders.protocols import Drafts
from decoders.records import Prefilled, Request, Sampling

from .registry import adapter_of

if TYPE_CHECKING:
    from decoders.engine import Engine

MAX_ROUNDS, MIN_ROUNDS = 8, 4  # rounds of each arm, each time
SECONDS = 0.15  # about, of each arm
MAX_ANSWER_TOKENS = 256  # tokens of an answer, where copies make them many
PROMPTS = (
    "How does a bicycle stay upright while it is moving?",
    "Write a short letter to a landlord about a window that does not close.",
    "A baker sells 12 loaves an hour and works for 7 hours. How many loaves are sold?",
    "Translate into German: The train to the coast leaves at noon.",
    "Name three reasons why leaves change their colour in autumn.",
    "Summarize: The council met on Monday. It voted to repair the old bridge, and not to sell it.",
    "What should a beginner know about growing tomatoes on a balcony?",
    "Explain to a child why the moon seems to follow us.",
)


class _Enough(Exception):
    """Ends an answer of which enough was timed."""


class OverheadTimer:
    """Calls a function that reads tokens, and times what passes between its calls.

    widths: from its first argument, how many tokens of each answer it reads.
    answers: only the time between two calls for this many answers counts.
    calls: steps of a drafter so far; None where each drafted token is one.
    """

    def __init__(
        self,
        reads: Callable[..., Any],
        widths: Callable[[Any], list[int]],
        answers: int,
        calls: Callable[[], int] | None,
        device: torch.device,
    ) -> None:
        self._reads, self._widths, self._answers = reads, widths, answers
        self._calls, self._device = calls, device
        self._left: tuple[float, int] | None = None
        self.found: list[tuple[float, int]] = []  # seconds, and steps of drafters meanwhile

    def __call__(self, wanted: Any, *more: Any) -> Any:
        now, widths = time.perf_counter(), self._widths(wanted)
        whole = len(widths) == self._answers
        if whole and self._left is not None:
            left, before = self._left
            drafted = sum(widths) - len(widths)
            steps = drafted if self._calls is None else self._calls() - before
            self.found.append((now - left, steps))
        read = self._reads(wanted, *more)
        synchronize(self._device)
        steps = 0 if self._calls is None else self._calls()
        self._left = (time.perf_counter(), steps) if whole else None
        return read

    def median(self, step_s: float) -> float:
        """Median of the elapsed time, without these seconds for each step. Raises StatisticsError
        where nothing was found."""
        spent = (seconds - steps * step_s for seconds, steps in self.found)
        return max(0.0, statistics.median(spent))


def alone(engine: Engine, costs: Costs) -> tuple[dict[str, float], dict[str, float]]:
    """`Costs.round_s` and `drawn_round_s` of one answer. costs: its passes and drafts."""
    target = engine.target
    held: list[Prefilled] = []  # what the target read of the prompt, until an arm fails

    def gaps(arm: str, temperature: float, rounds: int) -> OverheadTimer:
        (prompt,) = prompts = _prompts(engine, 1)
        request = _request(engine, prompts, temperature, 0)
        calls = _calls([engine], arm)
        found = OverheadTimer(target.extend, lambda ids: [len(ids)], 1, calls, target.device)
        prefilled = held.pop() if held else engine.prefill(prompt)

        def extend(*given: Any) -> Any:
            if len(found.found) == rounds:
                raise _Enough
            return found(*given)

        with _in_place_of(target, "extend", extend), suppress(_Enough):
            engine.decode(arm, prompt, request, prefilled)
        held.append(prefilled)
        return found

    return _of_arms(engine, costs, 1, gaps)


def at_once(
    batch: ContinuousBatch, engine: Engine, costs: Costs, answers: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The same for a number of answers, for all of them together.

    batch: of the engine's; no answer is being written there.
    costs: for that number of answers.
    """
    held: dict[Engine, Prefilled] = {}  # by slot, what it read of its prompt, until an arm fails

    def begin(arm: str, prompt: list[int], request: Request) -> None:
        def answer(own: Engine) -> None:
            if own not in held:
                held[own] = own.prefill(prompt)
            own.decode(arm, prompt, request, held[own])

        slot = batch.free()  # of as many, each prompt gets the same one every time
        assert isinstance(slot, EngineSlot)
        batch.begin(slot, answer)

    def gaps(arm: str, temperature: float, rounds: int) -> OverheadTimer:
        prompts = _prompts(engine, answers)
        calls = _calls([slot.engine for slot in batch.slots], arm)
        found = OverheadTimer(
            batch.passes.read,
            lambda wanted: [len(each.ids) for each in wanted],
            answers,
            calls,
            engine.target.device,
        )
        try:
            for seed, prompt in enumerate(prompts):
                begin(arm, prompt, _request(engine, prompts, temperature, seed))
            while batch.running == answers and len(found.found) < rounds:
                batch.step(found)
        except Exception:
            held.clear()
            raise
        finally:
            batch.close()
        return found

    return _of_arms(engine, costs, answers, gaps)


def _of_arms(
    engine: Engine, costs: Costs, answers: int, gaps: Callable[[str, float, int], OverheadTimer]
) -> tuple[dict[str, float], dict[str, float]]:
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, round(SECONDS / costs.verify_s[0])))
    made: tuple[dict[str, float], dict[str, float]] = {}, {}
    for temperature, seconds in zip((0.0, 1.0), made, strict=True):
        for arm in engine.arm_names:
            with suppress(Exception):  # an arm that fails says so for each query
                found = gaps(arm, temperature, rounds)
                seconds[arm] = found.median(costs.draft_s.get(arm, 0.0) / answers)
    return made


def _calls(engines: Sequence[Engine], arm: str) -> Callable[[], int] | None:
    """The steps that an arm's drafters have taken, where drafted tokens do not give them."""
    drafters = [s.drafter for s in (e.strategy(arm) for e in engines) if isinstance(s, Drafts)]
    if not drafters or not adapter_of(drafters[0]).counts_calls:
        return None
    return lambda: sum(drafter.calls for drafter in drafters)


def _request(
    engine: Engine, prompts: Sequence[list[int]], temperature: float, seed: int
) -> Request:
    """An answer of more rounds than are timed, as far as the context allows."""
    room = engine.context - max(map(len, prompts)) - MAX_ROUNDS
    tokens = max(MIN_ROUNDS, min(MAX_ANSWER_TOKENS, room))
    return Request(tokens, Sampling(temperature), eos_ids=(), seed=seed)


def _prompts(engine: Engine, count: int) -> list[list[int]]:
    """Different ones, as each is answered in a place of its own."""
    texts = [PROMPTS[n % len(PROMPTS)] + f" ({n + 1})" * (n >= len(PROMPTS)) for n in range(count)]
    return [engine.encode_chat([{"role": "user", "content": text}]) for text in texts]


@contextmanager
def _in_place_of(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)
