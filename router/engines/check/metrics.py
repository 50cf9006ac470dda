"""A server's page of metrics, and which engine's it is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap, zip_longest
from urllib.parse import urlsplit

import httpx

from decoders.common.errors import DraftpickError
from decoders.common.wording import in_words
from decoders.endpoints.load import Sample, samples
from decoders.endpoints.recipe import EndpointRecipe
from decoders.endpoints.stream import authorization

TIMEOUT_S, TRIES = 20.0, 3
POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Engine:
    """How an engine names its metrics.

    name: of the engine. prefix: of its metrics. off: how its metrics are turned on.
    running: gauge of requests that are decoded. written: counter of tokens.
    """

    name: str
    prefix: str
    running: str
    written: str
    off: str


ENGINES = {
    "draftpick": Engine(
        "draftpick", "draftpick_", "vllm:num_requests_running", "vllm:generation_tokens_total", ""
    ),
    "vllm": Engine(
        "vLLM",
        "vllm:",
        "vllm:num_requests_running",
        "vllm:generation_tokens_total",
        "start it without --disable-log-stats",
    ),
    "sglang": Engine(
        "SGLang",
        "sglang:",
        "sglang:num_running_reqs",
        "sglang:generation_tokens_total",
        "start it with --enable-metrics",
    ),
    "llama.cpp": Engine(
        "llama.cpp",
        "llamacpp:",
        "llamacpp:requests_processing",
        "llamacpp:tokens_predicted_total",
        "start it with --metrics",
    ),
}


@dataclass(frozen=True)
class Counts:
    """What a server has counted since it started.

    written: tokens. drafts: passes that verified a draft. drafted, accepted: tokens.
    at: how often the drafted token at each position was accepted; empty where that is not said.
    """

    written: float = 0.0
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    at: tuple[float, ...] = ()

    def __sub__(self, before: Counts) -> Counts:
        return self._with(operator.sub, before)

    def __add__(self, other: Counts) -> Counts:
        return self._with(operator.add, other)

    def _with(self, made: Callable[[float, float], float], other: Counts) -> Counts:
        return Counts(
            made(self.written, other.written),
            made(self.drafts, other.drafts),
            made(self.drafted, other.drafted),
            made(self.accepted, other.accepted),
            tuple(starmap(made, zip_longest(self.at, other.at, fillvalue=0.0))),
        )


@dataclass(frozen=True)
class Page:
    """engine: as of ENGINES. running: requests under way.
    length, rate: SGLang's own means, tokens a pass and the share accepted; None elsewhere.
    """

    engine: str
    running: float
    counts: Counts
    length: float | None = None
    rate: float | None = None


@dataclass
class Metrics:
    """The pages of one server, read when they are asked for. server: as its API is asked."""

    connections: httpx.Client
    server: EndpointRecipe

    def read(self) -> Page:
        """Raises DraftpickError where nothing listens, where the server is none of ENGINES, and
        where its metrics are off, with the option that turns them on."""
        root = self._root()
        answer = self._get("/metrics")
        if answer.status_code in (401, 403):
            raise DraftpickError(
                f"{root}/metrics wants a key; name the variable that holds it with --api-key-env"
            )
        if answer.status_code != 200:
            raise self._without(answer)
        found = samples(answer.text, f"{root}/metrics")
        for name, engine in ENGINES.items():
            if any(each.startswith(engine.prefix) for each, _, _ in found):
                return _page(name, engine, found, root)
        known = ", ".join(engine.name for engine in ENGINES.values())
        raise DraftpickError(
            f"{root}/metrics has no metrics of a server that is known here ({known}); check the "
            "address"
        )

    def _root(self) -> str:
        parts = urlsplit(self.server.url)
        return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"), query="").geturl()

    def _get(self, path: str) -> httpx.Response:
        root, headers = self._root(), authorization(self.server)
        error: Exception = httpx.HTTPError("")
        for _ in range(TRIES):  # a server may close a kept connection just when it is used
            try:
                return self.connections.get(root + path, headers=headers, timeout=TIMEOUT_S)
            except httpx.ConnectError as refused:
                error = refused
                break
            except (httpx.HTTPError, httpx.InvalidURL) as broken:
                error = broken
        raise DraftpickError(
            f"nothing answers at {self.server.url} ({in_words(error)}); check the address and "
            "whether the server runs"
        ) from error

    def _without(self, answer: httpx.Response) -> DraftpickError:
        """Why there is no page of metrics."""
        root = self._root()
        engine = None
        if "--metrics" in answer.text:
            engine = ENGINES["llama.cpp"]
        elif self._get("/get_server_info").status_code == 200:
            engine = ENGINES["sglang"]
        if engine is not None:
            return DraftpickError(f"{root} is {engine.name} with its metrics off; {engine.off}")
        known = ", ".join(each.name for each in ENGINES.values())
        return DraftpickError(
            f"{root}/metrics answers with status {answer.status_code}, so that this is no server "
            f"that is known here ({known}); check the address, without /v1"
        )


def _page(name: str, engine: Engine, told: list[Sample], root: str) -> Page:
    summed, at = dict[str, float](), dict[int, float]()
    for metric, labels, value in told:
        summed[metric] = summed.get(metric, 0.0) + value
        if metric.endswith(POSITION) and labels.get("position", "").isdecimal():
            place = int(labels["position"])
            at[place] = at.get(place, 0.0) + value
    if engine.written not in summed:
        raise DraftpickError(
            f"{root} does not count its tokens; {engine.off or 'check its version'}"
        )
    spec = "llamacpp" if name == "llama.cpp" else "vllm"
    drafts, drafted, accepted = (
        summed.get(f"{spec}:spec_decode_num_{each}_total", 0.0)
        for each in ("drafts", "draft_tokens", "accepted_tokens")
    )
    places = tuple(at.get(place, 0.0) for place in range(max(at, default=-1) + 1))
    counts = Counts(summed[engine.written], drafts, drafted, accepted, places)
    length, rate = (_mean(told, f"sglang:spec_accept_{each}") for each in ("length", "rate"))
    return Page(name, summed.get(engine.running, 0.0), counts, length, rate)


def _mean(told: list[Sample], name: str) -> float | None:
    """Over its ranks."""
    found = [value for metric, _, value in told if metric == name]
    return sum(found) / len(found) if found else None
