"""One request to an OpenAI-compatible server, whose answer comes as server-sent events."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx
from httpx_sse import EventSource

from ..common.errors import DraftpickError, UpstreamRefused
from ..common.secrets import masked, secret
from ..common.text import from_json
from ..common.wording import in_words
from .fields import fields_of
from .speculated import Speculated, speculated

if TYPE_CHECKING:
    from pydantic import SecretStr

    from .recipe import EndpointRecipe

BUSY = (408, 429)
CALLERS = (400, 413, 422)  # what a server says of the request itself
SHOWN = 300  # letters of a server's complaint
MOST_TOKENS = 10_000_000  # of a prompt or an answer; a server that counts more is mistaken
MOST_READ = 10_000_000  # bytes of an answer that does not come as events


class Unavailable(Exception):
    """The server is dead, overloaded or broke off. pause_s: what it asked callers to wait."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Event:
    """What one event of the stream brought; None where it did not contain it.

    stopped_by: the stop string that ended the answer, where the server names it (vLLM, SGLang).
    fields: as of `fields.fields_of`.
    logprobs: lists of tokens, by what they are the tokens of.
    prompt_tokens, completion_tokens: as the server counts them.
    speculated: what it tells of its drafts so far.
    """

    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    stopped_by: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    speculated: Speculated | None = None


