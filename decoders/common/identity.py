"""What a target or a space of embeddings is, whatever it is called: weights are the identity, names
are for people."""

from __future__ import annotations

import re

_HASHED = re.compile(
    r"(?P<name>.+)@(?P<hash>[0-9a-f]{6,64}(?:\+[0-9a-f]{8})?)(?P<rest>/.*)?", re.DOTALL
)


def split(known: str) -> tuple[str, str, str]:
    """The name, the hash and what follows it of `NAME@HASH` or `NAME@HASH/PRECISION`; a hash of ""
    where there is none. A chat template given in place of the model's own is a part of the hash."""
    found = _HASHED.fullmatch(known)
    return (found["name"], found["hash"], found["rest"] or "") if found else (known, "", "")


def comparable(value: object) -> object:
    """A setting as it is compared with another: of a name, its identity alone."""
    return identity(value) if isinstance(value, str) else value


def identity(known: str) -> str:
    """Without the name, where there is a hash to go by; the kind of an embedder, `KIND:...@HASH`,
    stays."""
    name, digest, rest = split(known)
    if not digest:
        return known
    kind, colon, _ = name.partition(":")
    return f"{kind if colon else ''}@{digest}{rest}"
