"""How many requests servers have under way, by their own metrics pages."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import ref

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ..common.errors import DraftpickError, UpstreamRefused
from .recipe import EndpointRecipe
from .stream import Unavailable, asked, text_of

EVERY_S = 1.0
MAX_REQUESTS = 1e9  # requests that are believed
TOO_OLD_S = 10.0  # a page that was read so long ago says nothing of now
GAUGES = {  # running, waiting
    "vLLM, draftpick": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "SGLang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}


@dataclass(frozen=True)
class Load:
    """Requests that a server decodes, and that wait for it to."""

    running: int
    waiting: int

    @property
    def all(self) -> int:
        return self.running + self.waiting


Sample = tuple[str, Mapping[str, str], float]  # name, labels, value


def samples(page: str, named: str) -> list[Sample]:
    """All that a metrics page holds, in Prometheus' format.

    named: where it came from. Raises DraftpickError for another page.
    """
    try:
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        ]
    except ValueError as error:
        raise DraftpickError(
            f"{named} is no page of metrics ({error}); check the address"
        ) from None


def load_on(page: str, named: str) -> Load:
    """The load that a metrics page tells. Raises DraftpickError as `samples`, and where it has the
    gauges of no server that is known here."""
    found = dict[str, float]()  # summed over labels: engines, models
    for sample, _, value in samples(page, named):
        found[sample] = found.get(sample, 0.0) + value
    for names in GAUGES.values():
        counts = [found.get(name, -1.0) for name in names]
        if all(0 <= count < MAX_REQUESTS for count in counts):
            return Load(*map(round, counts))
    servers = "; ".join(f"{' and '.join(names)} ({who})" for who, names in GAUGES.items())
    raise DraftpickError(
        f"{named} does not say how many requests run and wait; what is known is {servers}"
    )


class NoAnswer(DraftpickError):
    """The server gives no metrics page now."""


class Loads:
    """The load of each arm that has a metrics page, asked for in the background once a second."""

    def __init__(self, arms: Iterable[EndpointRecipe], connections: httpx.Client) -> None:
        self._pages = {  # to be asked as the arm is, by its key
            arm.name: arm.model_copy(update={"url": arm.metrics_url})
            for arm in arms
            if arm.metrics_url is not None
        }
        self._connections = connections
        self._seen = dict[str, tuple[float, Load]]()
        self._lock = threading.Lock()
        self._started = False

    def read(self, arm: str) -> Load | None:
        """Now; None for an arm without a page. Raises NoAnswer where the server does not answer or
        has none, DraftpickError where it says something else."""
        page = self._pages.get(arm)
        if page is None:
            return None
        try:
            with asked(self._connections, page, "GET", "") as (answer, _):
                return load_on(text_of(answer), f"the metrics page of arm {arm!r}")
        except UpstreamRefused as error:
            raise DraftpickError(
                f"the metrics page of arm {arm!r} cannot be read ({error}); check the "
                "arm's `metrics_url`"
            ) from error
        except Unavailable as error:
            raise NoAnswer(
                f"there is no metrics page of arm {arm!r}: {error}; its load is not known"
            ) from error

    @property
    def busiest(self) -> int:
        """Requests under way at the server that has most of them, as far as is known; 0 where
        nothing is."""
        if not self._pages:
            return 0
        with self._lock:
            if not self._started:
                self._started = True
                for arm in self._pages:
                    threading.Thread(target=_watch, args=(ref(self), arm), daemon=True).start()
        oldest = time.monotonic() - TOO_OLD_S
        seen = list(self._seen.values())  # threads add to it
        return max((load.all for at, load in seen if at > oldest), default=0)


def _watch(loads: ref[Loads], arm: str) -> None:
    """Read the arm's page again and again, as long as anybody else has the loads."""
    told = False
    while (held := loads()) is not None:
        try:
            load = held.read(arm)
            assert load is not None
            held._seen[arm] = (time.monotonic(), load)
        except DraftpickError as error:  # what was seen before gets too old
            if not told:
                print(f"warning: {error}", file=sys.stderr)
            told = True
        del held
        time.sleep(EVERY_S)
