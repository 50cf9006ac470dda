"""One streamed request to an OpenAI-compatible server, by the standard library alone.

A request is one POST whose answer comes as server-sent events, which `urllib` reads line by line as
they arrive; proxies and certificates are the environment's. Nothing more is needed, so draftpick
does not depend on an HTTP package.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ..common.errors import DraftpickError, UpstreamRefused

if TYPE_CHECKING:
    from ..arms.endpoint import EndpointRecipe

BUSY = (408, 429)
CALLERS = (400, 413, 422)  # what a server says of the request itself
SHOWN = 300  # letters of a server's complaint


class Unavailable(Exception):
    """The server is dead, overloaded or broke off. pause_s: what it asked callers to wait."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Event:
    """What one event of the stream brought; None where it did not contain it.

    stopped_by: the stop string that ended the answer, where the server names it (vLLM, SGLang).
    prompt_tokens, completion_tokens: as the server counts them.
    """

    text: str = ""
    finish_reason: str | None = None
    stopped_by: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


def completions(arm: EndpointRecipe, body: dict[str, Any]) -> Generator[Event, None, None]:
    """Events of one answer, as they come. Closing it stops the server.

    body: of the request, without what the recipe says.

    Raises Unavailable where the server does not answer, is overloaded, fails, or ends before the
    answer does, UpstreamRefused where it refuses every request or a key is missing, and
    DraftpickError where it refuses this request.
    """
    request = urllib.request.Request(
        f"{arm.url}/chat/completions",
        data=json.dumps({**arm.extra_body, **body, "model": arm.model}).encode(),
        headers={"Content-Type": "application/json", **_authorization(arm)},
    )
    ended = False
    with _explained(arm), urllib.request.urlopen(request, timeout=arm.timeout_s) as answer:
        for line in answer:
            field, _, content = line.decode("utf-8").strip().partition(":")
            if field != "data":
                continue
            if content.strip() == "[DONE]":
                break
            event = _event(arm, content)
            ended = ended or event.finish_reason is not None
            yield event
    if not ended:
        raise Unavailable("its stream ended before the answer did")


def _authorization(arm: EndpointRecipe) -> dict[str, str]:
    if arm.api_key_env is None:
        return {}
    key = os.environ.get(arm.api_key_env)
    if not key:
        raise UpstreamRefused(
            arm.name,
            f"the arm {arm.name!r} takes its key from {arm.api_key_env}, which is not set; export "
            "it, or leave `api_key_env` out",
        )
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def _explained(arm: EndpointRecipe) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        said = _complaint(error)
        if error.code in BUSY or error.code >= 500:
            asked = error.headers.get("Retry-After", "")
            raise Unavailable(f"HTTP {error.code}{said}", pause_s(asked, time.time())) from error
        named = f"the endpoint of arm {arm.name!r}"
        if error.code in CALLERS:
            raise DraftpickError(f"{named} refused the request: HTTP {error.code}{said}") from error
        raise UpstreamRefused(
            arm.name,
            f"{named} refused the request: HTTP {error.code}{said}; see to the arm's key, `url` "
            "and `model`",
        ) from error
    except TimeoutError as error:
        raise Unavailable(f"not a byte in {arm.timeout_s:g} s") from error
    except urllib.error.URLError as error:
        raise Unavailable(f"cannot be reached: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"broke off: {error or type(error).__name__}") from error


def _complaint(error: urllib.error.HTTPError) -> str:
    try:
        said = error.read(10_000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    try:
        found = json.loads(said)
        inner = found.get("error", found)
        said = str(inner["message"] if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError, KeyError):
        pass
    said = " ".join(said.split())[:SHOWN]
    return f" ({said})" if said else ""


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


def _event(arm: EndpointRecipe, content: str) -> Event:
    try:
        record = json.loads(content)
        if record.get("error"):
            raise Unavailable(f"failed in the middle: {str(record['error'])[:SHOWN]}")
        choices, usage = record.get("choices") or [{}], record.get("usage") or {}
        stopped_by = choices[0].get("stop_reason")
        return Event(
            text=(choices[0].get("delta") or {}).get("content") or "",
            finish_reason=choices[0].get("finish_reason"),
            stopped_by=stopped_by if isinstance(stopped_by, str) else None,
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=usage.get("completion_tokens"),
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise Unavailable(f"sent what is no event: {content.strip()[:80]!r}") from error
