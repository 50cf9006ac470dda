"""Collecting from endpoints: every one answers every query and is timed, alone and among others.

Alone, an endpoint is asked one query after another, those of all arms in turns. For n answers at
once n clients ask the same endpoint, each its next query when it has an answer. Until the last
answer of a group has come, clients without a query ask one again, whose answer is thrown away, so
that none is timed under less load; the endpoints take turns, group by group.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from threading import Lock

import numpy as np

from decoders.common.errors import ArmDown, DraftpickError, UpstreamRefused
from decoders.common.seeds import derived_seed
from decoders.common.wording import in_words
from decoders.costs.measured import Costs
from decoders.endpoints.engine import EndpointEngine
from decoders.endpoints.load import NoAnswer
from decoders.records import DecodeResult, Request, Sampling

from ..records import ArmInfo, OutcomeRow, error_row
from ..rouge import rouge_l
from ..sweeps.batch import Collected, OnRows, Prompt, SweepOptions, no_progress, query_row, seed_of
from ..sweeps.repetition import is_repetitive

MAX_GROUP_QUERIES = 8  # queries a group, so that a kill loses few paid answers
GROUP = 4  # of them for each client, so that few are asked again

Found = DecodeResult | Exception
Tell = Callable[["Prompt", "ArmInfo", Found, "_Asked"], None]  # of an answer, as it comes


class Endpoints:
    """The executor of an engine of endpoints.

    patience_s: how long a dead endpoint is waited for before the sweep stops; what is stored stays.
        It is asked once more at the end of that time, whatever pause it has earned or asked for.
    sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        engine: EndpointEngine,
        patience_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine, self._patience_s, self._sleep = engine, patience_s, sleep

    @staticmethod
    def adapted(options: SweepOptions) -> SweepOptions:
        """The options as endpoints are collected: measured, in small groups."""
        size = max(MAX_GROUP_QUERIES, GROUP * max(options.at_once))
        return replace(options, measure=True, batch_size=min(options.batch_size, size))

    def costs(self) -> Costs:
        """None: nobody says what a pass of theirs costs."""
        return Costs((), {})

    def collect(
        self,
        groups: Iterable[Sequence[Prompt]],
        arms: Sequence[ArmInfo],
        options: SweepOptions,
        on_rows: OnRows = no_progress,
    ) -> Iterator[Collected]:
        """Similarity is to the greedy answer of the first of the arms. Raises DraftpickError where
        an endpoint stays dead."""
        options, lock = self.adapted(options), Lock()

        def tell(prompt: Prompt, arm: ArmInfo, found: Found, asked: _Asked) -> None:
            with lock:
                on_rows([_row(prompt, arm, found, None, asked)])

        told = set[str]()
        for group in groups:
            self._tell_of_others(arms, told)
            done = Collected([], [])
            greedy = dict[str, str]()  # the first arm's
            for answers in options.at_once:
                for temperature, draw in options.answers:
                    asked = _Asked(options, temperature, draw, answers)
                    if answers == 1:
                        found = self._alone(group, arms, asked, tell)
                    else:
                        found = self._together(group, arms, asked, tell)
                    for prompt, by_arm in zip(group, found, strict=True):
                        first = by_arm[arms[0].name]
                        wanted = first if isinstance(first, DecodeResult) else None
                        if asked.plain:
                            greedy[prompt.query.id] = wanted.text if wanted else ""
                        done.outcomes.extend(
                            _row(prompt, arm, by_arm[arm.name], wanted, asked) for arm in arms
                        )
            for prompt in group:
                text = greedy[prompt.query.id]
                embedding = self._engine.prefill(prompt.ids).embedding.numpy()  # [d]
                embedder = self._engine.embedder
                done.queries.append(query_row(prompt, embedder, embedding, text, options))
            yield done

    def _tell_of_others(self, arms: Sequence[ArmInfo], told: set[str]) -> None:
        """Say once of each arm whose server has other requests, by its metrics page: they are timed
        with its answers. Raises DraftpickError for a page that does not say."""
        for arm in arms:
            if arm.name in told:
                continue
            try:
                load = self._engine.loads.read(arm.name)
            except NoAnswer as error:
                words = str(error)
            else:
                if load is None or not load.all:
                    continue
                words = (
                    f"the server of arm {arm.name!r} has other requests, {load.running} running "
                    f"and {load.waiting} waiting; what is measured includes them"
                )
            told.add(arm.name)
            print(f"warning: {words}", file=sys.stderr)

    def _alone(
        self, group: Sequence[Prompt], arms: Sequence[ArmInfo], asked: _Asked, tell: Tell
    ) -> list[dict[str, Found]]:
        """Each arm's answer to each query, asked in a random order."""
        made = []
        for prompt in group:
            found: dict[str, Found] = {}
            for index in asked.order(len(arms), prompt.query.id):
                arm = arms[index]
                found[arm.name] = self._answer(arm.name, prompt.ids, asked.request(prompt))
                tell(prompt, arm, found[arm.name], asked)
            made.append(found)
        return made

    def _together(
        self, group: Sequence[Prompt], arms: Sequence[ArmInfo], asked: _Asked, tell: Tell
    ) -> list[dict[str, Found]]:
        """Likewise, one arm after the other, by as many clients at once."""
        made: list[dict[str, Found]] = [{} for _ in group]
        for index in asked.order(len(arms), group[0].query.id):
            arm = arms[index]
            turns = Turns(asked.order(len(group), arm.name))

            def client(arm: ArmInfo = arm, turns: Turns = turns) -> None:
                while (turn := turns.next()) is not None:
                    at, first = turn
                    try:
                        answer = self._answer(arm.name, group[at].ids, asked.request(group[at]))
                        if first:
                            tell(group[at], arm, answer, asked)
                    except BaseException:
                        turns.stop()
                        raise
                    if first:
                        made[at][arm.name] = answer
                        turns.answered()

            with ThreadPoolExecutor(asked.answers) as pool:
                for future in [pool.submit(client) for _ in range(asked.answers)]:
                    future.result()
        return made

    def _answer(self, arm: str, prompt_ids: list[int], request: Request) -> Found:
        waited_s, last = 0.0, False
        while True:
            try:
                return self._engine.decode(arm, prompt_ids, request)
            except ArmDown as down:
                if last:
                    raise DraftpickError(
                        f"the endpoint of arm {arm!r} does not answer ({down.reason}), not even "
                        f"after {waited_s:.0f} s; start it and run the same command again: what is "
                        "stored is kept"
                    ) from down
                last = waited_s + down.pause_s >= self._patience_s
                pause_s = self._patience_s - waited_s if last else down.pause_s
                waited_s += pause_s
                self._sleep(pause_s)
                if last:
                    self._engine.wake(arm)
            except UpstreamRefused:  # so it would every query
                raise
            except Exception as error:  # a request that is refused is this query's outcome
                return error


