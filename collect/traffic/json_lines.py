"""Shapes of JSON lines that hold prompts and answers.

    OpenAI's request with its response, in one object or, as the batch API has them, in two that
    share a `custom_id`; a chat whose last messages are the assistant's; a prompt with its
    completion; draftpick's own log with texts.

Each shape is a function from an object to what it holds, tried in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from decoders.common.text import from_json

from .records import LoggedAnswer

ANSWERS = ("completion", "response", "answer", "output", "generated_text", "generation")
IDS = ("token_ids", "output_token_ids", "completion_token_ids")
STARTS = ("started", "started_at", "start", "start_time", "request_time")
ENDS = ("ended", "ended_at", "end", "end_time", "response_time", "finished_at", "time")
TOOK = ("duration_s", "latency_s", "elapsed_s", "duration", "latency", "elapsed")
TOOK_MS = ("duration_ms", "latency_ms", "elapsed_ms")
GROUPS = ("group", "conversation_id", "conversation", "session_id", "session", "chat_id")
SHAREGPT = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
            "system": "system", "tool": "tool"}  # fmt: skip
MILLISECONDS = 1e11  # a time since 1970 above this is in milliseconds


@dataclass
class Halves:
    """Requests and responses that came in lines of their own, by what they share."""

    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    responses: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)

    def joined(self) -> Iterator[tuple[str, dict[str, Any] | None, dict[str, Any], dict[str, Any]]]:
        """(where, request, response, the response's line); None for a request that never came."""
        for key, where, response, line in self.responses:
            yield where, self.requests.get(key), response, line


def answers_of(record: Any, where: str, halves: Halves) -> Iterator[LoggedAnswer]:
    """The answers of one line; none where it holds none, or only a half of one."""
    if not isinstance(record, dict):
        return
    if {"arm", "propensity", "outcome"} <= record.keys():
        yield from _of_own_log(record, where)
        return
    request, response = _request(record), _response(record)
    key = record.get("custom_id")
    if isinstance(key, str) and (request is None) != (response is None):
        if request is not None:
            halves.requests[key] = request
        elif response is not None:
            halves.responses.append((key, where, response, record))
        return
    if response is not None and request is not None:
        yield from exchange(request, response, record, where)
        return
    if response is None:
        yield from _transcript(record, where)


def exchange(
    request: Mapping[str, Any], response: Mapping[str, Any], line: Mapping[str, Any], where: str
) -> Iterator[LoggedAnswer]:
    """An answer for each choice of a response. line: what else is known of both."""
    asked = _asked(request, line, where)
    asked = replace(asked, prompt_ids=_ids(response, "prompt_token_ids") or asked.prompt_ids)
    if asked.messages is None and asked.prompt is None and asked.prompt_ids is None:
        return
    usage = response.get("usage")
    counted = _count(usage, "completion_tokens") if isinstance(usage, dict) else None
    choices = response.get("choices")
    if not isinstance(choices, list):  # llama.cpp's own form
        choices, counted = [response], _count(response, "tokens_predicted")
    whole = [choice for choice in choices if isinstance(choice, dict)]
    for choice in whole:
        message, ids = _message(choice), _ids(choice, *IDS, "tokens")
        if message is None and ids is None:
            continue
        ended_by = choice.get("finish_reason")
        if ended_by is None and choice.get("stop_type") in ("eos", "word", "limit"):
            ended_by = {"eos": "stop", "word": "word", "limit": "length"}[choice["stop_type"]]
        if isinstance(choice.get("stop_reason"), str):  # the stop string, as vLLM tells it
            ended_by = "word"
        yield replace(
            asked,
            answer=message,
            ids=ids,
            ended_by=ended_by if isinstance(ended_by, str) else None,
            counted=counted if len(whole) == 1 else None,
        )


def from_events(stream: str) -> dict[str, Any] | None:
    """A response out of its server-sent events; None where they are none."""
    events = []
    for line in stream.splitlines():
        content = line.removeprefix("data:").strip()
        if line.startswith("data:") and content != "[DONE]":
            try:
                events.append(from_json(content))
            except ValueError:
                return None
    text, thought, reason, usage = "", "", None, None
    for event in events:
        if not isinstance(event, dict):
            return None
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                return None
            delta = choice.get("delta") or {}
            if not isinstance(delta, dict) or delta.get("tool_calls"):
                return None  # parts of a call cannot be put together for sure
            text += delta.get("content") or choice.get("text") or ""
            thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            reason = choice.get("finish_reason") or reason
    if not events:
        return None
    message = {"role": "assistant", "content": text, "reasoning_content": thought or None}
    return {"choices": [{"message": message, "finish_reason": reason}], "usage": usage}


def _of_own_log(record: Mapping[str, Any], where: str) -> Iterator[LoggedAnswer]:
    text, outcome = record.get("text"), record.get("outcome")
    if not isinstance(text, dict) or not isinstance(outcome, dict):
        return
    prompt, answer = text.get("prompt"), text.get("answer")
    if not isinstance(prompt, str) or not isinstance(answer, str):
        return
    request, ended, took = record.get("request"), _time(record.get("time")), outcome.get("wall_s")
    asked = _asked(request if isinstance(request, dict) else {}, record, where)
    yield replace(
        asked,
        messages=({"role": "user", "content": prompt},),
        answer={"role": "assistant", "content": answer},
        counted=_count(outcome, "new_tokens"),
        started=ended - took if ended is not None and isinstance(took, int | float) else None,
        ended=ended,
    )


def _request(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request that a line holds; None where it holds none."""
    for name in ("request", "body", "input"):
        found = _body(record.get(name))
        if found is not None and _asks(found):
            return found
    return dict(record) if _asks(record) else None


def _body(given: Any) -> dict[str, Any] | None:
    """An object's `body`, or the object itself where it has none."""
    found = object_of(given)
    inner = None if found is None else object_of(found.get("body"))
    return found if inner is None else inner


def _asks(found: Mapping[str, Any]) -> bool:
    return any(name in found for name in ("messages", "prompt", "prompt_token_ids"))


def _response(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The response that a line holds, or a text in its place; None where it holds none."""
    if isinstance(record.get("choices"), list):
        return dict(record)
    for name in ANSWERS:
        given = record.get(name)
        if isinstance(given, str) and given.lstrip().startswith("data:"):
            return from_events(given)
        found = _body(given)
        if found is not None:
            if isinstance(found.get("choices"), list) or isinstance(found.get("content"), str):
                return found
        elif isinstance(given, str):
            return {"choices": [{**_own(record), "text": given}], "usage": record.get("usage")}
    if _ids(record, *IDS) is not None:
        return {"choices": [_own(record)]}
    return None


def _own(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a line that is its own choice, what a choice says."""
    return {name: record[name] for name in (*IDS, "finish_reason") if name in record}


def _transcript(record: Mapping[str, Any], where: str) -> Iterator[LoggedAnswer]:
    """The assistant's messages of a chat, each after what came before it."""
    messages = _messages(record.get("messages"))
    shared = record.get("conversations")
    if messages is None and isinstance(shared, list):
        turns = [turn for turn in shared if isinstance(turn, dict)]
        messages = _messages(
            [
                {"role": SHAREGPT.get(str(turn.get("from")), ""), "content": turn.get("value")}
                for turn in turns
            ]
        )
    if messages is None:
        return
    asked = _asked(record, record, where)
    group = asked.group if asked.group is not None else where
    for at, message in enumerate(messages):
        if message["role"] == "assistant" and at and _says(message):
            yield replace(asked, messages=messages[:at], answer=message, group=group)


def _asked(request: Mapping[str, Any], line: Mapping[str, Any], where: str) -> LoggedAnswer:
    """What a request says, and its line besides."""
    prompt = request.get("prompt")
    temperature, tools = _number(request.get("temperature")), request.get("tools")
    limits = ("max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict")
    limit = next((found for name in limits if (found := _count(request, name))), None)
    started = _first(line, STARTS, _time)
    ended = _first(line, ENDS, _time) if started is not None else None
    took = _first(line, TOOK, _number)
    if took is None and (in_ms := _first(line, TOOK_MS, _number)) is not None:
        took = in_ms / 1000
    if started is None and took is not None:
        started = _time(line.get("timestamp", line.get("created_at")))
    if ended is None and started is not None and took is not None:
        ended = started + took
    group = next((str(each[name]) for each in (line, request) for name in GROUPS
                  if isinstance(each.get(name), str | int) and each[name] != ""), None)  # fmt: skip
    named = line.get("task", line.get("category"))
    return LoggedAnswer(
        where=where,
        messages=_messages(request.get("messages")),
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_ids=_ids(request, "prompt_token_ids")
        or (_ids(request, "prompt") if isinstance(prompt, list) else None),
        tools=tuple(tools) if isinstance(tools, list) else (),
        temperature=temperature,
        limit=limit,
        started=started,
        ended=ended,
        task=named if isinstance(named, str) and named.strip() else None,
        group=group,
    )


def _message(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    message = choice.get("message")
    if isinstance(message, dict) and _says(message):
        return message
    for name in ("text", "content"):
        if isinstance(choice.get(name), str) and choice[name]:
            return {"role": "assistant", "content": choice[name]}
    return None


def _says(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return bool(content and isinstance(content, str | list)) or bool(message.get("tool_calls"))


def _messages(found: Any) -> tuple[dict[str, Any], ...] | None:
    if not isinstance(found, list) or not found:
        return None
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) and m["role"] for m in found):
        return None
    return tuple(found)


def object_of(found: Any) -> dict[str, Any] | None:
    """An object, or one that a text spells."""
    if isinstance(found, str) and found.lstrip().startswith("{"):
        try:
            found = from_json(found)
        except ValueError:
            return None
    return found if isinstance(found, dict) else None


def _ids(record: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    for name in names:
        found = record.get(name)
        if isinstance(found, list) and found and all(type(each) is int for each in found):
            return tuple(found)
    return None


def _count(record: Mapping[str, Any], name: str) -> int | None:
    found = record.get(name)
    return found if type(found) is int and found > 0 else None


def _number(found: Any) -> float | None:
    known = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e300
    return float(found) if known else None


def _first(
    record: Mapping[str, Any], names: tuple[str, ...], read: Callable[[Any], float | None]
) -> float | None:
    return next((n for name in names if (n := read(record.get(name))) is not None), None)


def _time(found: Any) -> float | None:
    """Seconds: of a number, or of a date as ISO 8601 writes it."""
    number = _number(found)
    if number is not None:
        return number / 1000 if number > MILLISECONDS else number
    if isinstance(found, str):
        try:
            return datetime.fromisoformat(found).timestamp()
        except (ValueError, OverflowError):
            return None
    return None
