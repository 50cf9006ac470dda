"""Keys and passwords: as users set them, and kept out of whatever is shown or stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import SecretStr

from .errors import DraftpickError

MASK = "***"
_OPTION = re.compile(r"(--?[\w-]*(?:key|password|secret|token))(=.*)?", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s@]*@")
_PARAMETER = re.compile(
    r"([?&][\w.-]*(?:key|password|secret|token|sig|signature)=)[^\s&#'\"]+", re.IGNORECASE
)


def secret(value: str, source: str) -> SecretStr:
    """A key that a header can hold; white space around it, as a line break at the end of a file, is
    not part of it.

    source: where the user set it, for the error, which never shows the key.

    Raises DraftpickError for an empty key, and for one with a space or control character.
    """
    key = value.strip()
    if not key:
        raise DraftpickError(f"the key in {source} is empty; set it, or leave it out")
    if not key.isprintable() or " " in key:
        raise DraftpickError(
            f"the key in {source} holds a space, a line break or another character that no HTTP "
            "header can hold; set it again"
        )
    return SecretStr(key)


def masked(text: str) -> str:
    """The text without the passwords and keys of the addresses in it."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def masked_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without keys: neither the values of options such as --api-key nor passwords in
    addresses."""
    shown: list[str] = []
    for argument in arguments:
        before = _OPTION.fullmatch(shown[-1]) if shown else None
        found = _OPTION.fullmatch(argument)
        if found is not None and found[2] is not None:
            shown.append(f"{found[1]}={MASK}")
        elif before is not None and before[2] is None and not argument.startswith("--"):
            shown.append(MASK)
        else:
            shown.append(masked(argument))
    return shown
