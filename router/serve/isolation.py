"""Whose earlier answers a request may be drafted from, and whose prompts it need not read again:
those who ask are kept apart."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from decoders.common.errors import DraftpickError

from .middleware import bearer

if TYPE_CHECKING:
    from starlette.types import Scope

KEY, NOBODY = "key", "none"  # by the API key; not at all


def checked(isolate_by: str) -> str:
    """`key`, `none` or a header's name, in lower case; raises DraftpickError for what is no name of
    a header."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", isolate_by):
        raise DraftpickError(
            f"--isolate-by is key, none or the name of a header, such as X-User, not {isolate_by!r}"
        )
    return isolate_by.lower()


def user_of(scope: Scope, isolate_by: str) -> str | None:
    """Who asks, as hexadecimal digits that do not tell the key; None where the header is missing,
    so that nothing is drafted from or reused, nor kept.

    isolate_by: as of `checked`. Requests without a key count as those of one user.
    """
    if isolate_by == NOBODY:
        return ""
    shown: bytes | None
    if isolate_by == KEY:
        shown = bearer(scope) or b""
    else:
        named = isolate_by.encode("latin-1")
        given = [value for name, value in scope["headers"] if name.lower() == named]
        shown = b"\n".join(given) if given else None
    return None if shown is None else hashlib.sha256(shown).hexdigest()[:32]
