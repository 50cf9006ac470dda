"""Keys and passwords: as users set them, and kept out of whatever is shown or stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import SecretStr

from .errors import DraftpickError

MASK = "***"
_OPTION = re.compile(r"(--?[\w-]*(?:key|password|secret|token))(=.*)?", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s@]*@")
_USER = re.compile(r"://[^\s/@:?#]+@")  # a token may stand for a user
_KEY = re.compile(
    r"key|token|(?:.*[_.-])?(?:password|passwd|secret|authorization|api[_-]?key"
    r"|(?:access|secret|private|subscription)[_-]?key|(?:access|auth|api|bearer)[_-]?token)",
    re.IGNORECASE,
)
_SHORT = 6  # letters of a key that is too short to be told from other words
_known: set[str] = set()
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
    if len(key) >= _SHORT:
        _known.add(key)
    return SecretStr(key)


def masked(text: str) -> str:
    """The text without the passwords and keys of the addresses in it, nor those that `secret` has
    read, which a server may quote."""
    for key in sorted(_known, key=len, reverse=True):
        text = text.replace(key, MASK)
    text = _USER.sub(f"://{MASK}@", _PASSWORD.sub(rf"\1:{MASK}@", text))
    return _PARAMETER.sub(rf"\1{MASK}", text)


def keys_in(record: object, place: str = "") -> list[str]:
    """The paths of texts in a JSON value whose names are those of keys and passwords."""
    if isinstance(record, dict):
        inside = [(f"{place}.{name}".lstrip("."), name, value) for name, value in record.items()]
        named = [at for at, name, value in inside if _is_key(name, value)]
        return named + [at for at, _, value in inside for at in keys_in(value, at)]
    if isinstance(record, list):
        return [at for number, one in enumerate(record) for at in keys_in(one, f"{place}.{number}")]
    return []


def _is_key(name: object, value: object) -> bool:
    return isinstance(value, str) and bool(value) and _KEY.fullmatch(str(name)) is not None


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
