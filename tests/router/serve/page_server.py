"""A server with scripted answers, of the shape that the page expects of `draftpick serve`."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from router.serve.page import mount

ARMS = ("autoregressive", "max-gram", "draft-general", "exit-2", "recurrent", "hybrid")
SCORES = {
    "hybrid": 2.21, "max-gram": 2.02, "recurrent": 1.87, "draft-general": 1.41, "exit-2": 1.2,
    "autoregressive": 1.0,
}  # fmt: skip
STATS = {
    "target": "toy-135m", "policy": "guarded", "limits": {"most_tokens": 1024, "temperature": 0.0},
}  # fmt: skip

Round = tuple[int, list[tuple[str, str]]]  # tokens drafted, and (text, by) of those written
ROUNDS: list[Round] = [
    (0, [("Leaves", "target")]),
    (4, [(" turn", "draft"), (" red", "draft"), (" when", "target")]),
    (3, [(" the", "draft"), (" green", "draft"), (" goes", "draft"), (".", "bonus")]),
]


@dataclass
class PageServer:
    """key: what every call but the page's has to show. busy: seconds of the Retry-After of a 429.
    pause_s: between two rounds, of plain decoding three times as long. asked: the bodies that
    came. left: set when a client leaves before its answer has ended.
    """

    rounds: list[Round] = field(default_factory=lambda: list(ROUNDS))
    stats: dict[str, Any] = field(default_factory=lambda: dict(STATS))
    key: str | None = None
    busy: int | None = None
    others: int = 0  # requests that run beside
    spelled: dict[str, str] = field(default_factory=dict)  # a token's text, where it is another
    broken_after: int | None = None  # rounds, then the connection ends
    pause_s: float = 0.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        config = uvicorn.Config(
            self._app(), port=self.port, log_config=None, timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    def _app(self) -> FastAPI:
        app = FastAPI()
        mount(app)

        @app.middleware("http")
        async def guard(request: Request, proceed: Any) -> Response:
            told = request.headers.get("Authorization")
            private = request.url.path.startswith(("/v1", "/stats"))
            if private and self.key is not None and told != f"Bearer {self.key}":
                return refused("the API key is missing or wrong", 401)
            answer: Response = await proceed(request)
            return answer

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"data": [{"id": name} for name in ("auto", *ARMS)]}

        @app.get("/stats")
        async def stats() -> dict[str, Any]:
            return self.stats

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.json()
            self.asked.append(body)
            if self.busy is not None:
                headers = {"Retry-After": str(self.busy)}
                return refused("100 requests are waiting; try again later", 429, headers)
            return StreamingResponse(self._stream(body), media_type="text/event-stream")

        return app

    def _told(self, text: str, by: str) -> dict[str, Any]:
        return {"id": 7, "text": self.spelled.get(text, text), "by": by}

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        whole = False
        try:
            async for event in self._events(body):
                yield f"data: {event}\n\n"
            whole = True
        finally:
            if not whole:
                self.left.set()

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        routed = body["model"] == "auto"
        arm = "hybrid" if routed else body["model"]
        rounds, pause_s = self.rounds, self.pause_s
        if arm == "autoregressive":
            rounds = [(0, [(text, "target")]) for _, tokens in rounds for text, _ in tokens]
            pause_s *= 1.5
        chosen = {
            "arm": arm, "propensity": 0.93 if routed else 1.0, "policy": "guarded",
            "scores": SCORES if routed else {}, "running": self.others,
        }  # fmt: skip
        yield chunk({"role": "assistant", "content": ""}, draftpick=chosen)
        started = time.perf_counter()
        for number, (drafted, tokens) in enumerate(rounds):
            if number == self.broken_after:
                return
            await asyncio.sleep(pause_s)
            written = {
                "tokens": [self._told(text, by) for text, by in tokens],
                "drafted": drafted,
                "elapsed_s": time.perf_counter() - started,
            }
            yield chunk({"content": "".join(text for text, _ in tokens)}, draftpick=written)
        by = [one for _, tokens in rounds for _, one in tokens]
        drafts = sum(n > 0 for n, _ in rounds)
        drafted, accepted = sum(n for n, _ in rounds), by.count("draft")
        metrics = {
            "num_drafts": drafts,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        }
        ended = {"tokens": [], "drafted": 0, "elapsed_s": time.perf_counter() - started}
        yield chunk({}, finish="stop", draftpick=ended)
        yield json.dumps({
            "choices": [], "usage": {"completion_tokens": len(by)},
            "metrics": {"speculative_decoding": metrics},
        })  # fmt: skip
        yield "[DONE]"


def chunk(delta: dict[str, str], finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def refused(message: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status, headers)
