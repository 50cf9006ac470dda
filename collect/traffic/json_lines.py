"""JSON lines that hold an answer with its prompt: a request of OpenAI's API, or of llama.cpp's own,
with its response in one object, and draftpick's log with texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from decoders.common.text import from_json

from .records import LoggedAnswer

LIMITS = ("max_tokens", "max_completion_tokens", "n_predict", "max_new_tokens")


def answers_of(record: Any, where: str) -> Iterator[LoggedAnswer]:
    """The answers of one line; none where it holds none."""
    if not isinstance(record, dict):
        return
    if {"arm", "propensity", "outcome"} <= record.keys():
        yield from _of_own_log(record, where)
        return
    request, response = object_of(record.get("request")), object_of(record.get("response"))
    if request is not None and response is not None:
        yield from exchange(request, response, record, where)


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
        message, ids = _message(choice), _ids(choice, "token_ids", "tokens")
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
        prompt_ids=_ids(text, "prompt_ids"),
        answer={"role": "assistant", "content": answer},
        counted=_count(outcome, "new_tokens"),
        target=target if isinstance(target := record.get("target"), str) else None,
        started=ended - took if ended is not None and isinstance(took, int | float) else None,
        ended=ended,
    )


def _asked(request: Mapping[str, Any], line: Mapping[str, Any], where: str) -> LoggedAnswer:
    """What a request says, and its line besides."""
    prompt, tools = request.get("prompt"), request.get("tools")
    group, task = line.get("conversation_id", line.get("group")), line.get("task")
    return LoggedAnswer(
        where=where,
        messages=_messages(request.get("messages")),
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_ids=_ids(request, "prompt_token_ids", "prompt"),
        tools=tuple(tools) if isinstance(tools, list) else (),
        temperature=_number(request.get("temperature")),
        limit=next((found for name in LIMITS if (found := _count(request, name))), None),
        started=_time(line.get("started")),
        ended=_time(line.get("ended")),
        task=task if isinstance(task, str) and task.strip() else None,
        group=str(group) if isinstance(group, str | int) and group != "" else None,
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
    said = bool(content and isinstance(content, str | list))
    others = ("tool_calls", "reasoning_content", "reasoning")
    return said or any(message.get(name) for name in others)


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


def _time(found: Any) -> float | None:
    """Seconds: a number of them, or a date in ISO 8601."""
    if isinstance(found, str):
        try:
            return datetime.fromisoformat(found).timestamp()
        except (ValueError, OverflowError):
            return None
    return _number(found)
