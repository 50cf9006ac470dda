"""The HTTP application: OpenAI's endpoints, and what an operator asks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import SecretStr
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from decoders.protocols import EncoderDecoder

from ..records import RouteChoice
from . import errors, page
from .answers import Answer, Answers, Round
from .errors import ApiError, as_api_error
from .metrics import Metrics
from .middleware import BODY_S, KEY, RequestLimits, user_of
from .parsing import AUTO, Limits, RequestParser
from .replies import ChatReply, Reply, TextReply
from .scheduler import DEFAULT, Scheduler
from .schemas import ChatBody, CompletionBody
from .spans import Spans, given_trace

T = TypeVar("T")
Work = TypeVar("Work", bound=Callable[..., Any])

STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # headers
GONE = 499  # the client closed the connection; nobody reads this


@dataclass(frozen=True)
class Settings:
    """api_key: None asks for none.
    max_body: bytes.
    timeout_s: for one request.
    body_s: until its body is there.
    origins: of other pages whose scripts may ask from a browser; "*" is any.
    isolate_by: who is kept apart from whom in earlier answers and in what is kept of prompts, as of
        `middleware.checked`.
    """

    limits: Limits = field(default_factory=Limits)
    api_key: SecretStr | None = None
    max_body: int = 2**21
    timeout_s: float = 600.0
    body_s: float = BODY_S
    origins: tuple[str, ...] = ()
    isolate_by: str = KEY


def make_app(
    scheduler: Scheduler, settings: Settings | None = None, spans: Spans | None = None
) -> FastAPI:
    """The application over a scheduler, whose routers share one engine. spans: sends each request
    as a span."""
    settings = Settings() if settings is None else settings
    app = FastAPI(
        title="draftpick",
        description="OpenAI's API; an arm for every query.",
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(
        RequestLimits, key=settings.api_key, most_bytes=settings.max_body, body_s=settings.body_s
    )
    if settings.origins:  # outside the guards: browsers ask for leave without a key
        app.add_middleware(CORSMiddleware, **sharing(settings.origins))
    errors.mount(app)
    service = Service(scheduler, settings, spans)
    app.state.service = service
    started = service.started

    page.mount(app)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        return await service.answer(ChatReply, body, request)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        return await service.answer(TextReply, body, request)

    @readable(app, "/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, started) for name in service.models]}

    @readable(app, "/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in service.models:
            raise ApiError(404, f"no model {name!r} here", "model", "model_not_found")
        return _model(name, started)

    @readable(app, "/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @readable(app, "/ready")
    async def ready() -> Response:
        if scheduler.draining or not scheduler.alive:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ready"})

    @readable(app, "/stats")
    async def stats() -> dict[str, Any]:
        return service.stats()

    @readable(app, "/metrics")
    async def metrics() -> Response:
        content, kind = service.metrics.exposition()
        return Response(content, media_type=kind)

    return app


def readable(app: FastAPI, path: str) -> Callable[[Work], Work]:
    """Registers what answers GET and HEAD at a path."""

    def register(work: Work) -> Work:
        app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)(work)
        # For the schema alone, whose operations need a route each: the one above answers.
        app.get(path)(work)
        return work

    return register


def sharing(origins: Sequence[str]) -> dict[str, Any]:
    """Options of CORSMiddleware: scripts of these origins may do what any client may."""
    headers = [
        f"x-draftpick-{each}"
        for each in ("arm", "propensity", "policy", "reason", "seed", "load-s")
    ]
    return {
        "allow_origins": list(origins),
        "allow_methods": ["GET", "HEAD", "POST"],
        "allow_headers": ["*"],
        "expose_headers": [*headers, "x-request-id", "retry-after"],
    }


class Service:
    """Answers requests through a scheduler."""

    def __init__(
        self, scheduler: Scheduler, settings: Settings, spans: Spans | None = None
    ) -> None:
        self._scheduler, self._timeout_s = scheduler, settings.timeout_s
        self._spans = spans
        self._limits, self._isolate_by = settings.limits, settings.isolate_by
        self._engine = engine = scheduler.routers[DEFAULT].engine
        self.started = int(time.time())
        policies = [name for name, each in scheduler.routers.items() if each.policy is not None]
        self._parser = RequestParser(engine, policies, settings.limits)
        self._tokenizer = copy.deepcopy(engine.tokenizer)  # of the event loop
        self._apart = isinstance(getattr(engine, "target", None), EncoderDecoder)
        self._fingerprint = getattr(engine, "system_fingerprint", None)
        self.metrics = Metrics(
            target=engine.target_name,
            policy=self._policy,
            arms=engine.arm_names,
            running=lambda: scheduler.running,
            waiting=lambda: scheduler.waiting,
            earlier=lambda: getattr(engine, "earlier", None),
            prefixes=getattr(engine, "prefixes", None),
        )

    def _policy(self) -> str | None:
        """The name of the policy that chooses where a request names none."""
        policy = self._scheduler.routers[DEFAULT].policy
        return None if policy is None else policy.name

    @property
    def models(self) -> list[str]:
        """Names that a request's `model` may have."""
        return [AUTO, *self._engine.arm_names]

    def stats(self) -> dict[str, Any]:
        """The content of `GET /stats`."""
        limits = {
            "most_tokens": self._limits.most_tokens,
            "temperature": self._limits.usual.temperature,
        }
        return self.metrics.stats() | {"limits": limits}

    def close(self) -> None:
        """Send the last spans, where any are sent."""
        if self._spans is not None:
            self._spans.close()

    async def answer(
        self, kind: type[Reply], body: ChatBody | CompletionBody, request: Request
    ) -> Response:
        """The response to a request; its answers end when its client goes. Raises ApiError alone:
        any other error would cost the connection."""
        trace, ended = given_trace(request.headers), None
        if self._spans is not None:
            trace, ended = self._spans.begin(kind.operation, body.model, request.headers)
        try:
            route = self._parser.route(body)
            user = user_of(request.scope, self._isolate_by)
            # whose turn in the queue it takes: an address's, because clients can make up names
            client = request.client.host if request.client else ""
            requests = await self._parser.requests(body, route, client, user, trace)
            answers = Answers(self._scheduler, requests, self.metrics, self._timeout_s)
        except Exception as error:
            self.metrics.ended("", "refused")
            raise as_api_error(error) from None
        parts = answers.all, self._fingerprint, self._tokenizer
        read = partial(self._parser.call_reader, body), self._apart
        reply = kind(body, requests, route, *parts, *read)
        handed_on = False

        async def end() -> None:
            answers.cancel()
            if ended is not None:
                ended(reply, answers)

        try:
            async with watched(request) as here:
                first = await here(answers.begun())
                if body.stream:  # from here on the response watches
                    streamed = Streamed(
                        end,
                        _events(reply, answers),
                        headers=STREAMED | _headers(reply, route, first),
                        media_type="text/event-stream",
                    )
                    handed_on = True
                    return streamed
                await here(answers.whole())
            headers = _headers(reply, route, first)  # of the arm that ended it
            if body.explain:
                headers |= _loaded(answers.all)
            return JSONResponse(reply.whole(), headers=headers)
        except Gone:
            return Response(status_code=GONE)
        except Exception as error:
            raise as_api_error(error) from None
        finally:
            if not handed_on:
                await end()


