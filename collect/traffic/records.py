"""What a log says of one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LoggedAnswer:
    """One answer with what came before it; None for what the log does not say.

    where: file and line.
    messages, prompt, prompt_ids: what was asked, as a chat, a text or token ids; one of them at
        least.
    answer, ids: what was written, as the assistant's message (`content`, `reasoning_content`,
        `tool_calls`) or as token ids; one of them at least.
    tools: those that the request offered.
    temperature: of the request.
    limit: most tokens that the answer was allowed.
    ended_by: the finish reason, as the server calls it.
    counted: tokens of the answer, as the server counted them.
    started, ended: seconds since whenever.
    task: what the line calls its kind of work.
    group: conversation or user; answers that share one are not independent.
    target: fingerprint of the weights and precision that wrote it.
    """

    where: str
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    answer: dict[str, Any] | None = None
    ids: tuple[int, ...] | None = None
    tools: tuple[Any, ...] = ()
    temperature: float | None = None
    limit: int | None = None
    ended_by: str | None = None
    counted: int | None = None
    started: float | None = None
    ended: float | None = None
    task: str | None = None
    group: str | None = None
    target: str | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """When it was asked for and when it was complete."""
        if self.started is None or self.ended is None:
            return None
        return self.started, max(self.started, self.ended)

    @property
    def asked(self) -> str:
        """The last user message, or the whole prompt where it is no chat."""
        users = [m for m in self.messages or () if m.get("role") == "user"]
        return text_of(users[-1].get("content")) if users else self.prompt or ""


@dataclass(frozen=True)
class KnownText:
    """prompt, ids: token ids, each at least one.
    limit: tokens that the answer was allowed; None where it was not near.
    span: when it was asked for and when it was complete, in seconds; None where nobody said.
    """

    prompt: list[int]
    ids: list[int]
    limit: int | None = None
    span: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenAnswer(KnownText):
    """A logged answer in tokens, an end-of-sequence token included where it was written."""

    logged: LoggedAnswer


def text_of(content: Any) -> str:
    """A message's text, that of its parts joined; "" where it has none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))


def only_text(content: Any) -> bool:
    """Whether a message is text, or parts that are."""
    if not isinstance(content, list):
        return True
    return all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content)
