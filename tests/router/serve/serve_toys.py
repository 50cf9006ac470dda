"""A server in a thread over a toy engine: a letter a token, arms that copy, a policy that looks at
the prompt's length."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import openai
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp
from torch import Tensor

from decoders import Engine
from decoders.arms import arms_of
from decoders.continuous_batching import batch_engine
from decoders.records import Request
from decoders.testing.tokenizers import Letters
from decoders.testing.toys import ToyBackend
from policies import Decision
from router.records import RouteChoice, RouteDecision, RoutedResult
from router.routing.router import Router
from router.serve.app import Settings, make_app
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, GenerationRequest, Scheduler
from router.serve.server import HeaderTimeout, bound

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "abcabc"}], "max_tokens": 40}
LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
EOS = len(LETTERS)


class SlowToy(ToyBackend):
    """pause_s: what every pass takes."""

    pause_s = 0.0

    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        time.sleep(self.pause_s)
        return super().extend(ids, parents)


class ToyPolicy:
    """Copies for prompts of even length, else decodes plainly."""

    name = "even-odd"
    embedder = "any"
    arms = ("autoregressive", "copy")
    origin = SimpleNamespace(arms_fingerprint="", features=("log-prompt-length",))

    def distribution(self, x: Any) -> Any:
        return np.array([[0.25, 0.75] if round(np.exp(x[0])) % 2 == 0 else [0.75, 0.25]])

    def choose(self, x: Any, rng: Any = None) -> Any:
        chances = self.distribution(x)[0].tolist()
        index = int(np.argmax(chances)) if rng is None else int(rng.choice(2, p=chances))
        propensity = 1.0 if rng is None else chances[index]
        return Decision(self.arms[index], index, propensity, chances)


ARMS = {
    "copy": {"kind": "max_gram", "shortest": 1, "length": {"k": 3}},
    "beams": {"kind": "beam", "beams": 2},
    "größer/日本": {"kind": "max_gram", "length": {"k": 1}},
}


def native_engine(folder: Path) -> Engine:
    """A small random model whose passes can be shared. folder: where it is kept."""
    from decoder_toys import native, save_tiny

    if not (folder / "config.json").exists():
        save_tiny(
            folder, "llama", 3, {"vocab_size": len(LETTERS) + 1, "max_position_embeddings": 512}
        )
    arms = arms_of({"arms": {"copy": ARMS["copy"]}}, Path("toys"))
    return Engine(native(folder), arms, name="tiny", tokenizer=Letters(LETTERS), eos_ids=(EOS,))


def toy_engine(pause_s: float = 0.0) -> Engine:
    """Its answers mostly run round in a circle of letters, so that copying pays."""
    target = SlowToy.random(len(LETTERS) + 1, seed=4, sharpness=2.0)
    target.pause_s = pause_s
    for last in range(len(LETTERS)):
        target.table[:, last, (last + 1) % 5] += 5.0
    return Engine(
        target,
        arms_of({"arms": ARMS}, Path("toys")),
        name="toy",
        tokenizer=Letters(LETTERS),
        eos_ids=(EOS,),
    )


@dataclass
class Served:
    """A running server."""

    url: str
    scheduler: Scheduler
    engine: Engine
    server: uvicorn.Server

    def client(self, key: str = "any") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)

    def http(self, **named: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **named)


@contextmanager
def served(
    settings: Settings | None = None,
    places: int = 8,
    pause_s: float = 0.0,
    others: dict[str, Any] | None = None,
    engine: Any = None,
    slots: int = 1,
    log: Path | None = None,
    kind: type[Router] = Router,
    policy: Any = None,
    spans: Any = None,
) -> Iterator[Served]:
    """others: policies registered beside the default one, `policy`."""
    engine = toy_engine(pause_s) if engine is None else engine
    policies = {DEFAULT: policy or ToyPolicy(), **(others or {})}
    routers = {name: kind(engine, each, None, log) for name, each in policies.items()}
    scheduler = Scheduler(routers, FairQueue(places), batch_engine(engine, slots))
    try:
        with listening(make_app(scheduler, settings, spans)) as (url, server):
            yield Served(url, scheduler, engine, server)
    finally:
        scheduler.close()


@contextmanager
def listening(app: ASGIApp) -> Iterator[tuple[str, uvicorn.Server]]:
    """A server of the application in a thread, and its address."""
    held = bound("127.0.0.1", 0)
    # uvicorn's own logging would close the handlers of others, and one of them pytest's stream
    config = uvicorn.Config(app, http=HeaderTimeout, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [held]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{held.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def asking(url: str, count: int) -> Iterator[list[Future[httpx.Response]]]:
    """So many requests under way at once; all have ended afterwards."""
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(httpx.post, url + CHAT, json=ASKED, timeout=60) for _ in range(count)]


def until(true: Any, timeout_s: float = 5.0) -> bool:
    """Whether something becomes true in time."""
    ends = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > ends:
            return False
        time.sleep(0.005)
    return True


def samples(text: str, kinds: tuple[str, ...]) -> dict[Any, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in kinds
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


class Heard:
    """Callbacks that keep their arguments. leave_after: rounds until the handle is cancelled."""

    def __init__(self, leave_after: int | None = None) -> None:
        self.decision: RouteDecision | None = None
        self.ids: list[int] = []
        self.rounds = 0
        self.result: RoutedResult | None = None
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.leave_after, self.handle = leave_after, None

    def began(self, decision: RouteDecision) -> None:
        assert not self.rounds
        self.decision = decision

    def wrote(self, ids: list[int], accepted: int, drafted: int, fields: Any = None) -> None:
        assert self.decision is not None and 0 <= accepted <= drafted
        self.ids += ids
        self.rounds += 1
        if self.rounds == self.leave_after:
            self.handle.cancel()

    def done(self, result: RoutedResult) -> None:
        self.result = result
        self.ended.set()

    def failed(self, error: Exception) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()


def generation(text: str = "abcabc", tokens: int = 20, **named: Any) -> GenerationRequest:
    ids = [ord(letter) - ord("a") for letter in text]
    route = RouteChoice(named.pop("arm", None), named.pop("policy", None))
    usual: dict[str, Any] = {"route": route, "id": text, "client": "a"}
    return GenerationRequest(ids, named.pop("request", Request(tokens)), text, **{**usual, **named})


ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def process(words: list[str], within_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A serving process and its address, once it listens."""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    told: list[str] = []

    def read() -> None:
        told.extend(iter(started.stderr.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert until(lambda: "serving on" in "".join(told) or started.poll() is not None, within_s)
        found = re.search(r"http://\S+", "".join(told))
        assert found is not None, "".join(told)
        yield started, found[0]
    finally:
        started.kill()
        started.wait()
        reader.join(5)
        started.stderr.close()
