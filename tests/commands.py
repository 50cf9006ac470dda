"""Commands as a user gives them, and what they say: the fixture `draftpick`."""

import json
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Said:
    """What came on standard output and standard error."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Of output that is a JSON text a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """All that was said: one sentence."""
        (line,) = self.err.strip().splitlines()
        assert line.startswith("error: ") and not self.out, self
        return line


class Draftpick(Protocol):
    def __call__(self, *words: object, code: int = 0) -> Said:
        """Run `draftpick WORDS`, which has to end with this exit code."""
