"""One request to an OpenAI-compatible server, whose answer comes as server-sent events."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from io import IncrementalNewlineDecoder
from itertools import islice
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from ..common.errors import DraftpickError, UpstreamRefused
from ..common.secrets import masked, secret
from ..common.text import from_json, from_server
from ..common.wording import in_words
from .fields import fields_of
from .servers import Speculated, content_of, end_of, speculated, stop_of

if TYPE_CHECKING:
    from .recipe import EndpointRecipe

BUSY = (408, 429)
CALLERS = (400, 413, 422)  # what a server says of the request itself
END_S = 0.05  # that the end of a stream is waited for
MOST_AFTER = 16  # events after the last one
SHOWN = 300  # letters of a server's complaint
MOST_TOKENS = 10_000_000  # of a prompt or an answer; a server that counts more is mistaken
MOST_READ = 10_000_000  # bytes of an answer that does not come as events


class Refused(DraftpickError):
    """A refusal of this request. content: the server's words, as many as are read."""

    def __init__(self, words: str, content: str) -> None:
        super().__init__(words)
        self.content = content


class Unavailable(Exception):
    """The server is dead, overloaded or broke off. pause_s: what it asked callers to wait."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Event:
    """The content of one event of the stream; None where it did not contain it.

    fields: as of `fields.fields_of`, and what the model thinks.
    finish_reason: by OpenAI's word.
    pending: a reason was given that is none yet.
    stopped_by: the stop string that ended the answer, where the server names it.
    logprobs: lists of tokens, by what they are the tokens of.
    prompt_tokens, completion_tokens: as the server counts them.
    speculated: what it tells of its drafts so far.
    """

    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    pending: bool = False
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
    connections: httpx.Client,
    arm: EndpointRecipe,
    body: dict[str, Any],
    trace: Mapping[str, str] | None = None,
) -> Generator[Event, None, None]:
    """Events of one answer, as they come; closing it stops the server. One that does not stream
    gives its whole answer in one event.

    body: of the request, without what the recipe says. trace: as of `records.Request`.

    Raises Unavailable where the server does not answer, is overloaded, fails, sends no answer, or
    ends before the answer does, UpstreamRefused where it refuses every request, redirects or a key
    is missing, and Refused where it refuses this request.
    """
    content = {**arm.extra_body, **body, "model": arm.model}
    ended, pending, chosen = None, False, False
    with ExitStack() as open_:
        answer, kind = open_.enter_context(
            asked(connections, arm, "POST", "/chat/completions", content, trace)
        )
        if kind == "text/event-stream":
            events = data_of(answer.iter_text())
            done = False
            for event in events:
                if event.strip() == "[DONE]":
                    done = True
                    break
                if event.strip():
                    record = _record(arm, event)
                    found, chosen = _event(record), chosen or bool(record.get("choices"))
                    ended, pending = ended or found.finish_reason, pending or found.pending
                    yield found
            if done:
                _read_out(answer, events, open_.pop_all())
        elif kind == "application/json":
            record = record_of(arm, answer)
            found, chosen = _event(record, of="message"), bool(record.get("choices"))
            done, ended, pending = True, found.finish_reason, found.pending
            yield found
        else:
            raise UpstreamRefused(
                arm.name,
                f"the endpoint of arm {arm.name!r} answered with {kind or 'content of no type'}, "
                "not with an answer; check the arm's `url`",
            )
    if ended is None and (pending or not done):
        raise Unavailable("its stream ended before the answer did")
    if not chosen:
        raise Unavailable("sent no answer, as there are no `choices`; check the arm's `url`")


def data_of(parts: Iterable[str]) -> Iterator[str]:
    """The data of each server-sent event of a stream that comes in parts, read as HTML's standard
    has them. One that is not ended is none."""
    held: list[str] = []
    for line in _lines(parts):
        name, _, value = line.partition(":")
        if name == "data":
            held.append(value.removeprefix(" "))
        elif not line and held:
            yield "\n".join(held)
            held = []


def _lines(parts: Iterable[str]) -> Iterator[str]:
    r"""Lines end with \n, \r\n or \r alone; `str.splitlines` knows more ends."""
    newlines = IncrementalNewlineDecoder(None, translate=True)
    held: list[str] = []
    for part in parts:
        first, *more = newlines.decode(part).split("\n")
        held.append(first)
        for each in more:
            yield "".join(held)
            held = [each]
    if newlines.decode("", final=True):  # it came to the last \r
        yield "".join(held)


def _read_out(answer: httpx.Response, events: Iterator[str], open_: ExitStack) -> None:
    """Read what follows an answer's last event, so that its connection can be used again.

    It is waited for shortly; a server that is slow to end its content is read on in a thread.
    """

    def read() -> None:
        with suppress(Unavailable), open_:
            for _ in islice(events, MOST_AFTER):
                pass

    if "Content-Length" not in answer.headers and "Transfer-Encoding" not in answer.headers:
        open_.close()  # its content ends with the connection
        return
    thread = Thread(target=read, daemon=True)
    thread.start()
    thread.join(END_S)


@contextmanager
def asked(
    connections: httpx.Client,
    arm: EndpointRecipe,
    method: str,
    path: str,
    content: Mapping[str, Any] | None = None,
    trace: Mapping[str, str] | None = None,
) -> Iterator[tuple[httpx.Response, str]]:
    """A response of status 200, not read yet, and its type. path: below the arm's `url`.

    Raises as `completions`.
    """
    url = urlsplit(arm.url)
    headers = {name.encode(): value.encode() for name, value in (trace or {}).items()}
    with (
        _explained(arm),
        connections.stream(
            method,
            url._replace(path=url.path.rstrip("/") + path).geturl(),
            json=content,
            headers=headers | authorization(arm),
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


def authorization(arm: EndpointRecipe) -> dict[bytes, bytes]:
    """The header with the key that its requests take, if any. Raises UpstreamRefused where it is
    missing."""
    if arm.api_key_env is None:
        return {}
    key = os.environ.get(arm.api_key_env)
    if not key:
        raise UpstreamRefused(
            arm.name,
            f"the arm {arm.name!r} takes its key from {arm.api_key_env}, which is not set; export "
            "it, or leave `api_key_env` out",
        )
    try:
        found = secret(key, arm.api_key_env)
    except DraftpickError as error:
        raise UpstreamRefused(arm.name, f"the arm {arm.name!r}: {error}") from None
    return {b"Authorization": b"Bearer " + found.get_secret_value().encode()}


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
        content = text_of(answer, 10_000)
    except httpx.HTTPError:
        content = ""
    retry_after = answer.headers.get("Retry-After", "")
    _refuse(arm, f"HTTP {status}{_complaint(content)}", status, content, retry_after)


def _refuse(
    arm: EndpointRecipe, words: str, status: int, content: str, retry_after: str = ""
) -> None:
    """Raise what a status of HTTP means."""
    if status in BUSY or status >= 500:
        raise Unavailable(words, pause_s(retry_after, time.time()))
    named = f"the endpoint of arm {arm.name!r}"
    if status in CALLERS:
        raise Refused(f"{named} refused the request: {words}", content)
    raise UpstreamRefused(
        arm.name, f"{named} refused the request: {words}; check the arm's key, `url` and `model`"
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
        record = from_server(content)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise Unavailable(f"sent what is no event: {content.strip()[:80]!r}")
    if error := record.get("error"):
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        _refuse(arm, f"it sent an error{_complaint(content)}", status, content)
    return record


def _event(record: dict[str, Any], of: str = "delta") -> Event:
    """of: where the text lies in a choice, in a `delta` of a stream or a whole `message`."""
    try:
        choice, usage = (record.get("choices") or [{}])[0], record.get("usage") or {}
        message, scored = choice.get(of) or {}, choice.get("logprobs") or {}
        text, thoughts = content_of(message)
        fields = thoughts | fields_of(message)
        logprobs = {name: each for name, each in scored.items() if isinstance(each, list)}
        (reason, pending), stopped_by = end_of(choice), stop_of(choice)
        read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        drafts = speculated(record, choice)
    except ValueError as error:  # of a reason
        raise Unavailable(str(error)) from error
    except (AttributeError, TypeError, IndexError, KeyError) as error:
        raise Unavailable(f"sent what is no event: {json.dumps(record)[:80]!r}") from error
    counts = _counted(read), _counted(written)
    return Event(text, fields, logprobs, reason, pending, stopped_by, *counts, drafts)


def _counted(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None