def client() -> httpx.Client:
    """Connections to endpoints, kept between requests; proxies and certificates are the
    environment's. Redirects are not followed: a key stays with the server that it is for.

    Raises DraftpickError for a proxy or certificates that cannot be used.
    """
    try:
        return httpx.Client(
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        raise DraftpickError(
            f"endpoints cannot be asked: {in_words(error)}; see to HTTP_PROXY, HTTPS_PROXY, "
            "ALL_PROXY and SSL_CERT_FILE in the environment"
        ) from error


def completions(
    connections: httpx.Client, arm: EndpointRecipe, body: dict[str, Any]
) -> Generator[Event, None, None]:
    """Events of one answer, as they come; closing it stops the server. One that does not stream
    gives its whole answer in one event.

    body: of the request, without what the recipe says.

    Raises Unavailable where the server does not answer, is overloaded, fails, or ends before the
    answer does, UpstreamRefused where it refuses every request, redirects or a key is missing,
    and DraftpickError where it refuses this request.
    """
    ended = False
    content = {**arm.extra_body, **body, "model": arm.model}
    with asked(connections, arm, "POST", "/chat/completions", content) as (answer, kind):
        if kind == "text/event-stream":
            for event in EventSource(answer).iter_sse():
                if event.data.strip() == "[DONE]":
                    ended = True
                    break
                if event.data.strip():
                    found = _event(_record(arm, event.data))
                    ended = ended or found.finish_reason is not None
                    yield found
        elif kind == "application/json":
            yield _event(record_of(arm, answer), of="message")
            ended = True
        else:
            raise UpstreamRefused(
                arm.name,
                f"the endpoint of arm {arm.name!r} answered with {kind or 'content of no type'}, "
                "not with an answer; check the arm's `url`",
            )
    if not ended:
        raise Unavailable("its stream ended before the answer did")


@contextmanager
def asked(
    connections: httpx.Client,
    arm: EndpointRecipe,
    method: str,
    path: str,
    content: Mapping[str, Any] | None = None,
) -> Iterator[tuple[httpx.Response, str]]:
    """A response of status 200, not read yet, and its type. path: below the arm's `url`.

    Raises as `completions`.
    """
    url, key = httpx.URL(arm.url), _key(arm)
    bearer = b"" if key is None else b"Bearer " + key.get_secret_value().encode()
    with (
        _explained(arm),
        connections.stream(
            method,
            url.copy_with(path=url.path.rstrip("/") + path),
            json=content,
            headers={b"Authorization": bearer} if bearer else {},
            timeout=arm.timeout_s,
        ) as answer,
    ):
        _require_success(arm, answer)
        yield answer, answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def text_of(answer: httpx.Response, most: int = MOST_READ) -> str:
    """The body as UTF-8, cut after `most` bytes."""
    held = b""
    for part in answer.iter_bytes():
        held += part
        if len(held) >= most:
            break
    return held[:most].decode("utf-8", "replace")


def record_of(arm: EndpointRecipe, answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of a whole response. Raises as `completions`."""
    return _record(arm, text_of(answer))


def _key(arm: EndpointRecipe) -> SecretStr | None:
    if arm.api_key_env is None:
        return None
    key = os.environ.get(arm.api_key_env)
    if not key:
        raise UpstreamRefused(
            arm.name,
            f"the arm {arm.name!r} takes its key from {arm.api_key_env}, which is not set; export "
            "it, or leave `api_key_env` out",
        )
    try:
        return secret(key, arm.api_key_env)
    except DraftpickError as error:
        raise UpstreamRefused(arm.name, f"the arm {arm.name!r}: {error}") from None


@contextmanager
def _explained(arm: EndpointRecipe) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
        raise Unavailable(f"cannot be reached: {in_words(error)}") from error
    except httpx.TimeoutException as error:
        raise Unavailable(f"not a byte in {arm.timeout_s:g} s") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"broke off: {in_words(error)}") from error
    except httpx.InvalidURL as error:
        raise UpstreamRefused(
            arm.name, f"the `url` of arm {arm.name!r} cannot be asked: {in_words(error)}"
        ) from error


def _require_success(arm: EndpointRecipe, answer: httpx.Response) -> None:
    status = answer.status_code
    if status == 200:
        return
    if answer.has_redirect_location:
        where = answer.url.join(answer.headers["Location"])
        raise UpstreamRefused(
            arm.name,
            f"the endpoint of arm {arm.name!r} redirects to {masked(str(where))}, which is not "
            "followed; if that server is meant, write its address as the arm's `url`",
        )
    try:
        complaint = _complaint(text_of(answer, 10_000))
    except httpx.HTTPError:
        complaint = ""
    _refuse(arm, f"HTTP {status}{complaint}", status, answer.headers.get("Retry-After", ""))


def _refuse(arm: EndpointRecipe, words: str, status: int, retry_after: str = "") -> None:
    """Raise what a status of HTTP means."""
    if status in BUSY or status >= 500:
        raise Unavailable(words, pause_s(retry_after, time.time()))
    named = f"the endpoint of arm {arm.name!r}"
    if status in CALLERS:
        raise DraftpickError(f"{named} refused the request: {words}")
    raise UpstreamRefused(
        arm.name,
        f"{named} refused the request: {words}; check the arm's key, `url` and `model`",
    )


def _complaint(body: str) -> str:
    try:
        found = from_json(body)
        inner = found.get("error", found)
        body = str(inner["message"] if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError, KeyError):
        pass
    body = masked(" ".join(body.split()))[:SHOWN]
    return f" ({body})" if body else ""


def pause_s(asked: str, now: float) -> float:
    """The header Retry-After in seconds from now; 0 where it is neither a number nor a date.

    now: seconds since 1970.
    """
    asked = asked.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?", asked):
        return float(asked)
    try:
        until = parsedate_to_datetime(asked)
    except ValueError:
        return 0.0
    if until.tzinfo is None:  # HTTP's dates are in UTC, with or without a time zone
        until = until.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - now)


def _record(arm: EndpointRecipe, content: str) -> dict[str, Any]:
    """The JSON object of an event or of a whole answer. An error that it holds is raised by the
    status of HTTP that it names, and otherwise as one of the server's own."""
    try:
        record = from_json(content)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise Unavailable(f"sent what is no event: {content.strip()[:80]!r}")
    if error := record.get("error"):
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        _refuse(arm, f"it sent an error{_complaint(content)}", status)
    return record


def _event(record: dict[str, Any], of: str = "delta") -> Event:
    """of: where the text lies in a choice, in a `delta` of a stream or a whole `message`."""
    try:
        choice, usage = (record.get("choices") or [{}])[0], record.get("usage") or {}
        message, scored = choice.get(of) or {}, choice.get("logprobs") or {}
        text, fields = message.get("content") or "", fields_of(message)
        logprobs = {name: each for name, each in scored.items() if isinstance(each, list)}
        reason, stopped_by = choice.get("finish_reason"), choice.get("stop_reason")
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        drafts = speculated(record, choice)
        if not isinstance(text, str):
            raise TypeError("content is not text")
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise Unavailable(f"sent what is no event: {json.dumps(record)[:80]!r}") from error
    return Event(
        text,
        fields,
        logprobs,
        reason if isinstance(reason, str) else None,
        stopped_by if isinstance(stopped_by, str) else None,
        _counted(read),
        _counted(written),
        drafts,
    )


def _counted(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None
