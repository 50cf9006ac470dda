"""Texts to token ids such that no text can write a special token.

A tokenizer takes a text that spells `<|im_end|>` for the token of that name, so that a user's
message could end itself and begin another in the system's name. Where a text spells one, it is
encoded apart, as text; where none does, ids are what the tokenizer gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..spelling import specials_of

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # code points that mean nothing


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text, with the tokens that the tokenizer puts around every text."""
    specials = _specials(tokenizer)
    if specials is None or not specials.search(text):
        return list(tokenizer.encode(text))
    return list(tokenizer.encode(text, split_special_tokens=True))


def encode_chat(
    tokenizer: Any, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> list[int]:
    """Ids of a chat by the tokenizer's template, ending where the assistant's answer starts, or
    goes on, where the last message is an assistant's.

    tools: the functions that the model may call, as in OpenAI's API.

    The template sees a character of no meaning in place of every special token that a message
    spells. Between the special tokens that the template wrote, the text is then encoded whole.
    """
    given, specials = _named(messages, tokenizer), _specials(tokenizer)
    offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
    goes_on = given[-1]["role"] == "assistant"
    ends = {"continue_final_message" if goes_on else "add_generation_prompt": True}
    said = "".join(_texts([given, offered]))
    found = sorted(set(specials.findall(said))) if specials else []
    if specials is None or not found:
        return list(tokenizer.apply_chat_template(given, return_dict=False, **ends, **offered))
    unused = (chr(point) for point in PRIVATE_USE if chr(point) not in said)
    stand_in = dict(zip(found, unused, strict=False))
    spelled = {ord(character): special for special, character in stand_in.items()}

    def hidden(value: Any) -> Any:
        if isinstance(value, dict):
            return {hidden(key): hidden(each) for key, each in value.items()}
        if isinstance(value, list):
            return list(map(hidden, value))
        if not isinstance(value, str):
            return value
        return specials.sub(lambda match: stand_in[match[0]], value)

    rendered = tokenizer.apply_chat_template(
        hidden(given), tokenize=False, **ends, **hidden(offered)
    )
    ids, usual = [], ""  # of what was rendered so far; what holds no stand-in, not yet encoded
    for part in re.split(f"({specials.pattern})", rendered):
        if not any(character in part for character in stand_in.values()):
            usual += part
            continue
        ids += tokenizer.encode(usual, add_special_tokens=False)
        usual = ""
        text = part.translate(spelled)
        ids += tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return [*ids, *tokenizer.encode(usual, add_special_tokens=False)]


def _named(messages: Sequence[dict[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """The messages by roles that the template knows: a developer's are the system's, where it does
    not name developers."""
    if "developer" in str(tokenizer.chat_template):
        return list(messages)
    return [
        {**each, "role": "system"} if each["role"] == "developer" else each for each in messages
    ]


def _texts(value: Any) -> Iterator[str]:
    """Every text in lists and mappings, their keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _specials(tokenizer: Any) -> re.Pattern[str] | None:
    """What spells a special token; None for a tokenizer that has none."""
    names = set(specials_of(tokenizer).values())
    longest_first = sorted(filter(None, names), key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
