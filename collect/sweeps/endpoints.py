"""Collecting from endpoints: every one answers every query once, alone, and is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from decoders.common.errors import ArmDown, DraftpickError, UpstreamRefused
from decoders.common.seeds import derived_seed
from decoders.costs.measured import Costs
from decoders.endpoints.engine import EndpointEngine
from decoders.records import DecodeResult, Request

from ..records import ArmInfo, OutcomeRow, error_row
from ..repetition import is_repetitive
from ..rouge import rouge_l
from .batch import (
    Collected,
    OnRows,
    Prompt,
    SweepOptions,
    describe,
    no_progress,
    query_row,
)

MOST = 8  # queries a group, so that a kill loses few paid answers


def for_endpoints(options: SweepOptions) -> SweepOptions:
    """The options as endpoints are collected: measured, in small groups. Raises DraftpickError for
    temperatures other than 0 and several answers at once."""
    if options.temperatures != (0.0,):
        raise DraftpickError(
            "endpoints are collected at temperature 0 alone, as their times are of greedy answers; "
            "leave --temperatures out"
        )
    if options.at_once != (1,):
        raise DraftpickError(
            "endpoints are timed one answer at a time, as the load of their machines is not known; "
            "leave --at-once out"
        )
    return replace(options, measure=True, batch_size=min(options.batch_size, MOST))


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
        """Similarity is to the answer of the first of the arms. Raises DraftpickError where an
        endpoint stays dead."""
        for_endpoints(options)
        for group in groups:
            done = Collected([], [])
            for prompt in group:
                self._add(done, prompt, arms, options)
                on_rows(done.outcomes[-len(arms) :])
            yield done

    def _add(
        self, done: Collected, prompt: Prompt, arms: Sequence[ArmInfo], options: SweepOptions
    ) -> None:
        request = Request(max_new_tokens=options.max_new_tokens)
        rng = np.random.default_rng(derived_seed(options.seed, prompt.query.id))
        found: dict[str, DecodeResult | Exception] = {}
        for index in rng.permutation(len(arms)).tolist():
            found[arms[index].name] = self._answer(arms[index].name, prompt.ids, request)
        first = found[arms[0].name]
        wanted = first if isinstance(first, DecodeResult) else None
        embedding = self._engine.prefill(prompt.ids).embedding.numpy()  # [d]
        text = wanted.text if wanted else ""
        done.queries.append(query_row(prompt, self._engine.embedder, embedding, text, options))
        for arm in arms:
            result = found[arm.name]
            if isinstance(result, Exception):
                done.outcomes.append(error_row(prompt.query.id, arm, describe(result)))
            else:
                done.outcomes.append(_row(prompt, arm, result, wanted))

    def _answer(
        self, arm: str, prompt_ids: list[int], request: Request
    ) -> DecodeResult | Exception:
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


def _row(
    prompt: Prompt, arm: ArmInfo, result: DecodeResult, wanted: DecodeResult | None
) -> OutcomeRow:
    """wanted: the first arm's answer, None where it failed."""
    ids = _renumbered(wanted.ids) if wanted else ()
    return OutcomeRow(
        query_id=prompt.query.id,
        arm=arm.name,
        parameters=arm.parameters,
        rouge_l=rouge_l(wanted.text, result.text) if wanted else None,
        rounds=result.rounds,
        drafted=result.drafted,
        accepted=result.accepted,
        new_tokens=len(result.ids) if result.counted else None,
        prompt_tokens=result.prompt_tokens,
        repetitive=is_repetitive(ids) if wanted else None,
        prefill_s=result.prefill_s,
        decode_s=result.decode_s,
        measured_tokens=len(result.ids) if result.counted else None,
        measured_prefill_s=result.prefill_s,
        measured_decode_s=result.decode_s,
        text=result.text,
        target_ids=ids,
    )


def _renumbered(ids: Sequence[int]) -> tuple[int, ...]:
    """Numbers by first occurrence: an endpoint's ids mean nothing in another process, which of them
    are the same does."""
    order: dict[int, int] = {}
    return tuple(order.setdefault(one, len(order)) for one in ids)
