"""A server that is named by its address alone, and its answers, whole or with the time of each of
their events: for commands that look at a server without an arms file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from decoders.common.errors import DraftpickError, UpstreamRefused
from decoders.common.text import whole
from decoders.endpoints.recipe import EndpointRecipe
from decoders.endpoints.stream import Unavailable, asked, completions, record_of
from decoders.recipes.mistakes import explained

FIRST_MODEL = "the first that the server lists"


def server_at(
    url: str,
    model: str | None = None,
    api_key_env: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    named: str = "the server",
) -> EndpointRecipe:
    """url: with or without /v1. model: None stands for `FIRST_MODEL`, until `with_model` asks.
    named: what it is, for the message.

    Raises DraftpickError for what cannot be a server's address, and a body that holds what every
    request sets."""
    if model is not None and not (model.strip() and whole(model)):
        raise DraftpickError(f"the model's name is empty or holds half a character: {model!r}")
    try:
        parts = urlsplit(url)
        place = url if parts.path.rstrip("/") else parts._replace(path="/v1").geturl()
    except ValueError:  # no address: the recipe says so
        place = url
    try:
        return EndpointRecipe(
            name=url,
            url=place,
            model=model or FIRST_MODEL,
            api_key_env=api_key_env,
            extra_body=dict(extra_body or {}),
        )
    except ValidationError as error:
        words = "; ".join(f"{place or 'it'}: {what}" for place, what in explained(error))
        raise DraftpickError(f"{named} {url!r} cannot be asked: {words}") from None


def with_model(connections: httpx.Client, server: EndpointRecipe) -> EndpointRecipe:
    """The same with the model that it lists first, where none was named. Raises DraftpickError."""
    if server.model != FIRST_MODEL:
        return server
    found = _record(connections, server, "GET", "/models", None).get("data")
    names: Sequence[Any] = found if isinstance(found, list) else ()
    listed = [each["id"] for each in names if isinstance(each, dict) and "id" in each]
    if not listed:
        raise DraftpickError(f"{server.name} lists no model; name one with --model")
    return server.model_copy(update={"model": str(listed[0])})


def whole_answer(
    connections: httpx.Client, server: EndpointRecipe, body: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON of an answer that is not streamed. body: without the model.

    Raises UpstreamRefused where the server is not one of these or refuses every request, and
    DraftpickError where it refuses this one, does not answer or breaks off."""
    content = {**server.extra_body, **body, "model": server.model, "stream": False}
    return _record(connections, server, "POST", "/chat/completions", content)


def _record(
    connections: httpx.Client,
    server: EndpointRecipe,
    method: str,
    path: str,
    content: Mapping[str, Any] | None,
) -> dict[str, Any]:
    try:
        with asked(connections, server, method, path, content) as (answer, kind):
            if kind != "application/json":
                raise UpstreamRefused(
                    server.name,
                    f"{server.name} answered with {kind or 'content of no type'}, not with JSON; "
                    "check the address",
                )
            return record_of(server, answer)
    except Unavailable as error:
        raise DraftpickError(f"{server.name} {_said(error)}") from error


def _said(error: Unavailable) -> str:
    text = str(error)
    return text if text.startswith(("cannot", "sent", "broke", "its ")) else f"answered: {text}"


@dataclass
class Stream:
    """Events of one answer: when those with text, thoughts or calls came, and how many tokens all
    of them held; None where the server does not say."""

    times: list[float] = field(default_factory=list)
    tokens: int | None = None


def streamed(
    connections: httpx.Client, server: EndpointRecipe, question: str, tokens: int
) -> Stream:
    """One greedy answer. Raises DraftpickError where the server gives none."""
    body = {
        "messages": [{"role": "user", "content": question}],
        server.limit_field: tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream = Stream()
    try:
        with closing(completions(connections, server, body)) as events:
            for event in events:
                if event.completion_tokens is not None:
                    stream.tokens = event.completion_tokens
                if event.text or event.fields:
                    stream.times.append(time.perf_counter())
    except Unavailable as error:
        raise DraftpickError(f"{server.name} does not answer: {error}") from error
    return stream


def side_by_side(
    connections: httpx.Client,
    server: EndpointRecipe,
    questions: Sequence[str],
    tokens: int,
    at_once: int,
) -> list[Stream]:
    """An answer to each question, so many under way together. Raises as `streamed`."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda asked: streamed(connections, server, asked, tokens), questions))
