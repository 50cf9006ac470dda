"""Channels of an answer in OpenAI's harmony format, which gpt-oss writes: a message is
<|start|>ROLE<|channel|>NAME<|message|>TEXT<|end|>, whose <|start|>assistant is the prompt's of the
first. Messages of the channel `analysis` are not for the user, nor are those for tools, which have
to=NAME behind the role or the channel. More may follow the channel's name, as <|constrain|>json."""

from __future__ import annotations

from collections.abc import Iterable

BEGINS, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
RECIPIENT = " to="


class Channels:
    """Tells what a user is told from what a model thinks, token by token.

    An answer that holds none of these special tokens is told as it is.
    """

    def __init__(self) -> None:
        self._header: str | None = ""  # so far; None inside a message
        self._opens = True  # whether nothing has come but what may be the role's recipient
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
            role = "" if name == BEGINS else self._header or ""
            self._header, self._opens = f"{role}{name} ", False
        elif name == MESSAGE:
            header = self._header or ""
            channel = header.rpartition(CHANNEL)[2].split()[:1]
            self._told = channel in (["final"], ["commentary"]) and RECIPIENT not in header
            self._header, self._opens = None, False
        elif self._opens:
            self._header = (self._header or "") + text
            if self._header[: len(RECIPIENT)] != RECIPIENT[: len(self._header)]:
                return self.rest(), ""
        elif self._header is not None:
            self._header += " " if name else text
        else:
            return (text, "") if self._told else ("", text)
        return "", ""

    def rest(self) -> str:
        """Text that was held back and begins no header after all, the answer being whole."""
        if not self._opens:
            return ""
        text, self._header, self._opens = self._header or "", None, False
        return text