class Streamed(StreamingResponse):
    """A stream whose source is ended when the client goes, however early."""

    def __init__(self, end: Callable[[], Awaitable[None]], *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()


async def _events(reply: Reply, answers: Answers) -> AsyncIterator[str]:
    """Server-sent events of a stream; an error in the middle is the last of them."""
    try:
        async for answer, event in answers.events():
            chunks = reply.chunks(answer, event) if isinstance(event, Round) else reply.last(answer)
            for chunk in chunks:
                yield _event(chunk)
    except Exception as error:
        yield _event(as_api_error(error).to_json())
        return
    if reply.body.tells_usage:
        yield _event(reply.counts())
    yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _headers(reply: Reply, route: RouteChoice, answer: Answer) -> dict[str, str]:
    """Who answers and why, of the answer that begins first where there are several; by which seed
    each is drawn, where any is."""
    decision = answer.decision
    assert decision is not None
    seeds = {"x-draftpick-seed": ", ".join(map(str, reply.seeds))} if reply.seeds else {}
    return seeds | {
        "x-draftpick-arm": quote(decision.arm),  # names may be of any characters, headers not
        "x-draftpick-propensity": f"{decision.propensity:.6g}",
        "x-draftpick-policy": quote(route.policy or "none"),
        "x-draftpick-reason": route.reason_for(decision),
        "x-request-id": reply.request_id,
    }


def _loaded(answers: Sequence[Answer]) -> dict[str, str]:
    """How long the slowest of whole answers waited for drafters to be loaded, where any did."""
    waited = [each.result.result.load_s or 0.0 for each in answers if each.result is not None]
    return {"x-draftpick-load-s": f"{max(waited):.6g}"} if any(waited) else {}


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "draftpick"}


class Gone(Exception):
    """The client closed the connection before the response began."""


@contextlib.asynccontextmanager
async def watched(
    request: Request,
) -> AsyncIterator[Callable[[Coroutine[Any, Any, T]], Awaitable[T]]]:
    """Gives a function that awaits something as long as the client is there, and raises Gone where
    it leaves."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(left())

    async def here(work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Gone
            return task.result()
        finally:
            task.cancel()

    try:
        yield here
    finally:
        watch.cancel()
