"""The exception of this package: a sentence that says what was wrong and what to do."""

from decoders.common.errors import DraftpickError


class PolicyError(DraftpickError):
    """A mistake about policies that the user can mend; the command line prints it and exits with
    code 2."""


def unknown(kind: str, name: str, known: "list[str] | tuple[str, ...]") -> PolicyError:
    """The error for a name that does not exist; it lists the names that do."""
    return PolicyError(f"unknown {kind} {name!r}; known: {', '.join(known) or 'none'}")
