"""Models that bring Python code (`auto_map` in their config): it is never run.

transformers would ask on the terminal whether to run it, and take any `y` on standard input for an
answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...common.errors import DraftpickError


@contextmanager
def refused(folder: Path) -> Iterator[dict[str, bool]]:
    """What transformers' `from_pretrained` has to be given. Raises DraftpickError in the place of
    transformers' own error."""
    try:
        yield {"trust_remote_code": False}
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise DraftpickError(
            f"{folder.name} cannot be loaded without code of its own (auto_map in its "
            "config.json), which draftpick never runs; take a model that transformers knows, or "
            "write a backend for it (CONTRIBUTING.md)"
        ) from error
