"""Streamed answers of a server, side by side, with the time of each of their events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

import httpx

from decoders.common.errors import DraftpickError
from decoders.endpoints.recipe import EndpointRecipe
from decoders.endpoints.stream import Unavailable, completions


@dataclass
class Stream:
    """Events of one answer: when those with text came, and how many tokens all of them held; None
    where the server does not say."""

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
                if event.text:
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
