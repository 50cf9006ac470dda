"""The exception of this package: a sentence that says what was wrong and what to do."""

from decoders.common.errors import DraftpickError


class PolicyError(DraftpickError):
    """A mistake about policies that the user can mend; the command line prints it and exits with
    code 2."""
