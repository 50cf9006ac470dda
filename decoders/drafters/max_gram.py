"""Max-Gram (D16; seed 001, section 4.2): what followed the longest earlier match of the suffix.

The index maps every n-gram of the context to where it last (or first) ended, and grows by one entry
per n for each new token, so that a proposal looks up at most `longest` keys whatever the context's
length. Where nothing matches, a bigram table of the target's own outputs answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ..chance import Chance
from ..errors import DraftpickError
from ..records import Proposal, Sampling

TABLE = "bigram.safetensors"


class MaxGramDrafter:
    """Deterministic: its probabilities are one-hot.

    table: [V] the token that most often follows each, -1 for none; None has no fallback.
    source_apart: the context is an encoder-decoder's, a start token and the answer; matches are
    looked for in the source and the answer, one after the other.
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
        source_apart: bool = False,
    ) -> None:
        if not 1 <= shortest <= longest:
            raise DraftpickError(
                f"Max-Gram needs 1 <= shortest <= longest, not {shortest} and {longest}"
            )
        self._device, self._table = device, table
        self._shortest, self._longest, self._earliest = shortest, longest, earliest
        self._source_apart = source_apart
        self.calls = 0
        self.reset([])

    def reset(self, prompt_ids: list[int]) -> None:
        self._source = prompt_ids
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self.calls = 0
        self._index(prompt_ids)

    def commit(self, context: list[int]) -> None:
        self._index(self._text(context))

    def _text(self, context: list[int]) -> list[int]:
        """All text there is to copy from."""
        return self._source + context[1:] if self._source_apart else context

    def _index(self, context: list[int]) -> None:
        """Enter every n-gram that ends before the last token: each has a successor, and the suffix
        never matches itself."""
        for end in range(max(1, self._indexed), len(context)):
            for n in range(self._shortest, min(self._longest, end) + 1):
                key = tuple(context[end - n : end])
                if not self._earliest or key not in self._ends:
                    self._ends[key] = end
        self._indexed = max(self._indexed, len(context))

    def match(self, context: list[int]) -> int | None:
        """Where the longest known suffix of `context` was followed by a token; None for nowhere."""
        for n in range(min(self._longest, len(context)), self._shortest - 1, -1):
            found = self._ends.get(tuple(context[-n:]))
            if found is not None:
                return found
        return None

    def guess(self, context: list[int], k: int) -> list[int]:
        """At most k tokens; a copy that reaches the end goes on into what it has just copied."""
        context = self._text(context)
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
    ) -> Proposal:
        self.calls += 1
        self._index(self._text(context))  # the first round's token comes without a commit
        ids = torch.tensor(self.guess(context, k), dtype=torch.int64, device=self._device)
        return Proposal(ids)


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
