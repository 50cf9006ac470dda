"""Channels of an answer in OpenAI's harmony format, which gpt-oss writes: a message is
<|channel|>NAME<|message|>TEXT, with the next one behind <|end|><|start|>assistant. Messages of the
channel `analysis`, and those for tools (commentary to=NAME), are not for the user."""

from __future__ import annotations

from collections.abc import Iterable

BEGINS, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"


class Channels:
    """Tells what a user is told from what a model thinks, token by token.

    An answer that holds none of these special tokens is told as it is.
    """

    def __init__(self) -> None:
        self._header: str | None = None  # so far; None inside a message
        self._told = True

    @classmethod
    def of(cls, names: Iterable[str]) -> Channels | None:
        """Channels of a tokenizer with these special tokens; None of one without harmony's."""
        return cls() if {BEGINS, CHANNEL, MESSAGE} <= {*names} else None

    def apart(self, name: str, text: str) -> tuple[str, str]:
        """Tell apart what a token adds to what is told and to what is thought.

        name: of a special token, "" of any other. text: that it adds to the answer's.
        """
        if name in (BEGINS, CHANNEL):
            self._header = ""
        elif name == MESSAGE:
            channel = (self._header or "").strip()
            self._told = channel in ("final", "commentary")
            self._header = None
        elif self._header is not None:
            self._header += text
        else:
            return (text, "") if self._told else ("", text)
        return "", ""
