"""One address for several replicas: requests are handed on and answers streamed through.

A request whose answer had not started when its replica died goes to another one. What has started
cannot be taken back: such a stream ends with an error event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from decoders.common.wording import in_words

from .. import errors
from ..app import GONE, Gone, Settings, Streamed, sharing, watched
from ..errors import ApiError
from ..middleware import RequestLimits
from .counters import Counters, Snapshot
from .replicas import Replica, Replicas

MOST_DEATHS = 3  # of replicas over one request
LOOK_S = 0.05  # how often it is looked for a replica where there is none
CONNECT_S = 5.0
IDLE_S = 2.0  # for which a connection is kept; a replica closes its own after five
HEALTH_S = 1.0  # between two looks at every replica
TELL_S = 3.0  # in which a replica reports its figures, or is left out
OF_ONE_HOP = {  # headers
    b"connection", b"content-length", b"date", b"host", b"keep-alive", b"proxy-connection",
    b"server", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip


class Proxy:
    """The application. settings: the replicas' own."""

    def __init__(self, replicas: Replicas, settings: Settings) -> None:
        self._replicas, self._timeout_s = replicas, settings.timeout_s
        self._started = time.monotonic()
        self._client: httpx.AsyncClient | None = None
        self._watch: asyncio.Task[None] | None = None
        self._counters = Counters()
        self._asking: asyncio.Task[list[dict[str, Any]]] | None = None
        key = settings.api_key
        self._own = (
            {} if key is None else {b"authorization": b"Bearer " + key.get_secret_value().encode()}
        )
        methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        routes = [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/stats", self._stats),
            Route("/metrics", self._metrics),
            Route("/{path:path}", self._hand_on, methods=methods),
        ]
        app = Starlette(routes=routes)
        errors.mount(app)
        self._app: ASGIApp = RequestLimits(app, key, settings.max_body, settings.body_s)
        if settings.origins:
            self._app = CORSMiddleware(self._app, **sharing(settings.origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._client is None:  # in the loop that it is used in
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            limits = httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_S
            )
            self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
            self._watch = asyncio.create_task(self._look())
        await self._app(scope, receive, send)

    # -- what is handed on --------------------------------------------------------------------

    async def _hand_on(self, request: Request) -> Response:
        if self._replicas.draining:
            raise ApiError(
                503, "the server is shutting down; ask again elsewhere or later",
                code="shutting_down",
            )  # fmt: skip
        body = await request.body()
        try:
            async with watched(request) as here:
                return await here(self._answered(request, body))
        except Gone:
            return Response(status_code=GONE)

    async def _answered(self, request: Request, body: bytes) -> Response:
        """The first answer that a replica gives; another one's where it dies before, or is full."""
        full: Response | None = None
        tried: list[Replica] = []
        deaths = 0
        while True:
            replica = self._replicas.take(tried) if full else await self._some(tried)
            if replica is None:
                assert full is not None
                return full
            try:
                response = await self._asked(replica, request, body)
            except httpx.TransportError as error:
                if await self._dead(replica):
                    self._replicas.lose(replica, in_words(error))
                else:
                    await asyncio.sleep(LOOK_S)
                deaths += 1
                if deaths == MOST_DEATHS:
                    raise ApiError(
                        503, f"{deaths} replicas died over this request; ask for less", code="died"
                    ) from error
                continue
            if response.status_code != 429:
                return response
            full = response
            tried.append(replica)

    async def _some(self, but: list[Replica]) -> Replica:
        """A replica, once there is one."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while (found := self._replicas.take(but)) is None:
                    await asyncio.sleep(LOOK_S)
                return found
        except TimeoutError:
            raise ApiError(504, "no replica became ready in time", code="timeout") from None

    async def _asked(self, replica: Replica, request: Request, body: bytes) -> Response:
        """What a replica answers: a stream that has started, or the whole."""
        assert self._client is not None
        streams = False
        try:
            upstream = await self._client.send(
                self._client.build_request(
                    request.method,
                    f"{replica.url}{request.url.path}",
                    params=str(request.query_params),
                    headers=_handed_on(request),
                    content=body,
                ),
                stream=True,
            )
            headers = [(name.lower(), value) for name, value in upstream.headers.raw]
            response: Response
            if upstream.headers.get("content-type", "").startswith("text/event-stream"):
                end, parts = partial(self._end, replica, upstream), self._parts(replica, upstream)
                response = Streamed(end, parts, upstream.status_code)
                streams = True
            else:
                try:
                    content = b"".join([part async for part in upstream.aiter_raw()])
                finally:
                    await upstream.aclose()
                response = Response(content, upstream.status_code)
            measured = headers if request.method == "HEAD" else response.raw_headers
            size = [each for each in measured if each[0] == b"content-length"]
            kept = [each for each in headers if each[0] not in OF_ONE_HOP]
            response.raw_headers = kept + size
            return response
        finally:
            if not streams:
                self._replicas.give_back(replica)

    async def _parts(self, replica: Replica, upstream: httpx.Response) -> AsyncIterator[bytes]:
        """Of a stream; an error event is the last where its replica dies."""
        try:
            async for part in upstream.aiter_raw():
                yield part
        except httpx.TransportError as error:
            if await self._dead(replica):
                self._replicas.lose(replica, in_words(error))
            words = "the replica that wrote this answer died; ask again"
            lost = ApiError(503, words, code="died").to_json()
            yield f"\n\ndata: {json.dumps(lost)}\n\n".encode()

    async def _end(self, replica: Replica, upstream: httpx.Response) -> None:
        """A stream has ended, or its reader has disconnected."""
        self._replicas.give_back(replica)
        await upstream.aclose()

    # -- the replicas' health -----------------------------------------------------------------

    async def _look(self) -> None:
        """Notice those that died while nobody asked them."""
        while True:
            await asyncio.sleep(HEALTH_S)
            for replica in self._replicas.live:
                if await self._dead(replica):
                    self._replicas.lose(replica, "it accepts no connections")

    async def _dead(self, replica: Replica) -> bool:
        """Whether it takes no connection; one that takes its time to answer is busy."""
        host, _, port = replica.url.removeprefix("http://").rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            return False
        except OSError:
            return True
        writer.close()
        return False

    # -- figures of all replicas ------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if self._replicas.draining:
            return JSONResponse({"status": "shutting down"}, 503)
        if not self._replicas.live:
            return JSONResponse({"status": "no replica is ready"}, 503)
        return JSONResponse({"status": "ready"})

    async def _stats(self, request: Request) -> Response:
        each = await self._everywhere()
        own = {
            "uptime_s": time.monotonic() - self._started,
            "lost": self._replicas.lost_count,
            "replicas": each,
        }
        return JSONResponse(self._counters.stats() | own)

    async def _metrics(self, request: Request) -> Response:
        await self._everywhere()
        content, kind = self._counters.metrics()
        return Response(content, media_type=kind)

    async def _everywhere(self) -> list[dict[str, Any]]:
        """Bring the totals up to date; each replica's /stats, with its address. A request that
        asks while they are asked has the same answer: so no older figures follow newer ones."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        each = await asyncio.shield(self._asking)
        if self._counters.empty:
            raise ApiError(503, "no replica has reported yet; ask again in a moment")
        return each

    async def _ask_all(self) -> list[dict[str, Any]]:
        asked = self._replicas.live
        answers = await asyncio.gather(*map(self._told, asked))
        figures = {replica: each for replica, each in zip(asked, answers, strict=True) if each}
        self._counters.update(figures, self._replicas.live)
        return [
            {"url": replica.url, "answers": each is not None} | (each.stats if each else {})
            for replica, each in zip(asked, answers, strict=True)
        ]

    async def _told(self, replica: Replica) -> Snapshot | None:
        """None where it does not answer in time: the next request or look finds out why."""
        assert self._client is not None
        try:
            async with asyncio.timeout(TELL_S):
                stats, metrics = [
                    (await self._client.get(replica.url + path, headers=self._own))
                    .raise_for_status()
                    for path in ("/stats", "/metrics")
                ]  # fmt: skip
        except (TimeoutError, httpx.HTTPError):
            return None
        return Snapshot(stats.json(), metrics.text)


def _handed_on(request: Request) -> list[tuple[bytes, bytes]]:
    """The request's headers, and its client, so that clients take turns in a replica too."""
    kept = [
        (name, value)
        for name, value in request.headers.raw
        if name not in OF_ONE_HOP and name != b"x-forwarded-for"
    ]
    if request.client is None:
        return kept
    return [*kept, (b"x-forwarded-for", request.client.host.encode())]
