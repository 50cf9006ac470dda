"""Logged texts as the token ids that a model read and wrote, by its tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import from_json, whole
from decoders.models import targets
from decoders.spelling import text_of as spelled_text

from .records import LoggedAnswer, TokenAnswer, only_text, text_of

ENDED = ("stop", "eos", "tool_calls", "function_call")  # by an end-of-sequence token
APART = 0.1  # an answer's count and the tokenizer's may differ by this share,
MAX_ODD_TOKENS = 3  # or by so many tokens: ends, and words written in another way
MAX_ODD_SHARE = 0.5  # of the answers that can be compared, those that may differ


@dataclass(frozen=True)
class Tokenised:
    """left_out: reason -> answers."""

    answers: list[TokenAnswer]
    left_out: Mapping[str, int]


class Unspoken(Exception):
    """An answer that cannot be put into tokens, and why."""


def tokenised(logged: Sequence[LoggedAnswer], tokenizer: Any, eos_ids: Sequence[int]) -> Tokenised:
    """eos_ids: the first is taken for the one that ended an answer.

    Raises DraftpickError where the tokenizer does not fit the logs, and where no answer is left.
    """
    size = vocabulary(tokenizer)
    made, left_out = list[TokenAnswer](), Counter[str]()
    counts = list[tuple[int, int]]()  # tokens by the tokenizer, by the server
    lost = spelled = 0  # answers that the tokenizer cannot say, of so many
    for each in logged:
        try:
            prompt, ids = _prompt(each, tokenizer), _answer(each, tokenizer)
        except Unspoken as error:
            left_out[str(error)] += 1
            continue
        top = max((*prompt, *ids), default=-1)
        if top >= size:
            raise DraftpickError(
                f"{each.where}: holds the token id {top}, and the tokenizer has {size:,} ids, so "
                "that it does not fit the logs; name the tokenizer of the model that wrote them"
            )
        text = "" if each.answer is None else text_of(each.answer.get("content"))
        if text:  # thoughts, calls and a stop string may stand beside it in the ids
            spelled += 1
            said = spelled_text(tokenizer, ids)
            lost += "".join(text.split()) not in "".join(said.split())
        if each.counted is not None:
            counts.append((len(ids), each.counted))
        if each.ended_by in ENDED and eos_ids and (not ids or ids[-1] not in eos_ids):
            ids = [*ids, eos_ids[0]]
        if not prompt or not ids:
            left_out["without a token"] += 1
            continue
        limit = len(ids) if each.ended_by == "length" else each.limit
        limit = limit and max(limit, len(ids))
        made.append(TokenAnswer(prompt, ids, limit, each.span, logged=each))
    _require_fit(counts, lost, spelled)
    if not made:
        words = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DraftpickError(f"no answer of the logs can be put into tokens: {words}")
    return Tokenised(made, dict(left_out))


def vocabulary(tokenizer: Any) -> int:
    """One more than the greatest id."""
    return 1 + int(max(tokenizer.get_vocab().values()))


def _require_fit(counts: Sequence[tuple[int, int]], lost: int, spelled: int) -> None:
    apart = sum(abs(ours - theirs) > max(MAX_ODD_TOKENS, APART * theirs) for ours, theirs in counts)
    if apart > MAX_ODD_SHARE * len(counts):
        ours, theirs = (sum(column) for column in zip(*counts, strict=True))
        raise DraftpickError(
            f"the tokenizer does not fit the logs: of {len(counts):,} answers whose tokens the "
            f"server counted, {apart:,} have another number by it ({ours:,} tokens in place of "
            f"{theirs:,}); name the tokenizer of the model that wrote them"
        )
    if lost > MAX_ODD_SHARE * spelled:
        raise DraftpickError(
            f"the tokenizer does not fit the logs: it cannot spell {lost:,} of {spelled:,} "
            "answers; name the tokenizer of the model that wrote them"
        )


def _prompt(each: LoggedAnswer, tokenizer: Any) -> list[int]:
    if each.prompt_ids is not None:
        return list(each.prompt_ids)
    if each.messages is None:
        return _completed(tokenizer, _whole(each.prompt or ""))
    if not all(only_text(message.get("content")) for message in each.messages):
        raise Unspoken("with pictures or other things that are no text")
    return _chat(tokenizer, each.messages, each.tools)


def _completed(tokenizer: Any, text: str) -> list[int]:
    """A prompt as engines read one that is no chat: special tokens that it spells are such tokens,
    as in one that was made by a chat template."""
    begun = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    return list(tokenizer.encode(text, add_special_tokens=not begun))


def _answer(each: LoggedAnswer, tokenizer: Any) -> list[int]:
    if each.ids is not None:
        return list(each.ids)
    answer = each.answer or {}
    if answer.get("tool_calls"):
        return _called(each, tokenizer)
    text = _whole(_content(answer))
    return list(tokenizer.encode(text, add_special_tokens=False))


def _content(answer: Mapping[str, Any]) -> str:
    thought = answer.get("reasoning_content") or answer.get("reasoning")
    return (thought if isinstance(thought, str) else "") + text_of(answer.get("content"))


def _called(each: LoggedAnswer, tokenizer: Any) -> list[int]:
    """Tokens of an answer with tool calls, which only the chat template can spell: what it puts
    after the prompt, up to the end of the sequence."""
    if each.messages is None or each.answer is None:
        raise Unspoken("with tool calls outside a chat")
    prompt = _chat(tokenizer, each.messages, each.tools)
    answer = {"role": "assistant", **each.answer}
    text = _chat(tokenizer, [*each.messages, answer], each.tools, begins=False)
    if text[: len(prompt)] != prompt:
        raise Unspoken("whose tool calls the chat template writes in another way")
    ids = text[len(prompt) :]
    end = tokenizer.eos_token_id
    return ids[: ids.index(end) + 1] if end in ids else ids


def _chat(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], begins: bool = True
) -> list[int]:
    """begins: ends where the assistant's answer starts."""
    said = [_plain(message) for message in messages]
    plain = begins and not tools and all(m.keys() <= {"role", "content"} for m in said)
    try:
        if plain:
            return targets.encode_chat(tokenizer, said)
        ids = tokenizer.apply_chat_template(
            said, tools=list(tools) or None, add_generation_prompt=begins, return_dict=False
        )
    except Exception as error:  # a template may raise whatever it likes
        raise Unspoken("whose chat the template refuses") from error
    return list(ids)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as templates take it: its parts joined, calls' arguments as objects, nothing that
    is null."""
    made = {name: value for name, value in message.items() if value is not None}
    made["content"] = _whole(text_of(message.get("content")))
    calls = made.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = [_call(call) for call in calls]
    return made


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = from_json(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _whole(text: str) -> str:
    if not whole(text):
        raise Unspoken("with half a character")
    return text
