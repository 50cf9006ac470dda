"""Servers: the reasons that end an answer, what the fields of a chunk may hold, and what a server
tells of its own drafts.

Nobody says which server answers, so that what any of them gives is read of every server, and what
none gives is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

STOP, LENGTH, TOOL_CALLS, FILTERED = "stop", "length", "tool_calls", "content_filter"
THOUGHTS = "reasoning_content"  # the name of thoughts that come as parts of the content
PARTS = {"text": "text", "thinking": "thinking"}  # a part's type: where its text lies
SILENT_PARTS = ("reference",)  # parts of no text
NO_REASON = (None, "", "null")  # a `finish_reason` that says nothing yet


ENDS = {  # what ends a whole answer, by its `finish_reason`: one of OpenAI's four
    **{each: each for each in (STOP, LENGTH, TOOL_CALLS, FILTERED)},
    "function_call": TOOL_CALLS,  # OpenAI, as others that copy it
    "repetition": LENGTH,  # vLLM
    "eos_token": STOP,  # TGI
    "stop_sequence": STOP,
    "model_length": LENGTH,  # Mistral
    "eos": STOP,  # litellm
    "guardrail_intervened": FILTERED,
}
THINKING = ("reasoning_content", "reasoning")  # fields of a message that hold what it thinks
STOPPED_BY = ("stop_reason", "matched_stop")  # of a choice, for the string or token: vLLM, SGLang


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
    named = [choice[name] for name in STOPPED_BY if isinstance(choice.get(name), str)]
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


@dataclass(frozen=True)
class Speculated:
    """The counts that a server tells of one answer's drafts.

    drafted, accepted: tokens.
    rounds: passes that verified drafts; None where that is not told.
    per_position: how often the first, the second ... drafted token was accepted; likewise.
    """

    drafted: int
    accepted: int
    rounds: int | None = None
    per_position: tuple[int, ...] | None = None


def speculated(record: Mapping[str, Any], choice: Mapping[str, Any]) -> Speculated | None:
    """Drafted and accepted tokens of a whole answer, or of a stream's event; None where nothing is
    told, or what is told makes no sense: nothing is guessed.

    vLLM has `metrics.speculative_decoding` with --per-request-spec-decode-metrics, SGLang
    `meta_info`, llama.cpp's server `timings`.
    """
    metrics = _of(_of(record, "metrics"), "speculative_decoding")
    if metrics:
        return _sound(
            metrics.get("num_draft_tokens"),
            metrics.get("num_accepted_draft_tokens"),
            metrics.get("num_spec_steps"),
            metrics.get("acceptance_histogram"),
        )
    for told in (_of(choice, "meta_info"), _of(record, "meta_info")):
        if "spec_draft_token_num" in told:
            drafted, accepted = told["spec_draft_token_num"], told.get("spec_accept_token_num")
            return _sound(drafted, accepted, told.get("spec_verify_ct"))
    timings = _of(record, "timings")
    if "draft_n" in timings:
        return _sound(timings["draft_n"], timings.get("draft_n_accepted"))
    return None


def _of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _sound(
    drafted: Any, accepted: Any, rounds: Any = None, histogram: Any = None
) -> Speculated | None:
    """histogram: how many rounds accepted 0, 1, 2 ... tokens."""
    if not (_count(drafted) and _count(accepted) and accepted <= drafted):
        return None
    if not _count(rounds):
        return Speculated(drafted, accepted)
    if not isinstance(histogram, list) or not all(map(_count, histogram)):
        return Speculated(drafted, accepted, rounds)
    at_least = list(accumulate(reversed(histogram)))[::-1]  # rounds with n or more accepted
    per_position = tuple(at_least[1:])
    if sum(histogram) != rounds or sum(per_position) != accepted:
        return Speculated(drafted, accepted, rounds)
    return Speculated(drafted, accepted, rounds, per_position)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0
