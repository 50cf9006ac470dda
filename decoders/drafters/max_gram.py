"""Max-Gram (D16; seed 001, section 4.2): what followed the longest earlier match of the suffix.

The index maps every n-gram of the context to where it ended, and grows by one entry per n for each
new token, so that a proposal looks up at most `longest` keys whatever the context's length. In a
cascade the context may end in drafted tokens; once they fall, their entries are taken back. Where
nothing matches, a bigram table of the target's own outputs answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from ..chance import Chance
from ..errors import DraftpickError
from ..records import Proposal, Sampling

TABLE = "bigram.safetensors"


class MaxGramDrafter:
    """Deterministic: its probabilities are one-hot.

    table: [V] the token that most often follows each, -1 for none; None has no fallback.
    """

    parameters = 0
    context = sys.maxsize

    def __init__(
        self,
        device: torch.device,
        table: list[int] | None = None,
        shortest: int = 2,
        longest: int = 12,
        earliest: bool = False,
    ) -> None:
        if not 1 <= shortest <= longest:
            raise DraftpickError(
                f"Max-Gram needs 1 <= shortest <= longest, not {shortest} and {longest}"
            )
        self._device, self._table = device, table
        self._shortest, self._longest, self._earliest = shortest, longest, earliest
        self.calls = 0
        self.reset([])

    def reset(self, prompt_ids: list[int]) -> None:
        self._ends: dict[tuple[int, ...], list[int]] = {}  # ascending
        self._line: list[int] = []  # the context that is indexed
        self.calls = 0
        self._index(prompt_ids)

    def commit(self, context: list[int]) -> None:
        self._index(context)

    def _index(self, context: list[int]) -> None:
        """Enter every n-gram that ends before the last token: each has a successor, and the suffix
        never matches itself."""
        held = _common(self._line, context)
        first = max(1, held)
        for end in reversed(range(first, len(self._line))):  # what no longer stands
            for key in self._keys(end):
                ends = self._ends[key]
                ends.pop()
                if not ends:
                    del self._ends[key]
        self._line[held:] = context[held:]
        for end in range(first, len(context)):
            for key in self._keys(end):
                self._ends.setdefault(key, []).append(end)

    def _keys(self, end: int) -> Iterator[tuple[int, ...]]:
        """The n-grams that end before position `end`."""
        for n in range(self._shortest, min(self._longest, end) + 1):
            yield tuple(self._line[end - n : end])

    def match(self, context: list[int]) -> int | None:
        """Where the longest known suffix of `context` was followed by a token; None for nowhere."""
        for n in range(min(self._longest, len(context)), self._shortest - 1, -1):
            ends = self._ends.get(tuple(context[-n:]))
            if ends is not None:
                return ends[0 if self._earliest else -1]
        return None

    def guess(self, context: list[int], k: int) -> list[int]:
        """At most k tokens; a copy that reaches the end goes on into what it has just copied."""
        line = context[-self._longest :]
        made: list[int] = []
        source = self.match(line)
        while len(made) < k:
            if source is not None:
                at = source - len(context)
                token = context[source] if at < 0 else made[at]
                source += 1
            else:
                last = made[-1] if made else context[-1]
                token = self._table[last] if self._table is not None else -1
            if token < 0:
                break
            made.append(token)
            if source is None:  # a bigram's token may complete a known n-gram
                source = self.match((line + made)[-self._longest :])
        return made

    def propose(
        self,
        context: list[int],
        k: int,
        sampling: Sampling,
        chance: Chance,
        min_confidence: float = 0.0,
        needs_raw: bool = False,
    ) -> Proposal:
        self.calls += 1
        self._index(context)  # the first round's token comes without a commit
        ids = torch.tensor(self.guess(context, k), dtype=torch.int64, device=self._device)
        return Proposal(ids)


def _common(one: list[int], other: list[int]) -> int:
    """How many leading tokens agree."""
    if other[: len(one)] == one:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def load_table(folder: Path, vocab: int) -> list[int]:
    """The bigram table of a folder; raises DraftpickError where it is for another vocabulary."""
    from safetensors.torch import load_file

    table = load_file(folder / TABLE)["next"].tolist()
    if len(table) != vocab:
        raise DraftpickError(
            f"{folder / TABLE} is for a vocabulary of {len(table)}, the target has {vocab}; make "
            "one with `draftpick align --kind bigram`"
        )
    return [int(token) for token in table]