class Turns:
    """Which query a client asks next, of several clients in threads of their own."""

    def __init__(self, order: Sequence[int]) -> None:
        self._todo, self._again, self._left = deque(order), cycle(order), len(order)
        self._lock = Lock()

    def next(self) -> tuple[int, bool] | None:
        """A query, and whether its answer counts; None where all that count are there."""
        with self._lock:
            if not self._left:
                return None
            return (self._todo.popleft(), True) if self._todo else (next(self._again), False)

    def answered(self) -> None:
        with self._lock:
            self._left -= 1

    def stop(self) -> None:
        with self._lock:
            self._left = 0


@dataclass(frozen=True)
class _Asked:
    """How each query of a pass is asked. answers: at once."""

    options: SweepOptions
    temperature: float
    draw: int
    answers: int

    @property
    def plain(self) -> bool:
        """Whether greedily and alone."""
        return not self.temperature and self.answers == 1

    def seed(self, query_id: str) -> int | None:
        if not self.temperature:
            return None
        return seed_of(self.options, query_id, self.temperature, self.draw)

    def request(self, prompt: Prompt) -> Request:
        sampling = Sampling(self.temperature)
        return Request(self.options.max_new_tokens, sampling, seed=self.seed(prompt.query.id))

    def order(self, count: int, of: str) -> list[int]:
        """A random one that the seed fixes."""
        more = () if self.plain else (f"{self.temperature:g}", self.draw, self.answers)
        rng = np.random.default_rng(derived_seed(self.options.seed, of, *more))
        order: list[int] = rng.permutation(count).tolist()
        return order


def _row(
    prompt: Prompt, arm: ArmInfo, found: Found, wanted: DecodeResult | None, asked: _Asked
) -> OutcomeRow:
    """wanted: the first arm's answer, None where it failed."""
    if isinstance(found, Exception):
        place = asked.temperature, asked.answers - 1, asked.draw
        return error_row(prompt.query.id, arm, in_words(found), *place)
    ids = _renumbered(wanted.ids) if wanted else ()
    tokens = len(found.ids) if found.counted else None
    return OutcomeRow(
        query_id=prompt.query.id,
        arm=arm.name,
        temperature=asked.temperature,
        running=asked.answers - 1,
        draw=asked.draw,
        parameters=arm.parameters,
        rouge_l=rouge_l(wanted.text, found.text) if wanted and not asked.temperature else None,
        rounds=found.rounds,
        drafted=found.drafted,
        accepted=found.accepted,
        new_tokens=tokens,
        prompt_tokens=found.prompt_tokens,
        repetitive=is_repetitive(ids) if wanted else None,
        prefill_s=found.prefill_s,
        decode_s=found.decode_s,
        measured_tokens=tokens,
        measured_prefill_s=found.prefill_s,
        measured_decode_s=found.decode_s,
        seed=asked.seed(prompt.query.id),
        text=found.text,
        target_ids=ids,
    )


def _renumbered(ids: Sequence[int]) -> tuple[int, ...]:
    """Numbers by first occurrence: an endpoint's ids mean nothing in another process, which of them
    are the same does."""
    order: dict[int, int] = {}
    return tuple(order.setdefault(one, len(order)) for one in ids)
