"""A fake OpenAI-compatible server in a thread: it streams words, slowly on some prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Clock:
    """A clock that stands still; `now` sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def upper_words(prompt: str) -> list[str]:
    """Answers with the prompt's words in capitals, each with the space before it."""
    return [" " * (index > 0) + word for index, word in enumerate(prompt.upper().split())]


@dataclass
class FakeEndpoint:
    """A server that answers a prompt by its words in capitals, unless told otherwise.

    step_s: seconds before each event, by the prompt's text.
    named: the field of its words, so that they may be thoughts.
    status: what it answers with in place of 200, with `headers`.
    refuses: fields that it says 400 to.
    dies_after: requests after which it says 503.
    cut_after: events after which it breaks off.
    counted: completion tokens that it claims; None for as many as events.
    counts: whether it says how many tokens there were.
    choices: of its events, in place of those for words.
    more: fields beside `usage`.
    replies: its status and whole answer to a request's body, in place of a stream.
    raw: what it sends with its status and `headers` in place of a stream of its own.
    last_word: the stop string that it says has ended its answer.
    metrics: its page of metrics, with `metrics_status`; None has none.
    connections: that it has got.
    asked: bodies of requests, and `heads` their headers, `paths` where they went.
    left: requests whose client went before the end.
    """

    step_s: Callable[[str], float] = lambda prompt: 0.0
    words: Callable[[str], list[str]] = upper_words
    named: str = "content"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()
    dies_after: int | None = None
    cut_after: int | None = None
    counted: int | None = None
    counts: bool = True
    choices: list[dict[str, Any]] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    replies: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] | None = None
    raw: bytes | None = None
    last_word: str | None = None
    metrics: str | None = None
    metrics_status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    heads: list[Message] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    left: int = 0
    connections: int = 0
    port: int = 0
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Listens, on the same port as before where it has listened already."""
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@contextmanager
def listening(*endpoints: FakeEndpoint) -> Iterator[None]:
    """Runs servers for as long as the block lasts."""
    for endpoint in endpoints:
        endpoint.start()
    try:
        yield
    finally:
        for endpoint in endpoints:
            endpoint.stop()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeEndpoint
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or what follows the headers waits

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.fake.connections += 1

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.fake.metrics is not None:
            kind = {"Content-Type": "text/plain; version=0.0.4"}
            self._say(self.fake.metrics_status, self.fake.metrics.encode(), kind)
        else:
            content = json.dumps({"data": [{"id": "fake"}]}).encode()
            status = 200 if self.path.endswith("/models") else 404
            self._say(status, content, {"Content-Type": "application/json"})

    def do_POST(self) -> None:
        try:
            self._answer(self.fake)
        except (BrokenPipeError, ConnectionResetError):  # the client has had enough
            self.fake.left += 1
            self.close_connection = True

    def _answer(self, fake: FakeEndpoint) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.asked.append(body)
        fake.heads.append(self.headers)
        fake.paths.append(self.path)
        if fake.raw is not None:
            self._begin(fake.status, fake.headers)
            self.wfile.write(fake.raw)
            return
        if fake.replies is not None:
            status, said = fake.replies(body)
            self._say(status, json.dumps(said).encode(), {"Content-Type": "application/json"})
            return
        dead = fake.dies_after is not None and len(fake.asked) > fake.dies_after
        unknown = ", ".join(name for name in fake.refuses if name in body)
        status = 400 if unknown else 503 if dead else fake.status
        if self.path.partition("?")[0] != "/v1/chat/completions":
            status = 404
        if status != 200:
            words = f"unsupported: {unknown}" if unknown else f"told to say {status}"
            content = json.dumps({"error": {"message": words}}).encode()
            self._say(status, content, fake.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        prompt = body["messages"][-1]["content"]
        choices, count = self._choices(fake, prompt, body)
        for number, choice in enumerate(choices):
            if number == fake.cut_after:
                self.close_connection = True
                return
            self._event({"choices": [choice]})
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": count}
        if fake.counts:
            self._event({"choices": [], "usage": usage, **fake.more})
        self._send(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _choices(
        self, fake: FakeEndpoint, prompt: str, body: dict[str, Any]
    ) -> tuple[Iterator[dict[str, Any]], int | None]:
        """The events' choices, and how many tokens they are said to have."""
        if fake.choices is not None:
            return iter(fake.choices), fake.counted
        words = fake.words(prompt)
        shown = words[: body.get("max_tokens", body.get("max_completion_tokens"))]

        def events() -> Iterator[dict[str, Any]]:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for word in shown:
                time.sleep(fake.step_s(prompt))
                yield {"delta": {fake.named: word}, "finish_reason": None}
            reason = "length" if len(shown) < len(words) else "stop"
            yield {"delta": {}, "finish_reason": reason, "stop_reason": fake.last_word}

        return events(), len(shown) if fake.counted is None else fake.counted

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        """Sends a head after whose content the connection ends."""
        self.close_connection = True
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _say(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _event(self, content: dict[str, Any]) -> None:
        self._send(f"data: {json.dumps(content)}\n\n".encode())

    def _send(self, content: bytes) -> None:
        """Sends a part of a stream."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
        self.wfile.flush()
