"""Checks which options of `draftpick serve` go together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from decoders.common.errors import DraftpickError
from decoders.common.secrets import secret

from ..options import answer_request
from .options import ServeOptions
from .served import Served


def plan(asked: ServeOptions) -> Served:
    """Plan what the command's options ask for; opens no file and no socket, and prints nothing.

    Raises DraftpickError for options that do not go together, numbers out of range and what sends
    spans where it is not installed.
    """
    from ...serve.app import Settings
    from ...serve.middleware import checked
    from ...serve.parsing import Limits
    from ...serve.spans import wanted

    wanted(asked.otlp_traces_endpoint)
    usual = answer_request(asked.max_tokens, asked.temperature)
    key = None
    if asked.api_key is not None:
        key = secret(asked.api_key, "--api-key or DRAFTPICK_API_KEY")
    named = policies_of(asked.policy or [])
    settings = Settings(
        Limits(asked.max_tokens, asked.queue, usual.sampling),
        key,
        asked.max_body,
        asked.timeout,
        origins=origins_of(asked.allow_origin or []),
        isolate_by=checked(asked.isolate_by),
    )
    age_s = None if asked.earlier_age is None else 3600 * asked.earlier_age
    earlier = (asked.earlier_tokens, age_s) if asked.earlier_tokens else None
    memory = bytes_of(asked.prefix_memory, "--prefix-memory")
    return Served(asked, named, settings, earlier, memory)


def policies_of(given: Sequence[str]) -> dict[str, str]:
    """Policies by name; raises DraftpickError for a name that comes twice."""
    from ...serve.scheduler import DEFAULT

    named: dict[str, str] = {}
    for each in given:
        found = re.fullmatch(r"([\w.-]+)=(.+)", each)
        name, place = (found[1], found[2]) if found else (DEFAULT, each)
        if name in named:
            raise DraftpickError(
                f"--policy gives two policies called {name}; name the others: --policy NAME={place}"
            )
        named[name] = place
    return named


def origins_of(given: Sequence[str]) -> tuple[str, ...]:
    """Origins as browsers spell them; raises DraftpickError for what is none."""
    for each in given:
        if each != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", each.lower()):
            raise DraftpickError(
                "--allow-origin is a scheme and a host, with the port where it is not the usual "
                f"one and nothing behind it, for instance https://chat.example, not {each!r}"
            )
    return tuple(each.lower() for each in given)


def bytes_of(size: str | None, option: str) -> int | None:
    """A size such as 2GB or 512MiB; raises DraftpickError for what is none."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if size is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(size))
    except ValidationError:
        raise DraftpickError(
            f"{option} is a size, for instance 2GB or 512MiB, not {size!r}"
        ) from None
