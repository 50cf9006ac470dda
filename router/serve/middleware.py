"""Checks before a request is read: the key, the size of the body and the time it takes."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re

from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoders.common.errors import DraftpickError

from .errors import ApiError

KEY, NOBODY = "key", "none"  # by the API key; not at all


def checked(isolate_by: str) -> str:
    """`key`, `none` or a header's name, in lower case; raises DraftpickError for what is no name of
    a header."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", isolate_by):
        raise DraftpickError(
            f"--isolate-by is key, none or the name of a header, such as X-User, not {isolate_by!r}"
        )
    return isolate_by.lower()


def user_of(scope: Scope, isolate_by: str) -> str | None:
    """Who asks, as hexadecimal digits that do not tell the key; None where the header is missing,
    so that nothing is drafted from or reused, nor kept.

    isolate_by: as of `checked`. Requests without a key count as those of one user.
    """
    if isolate_by == NOBODY:
        return ""
    shown: bytes | None
    if isolate_by == KEY:
        shown = bearer(scope) or b""
    else:
        named = isolate_by.encode("latin-1")
        given = [value for name, value in scope["headers"] if name.lower() == named]
        shown = b"\n".join(given) if given else None
    return None if shown is None else _digest(shown)


def _digest(shown: bytes) -> str:
    return hashlib.sha256(shown).hexdigest()[:32]


NAMELESS = (None, "", _digest(b""))  # users that anybody may be


BODY_S = 60.0  # in which a request's body has to arrive
NEED_KEY = ("/v1/", "/stats", "/metrics")  # path prefixes


class RequestLimits:
    """ASGI middleware.

    key: None if no key is needed.
    most_bytes: longest body.
    body_s: seconds in which the body has to arrive.
    """

    def __init__(
        self, app: ASGIApp, key: SecretStr | None, most_bytes: int, body_s: float = BODY_S
    ) -> None:
        self._app, self._key, self._most, self._body_s = app, key, most_bytes, body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._check_key(scope)
            async with asyncio.timeout(self._body_s):
                body = await self._body(scope, receive)
        except TimeoutError:
            words = f"the body did not come within {self._body_s:g} s"
            return await ApiError(408, words, code="timeout").response()(scope, receive, send)
        except ApiError as error:
            return await error.response()(scope, receive, send)
        held: list[Message] = [body]

        async def again() -> Message:
            return held.pop() if held else await receive()

        await self._app(scope, again, send)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or not scope["path"].startswith(NEED_KEY):
            return
        given = bearer(scope)
        if given is None or not hmac.compare_digest(given, self._key.get_secret_value().encode()):
            words = "a valid key is needed: send it as `Authorization: Bearer KEY`"
            raise ApiError(401, words, code="invalid_api_key")

    async def _body(self, scope: Scope, receive: Receive) -> Message:
        """The whole body as one message, or that the client has gone."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self._most:
            raise self._too_long()
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_long()
            if not message.get("more_body", False):
                return {"type": "http.request", "body": body, "more_body": False}

    def _too_long(self) -> ApiError:
        return ApiError(413, f"the body is longer than the {self._most} bytes allowed here")


def bearer(scope: Scope) -> bytes | None:
    """The key that a request shows; None where it shows none."""
    shown: bytes = dict(scope["headers"]).get(b"authorization", b"")
    kind, _, key = shown.partition(b" ")
    return key.strip() if kind.lower() == b"bearer" and key.strip() else None
