"""A small OpenAI-compatible server in a thread: streams words, slowly on some prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


def upper_words(prompt: str) -> list[str]:
    """The answer: the prompt's words in capitals, each with the space before it."""
    return [" " * (index > 0) + word for index, word in enumerate(prompt.upper().split())]


@dataclass
class FakeEndpoint:
    """step_s: seconds before each event, by the prompt's text.
    status: what it answers with in place of 200, with `headers`.
    refuses: fields that it says 400 to.
    dies_after: requests after which it says 503.
    cut_after: events after which it breaks off.
    counted: completion tokens that it claims; None for as many as events.
    counts: whether it says how many tokens there were.
    choices: of its events, in place of those for words.
    more: fields beside `usage`.
    raw: what it sends with its status and `headers` in place of a stream of its own.
    metrics: its page of metrics, with `metrics_status`; None has none.
    asked: bodies of requests, and `keys` their Authorization, `paths` where they went.
    left: requests whose client went before the end.
    """

    step_s: Callable[[str], float] = lambda prompt: 0.0
    words: Callable[[str], list[str]] = upper_words
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()
    dies_after: int | None = None
    cut_after: int | None = None
    counted: int | None = None
    counts: bool = True
    choices: list[dict[str, Any]] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    raw: bytes | None = None
    last_word: str | None = None
    metrics: str | None = None
    metrics_status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    left: int = 0
    port: int = 0
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Listen, on the same port as before where it has listened already."""
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

    def do_GET(self) -> None:
        said, found = json.dumps({"data": [{"id": "fake"}]}).encode(), self.path.endswith("/models")
        kind, status = "application/json", 200 if found else 404
        if self.path == "/metrics" and self.fake.metrics is not None:
            said, kind = self.fake.metrics.encode(), "text/plain; version=0.0.4"
            status = self.fake.metrics_status
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_POST(self) -> None:
        try:
            self._answer(self.fake)
        except (BrokenPipeError, ConnectionResetError):  # the client has had enough
            self.fake.left += 1
            self.close_connection = True

    def _answer(self, fake: FakeEndpoint) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.asked.append(body)
        fake.keys.append(self.headers.get("Authorization"))
        fake.paths.append(self.path)
        if fake.raw is not None:
            self.send_response(fake.status)
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(fake.raw)
            return
        dead = fake.dies_after is not None and len(fake.asked) > fake.dies_after
        status = 503 if dead else fake.status
        unknown = [name for name in fake.refuses if name in body]
        if unknown:
            status = 400
        asked_path = self.path.partition("?")[0]
        if asked_path != "/v1/chat/completions" or status != 200:
            words = f"unsupported: {', '.join(unknown)}" if unknown else f"told to say {status}"
            said = json.dumps({"error": {"message": words}}).encode()
            self.send_response(status if asked_path == "/v1/chat/completions" else 404)
            for name, value in fake.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        prompt = body["messages"][-1]["content"]
        if fake.choices is not None:
            for number, choice in enumerate(fake.choices):
                if number == fake.cut_after:
                    return
                self._event({"choices": [choice]})
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": fake.counted}
            if fake.counts:
                self._event({"choices": [], "usage": usage, **fake.more})
            self.wfile.write(b"data: [DONE]\n\n")
            return
        words = fake.words(prompt)
        told = words[: body.get("max_tokens", body.get("max_completion_tokens"))]
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number, word in enumerate(told):
            if number == fake.cut_after:
                return
            time.sleep(fake.step_s(prompt))
            self._event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
        reason = "length" if len(told) < len(words) else "stop"
        end = {"delta": {}, "finish_reason": reason, "stop_reason": fake.last_word}
        self._event({"choices": [end]})
        count = len(told) if fake.counted is None else fake.counted
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": count}
        if fake.counts:
            self._event({"choices": [], "usage": usage, **fake.more})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()
