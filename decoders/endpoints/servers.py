"""Servers: the reasons that end an answer, and what the fields of a chunk may hold.

Nobody says which server answers, so that what any row knows is read of every server, and what no
row knows is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOP, LENGTH, TOOL_CALLS, FILTERED = "stop", "length", "tool_calls", "content_filter"
THOUGHTS = "reasoning_content"  # the name of thoughts that come as parts of the content
PARTS = {"text": "text", "thinking": "thinking"}  # a part's type: where its text lies
SILENT_PARTS = ("reference",)  # parts of no text
NO_REASON = (None, "", "null")  # a `finish_reason` that says nothing yet


@dataclass(frozen=True)
class Server:
    """A kind of server. Its chunks are OpenAI's but for what is named here.

    ends: what ends a whole answer, by its `finish_reason`: one of OpenAI's four.
    breaks: the `finish_reason` of an answer that is not whole.
    thoughts: fields of a message that hold what the model thinks.
    parts: types of the parts where its `content` is a list.
    one_call: whether `tool_calls` may be a call in the place of a list.
    stopped_by: the field of a choice that names the stop string or token.
    refuses: whether it refuses `stream_options`.
    """

    ends: Mapping[str, str]
    breaks: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    one_call: bool = False
    stopped_by: str | None = None
    refuses: bool = False


_BOTH = {STOP: STOP, LENGTH: LENGTH}
_CALLS = _BOTH | {TOOL_CALLS: TOOL_CALLS}
_OPENAI = _CALLS | {FILTERED: FILTERED, "function_call": TOOL_CALLS}

SERVERS = {
    "OpenAI": Server(_OPENAI),
    "Azure": Server(_OPENAI, refuses=True),
    "vLLM": Server(
        _CALLS | {"repetition": LENGTH},
        breaks=("abort", "error"),
        thoughts=("reasoning_content", "reasoning"),
        stopped_by="stop_reason",
    ),
    "SGLang": Server(
        _OPENAI, breaks=("abort",), thoughts=("reasoning_content",), stopped_by="matched_stop"
    ),
    "llama.cpp": Server(_CALLS, thoughts=("reasoning_content",)),
    "Ollama": Server(_CALLS, breaks=("load", "unload"), thoughts=("reasoning",)),
    "LM Studio": Server(_CALLS, thoughts=("reasoning_content", "reasoning")),
    "TGI": Server(
        _CALLS | {"eos_token": STOP, "stop_sequence": STOP}, one_call=True, refuses=True
    ),
    "Mistral": Server(
        _CALLS | {"model_length": LENGTH},
        breaks=("error",),
        parts=("text", "thinking", "reference"),
        refuses=True,
    ),
    "DeepSeek": Server(
        _CALLS | {FILTERED: FILTERED},
        breaks=("insufficient_system_resource",),
        thoughts=("reasoning_content",),
    ),
    "litellm": Server(
        _OPENAI | {"eos": STOP, "guardrail_intervened": FILTERED},
        breaks=("finish_reason_unspecified", "malformed_function_call"),
        thoughts=("reasoning_content",),
    ),
}  # fmt: skip

ENDS = {reason: end for each in SERVERS.values() for reason, end in each.ends.items()}
THINKING = tuple(dict.fromkeys(name for each in SERVERS.values() for name in each.thoughts))
_STOPPED_BY = tuple(each.stopped_by for each in SERVERS.values() if each.stopped_by)


def end_of(choice: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Tell what ended an answer, by OpenAI's word, and whether a reason was given that is none yet.

    Raises ValueError for a reason of no whole answer, and one that no server is known to give.
    """
    reason = choice.get("finish_reason")
    if reason in NO_REASON:
        return None, reason is not None
    if not isinstance(reason, str) or reason not in ENDS:
        raise ValueError(f"ended its answer with {str(reason)[:80]!r}")
    return ENDS[reason], False


def stop_of(choice: Mapping[str, Any]) -> str | None:
    """The stop string that ended the answer, where the server names it."""
    named = [choice[name] for name in _STOPPED_BY if isinstance(choice.get(name), str)]
    return named[0] if named else None


def content_of(message: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """A message's text, and its thoughts by their field. Raises TypeError for what is none."""
    thoughts = dict[str, str]()
    for name in THINKING:
        found = message.get(name)
        if found is not None and not isinstance(found, str):
            raise TypeError(f"{name} is no text")
        if found:
            thoughts[name] = found
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or "", thoughts
    if not isinstance(content, list):
        raise TypeError("content is no text")
    text = ""
    for part in content:
        kind = part["type"]
        if kind in SILENT_PARTS:
            continue
        if kind not in PARTS:
            raise TypeError(f"a part of the content is {str(kind)[:80]}")
        written = _texts(part[PARTS[kind]])
        if kind == "thinking":
            thoughts[THOUGHTS] = thoughts.get(THOUGHTS, "") + written
        else:
            text += written
    return text, {name: each for name, each in thoughts.items() if each}


def _texts(found: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(found, list):
        return "".join(_texts(each["text"]) for each in found if each["type"] == "text")
    if not isinstance(found, str):
        raise TypeError("a part of the content is no text")
    return found
