"""A chat, as the router is given it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoders.common.errors import DraftpickError
from decoders.common.text import whole

Message = dict[str, Any]  # role and content are texts


def as_messages(prompt: str | Sequence[Message]) -> list[Message]:
    """A chat from a bare prompt or from messages; raises DraftpickError for an empty one."""
    messages = (
        [{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else [dict(message) for message in prompt]
    )
    if not messages:
        raise DraftpickError("the list of messages is empty; give at least one user message")
    for number, message in enumerate(messages, 1):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise DraftpickError(f"message {number} needs a role and a content, both strings")
        if not whole(message["content"]):
            raise DraftpickError(
                f"message {number} holds half a surrogate pair or bytes that are no UTF-8; write "
                "whole characters"
            )
    if not messages[-1]["content"].strip() and messages[-1]["role"] != "tool":
        raise DraftpickError("the prompt is empty; write what the model should answer")
    return messages
