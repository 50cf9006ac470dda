"""What becomes of an endpoint arm when a real server fails: llama.cpp's and vLLM's, provoked."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import vllm_server
from real_servers import ENGINES, Server, free_port, started
from spelling_toys import save_gguf

from decoders.arms import recipe
from decoders.common.errors import ArmDown, DraftpickError, UpstreamBroke
from decoders.endpoints.chat import chat_ids
from decoders.endpoints.engine import EndpointEngine
from decoders.records import Request

pytestmark = pytest.mark.engines

HELLO = chat_ids([{"role": "user", "content": "Hello."}])
LONG = chat_ids([{"role": "user", "content": "one two three four " * 8000}])
NO_END: tuple[int, ...] = ()


@contextmanager
def llama_cpp(folder: Path, port: int) -> Iterator[Server]:
    """A model of zeros, whose answers are any bytes."""
    model = save_gguf(folder / "model.gguf", "byte-level", context=20_000)
    script = Path(__file__).with_name("serve_xllamacpp.py")
    python = ENGINES / "xllamacpp" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"there is no xllamacpp in {ENGINES}; run `make engines`")
    words = [str(python), str(script), str(model), str(port), "20000", "1"]
    with started(words, port, folder) as server:
        yield server


@contextmanager
def vllm(folder: Path, port: int) -> Iterator[Server]:
    with vllm_server.served(folder, options=["--max-num-seqs", "1"], port=port) as server:
        yield server


SERVERS: dict[str, Callable[[Path, int], AbstractContextManager[Server]]] = {
    "llama.cpp": llama_cpp,
    "vLLM": vllm,
}


@dataclass
class Arm:
    """An arm over a server. start: another server at the same place."""

    server: Server
    engine: EndpointEngine
    start: Callable[[], Server]
    most: int

    def works(self) -> None:
        """The next request is answered."""
        self.engine.wake("a")
        result = self.engine.decode("a", HELLO, Request(5, eos_ids=NO_END))
        assert result.finish_reason == "length" and result.counted and len(result.ids) == 5


@pytest.fixture(scope="module", params=SERVERS)
def arm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()

    most = 15_000 if request.param == "llama.cpp" else 900
    body = {"url": f"http://127.0.0.1:{port}/v1", "model": "target", "timeout_s": 120}
    with ExitStack() as servers:

        def start() -> Server:
            return servers.enter_context(SERVERS[request.param](folder, port))

        engine = EndpointEngine({"a": recipe(name="a", kind="endpoint", **body)})
        yield Arm(start(), engine, start, most)


def one_sentence(error: BaseException) -> str:
    words = str(error)
    assert "\n" not in words and "Traceback" not in words and "Error(" not in words
    return words


class Leaves(Exception):
    """What a caller raises who has heard enough."""


@dataclass
class Hears:
    """A streamer that calls `then` at its third piece of an answer."""

    then: Callable[[], None]
    pieces: int = -1

    def put(self, value: Any) -> None:
        self.pieces += 1
        if self.pieces == 3:
            self.then()

    def end(self) -> None:
        pass


def leave() -> None:
    raise Leaves


def test_a_prompt_that_does_not_fit(arm: Arm) -> None:
    with pytest.raises(DraftpickError, match="refused the request: HTTP 400") as raised:
        arm.engine.decode("a", LONG, Request(5))
    assert "context" in one_sentence(raised.value)
    assert not arm.engine.asleep
    arm.works()


def test_an_answer_that_fills_the_context(arm: Arm) -> None:
    """llama.cpp cuts the answer, vLLM refuses the request."""
    try:
        result = arm.engine.decode("a", HELLO, Request(10 * arm.most, eos_ids=NO_END))
        assert result.finish_reason == "length" and result.counted
    except DraftpickError as error:
        assert "HTTP 400 (max_tokens=" in one_sentence(error)
    arm.works()


def test_a_caller_that_leaves(arm: Arm) -> None:
    """The server stops, so that the next request has its place at once."""
    asked = Request(arm.most, eos_ids=NO_END)
    for _ in range(3):
        with pytest.raises(Leaves):
            arm.engine.decode("a", HELLO, asked, streamer=Hears(leave))
    arm.works()


def test_a_server_without_a_place(arm: Arm) -> None:
    """It makes the second request wait, longer than that would."""
    impatient = arm.engine.arms["a"].model_copy(update={"timeout_s": 0.3})
    second = EndpointEngine({"a": impatient})
    began = list[float]()
    with ThreadPoolExecutor(1) as pool:
        streamer = Hears(lambda: began.append(time.monotonic()))
        asked = Request(arm.most, eos_ids=NO_END)
        first = pool.submit(arm.engine.decode, "a", HELLO, asked, streamer=streamer)
        while not began and not first.done():
            time.sleep(0.01)
        with pytest.raises(ArmDown, match=r"not a byte in 0.3 s") as raised:
            second.decode("a", HELLO, Request(5))
        assert not first.done()
        one_sentence(raised.value)
        assert first.result().finish_reason == "length"
    arm.works()


def test_many_at_once(arm: Arm) -> None:
    """More than it has places for: each waits, and has its answer."""
    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(arm.engine.decode, "a", HELLO, Request(20, eos_ids=NO_END))
            for _ in range(12)
        ]
        assert {len(each.result().ids) for each in asked} == {20}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_ended_in_the_middle(arm: Arm, how: signal.Signals) -> None:
    """Then it is down, and once it is there again the next request is answered."""

    def kill() -> None:
        os.killpg(arm.server.process.pid, how)

    with pytest.raises(UpstreamBroke, match="in the middle of its answer; ask again") as raised:
        arm.engine.decode("a", HELLO, Request(arm.most, eos_ids=NO_END), streamer=Hears(kill))
    one_sentence(raised.value)
    arm.server.process.wait()
    arm.engine.wake("a")
    with pytest.raises(ArmDown, match="cannot be reached") as down:
        arm.engine.decode("a", HELLO, Request(5))
    one_sentence(down.value)
    arm.server = arm.start()
    arm.works()
