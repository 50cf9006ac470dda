"""Max-Gram (Chen et al., Cascade Speculative Drafting): prompt lookup, which drafts what followed
the longest earlier match of the last tokens.

transformers has prompt lookup as `prompt_lookup_num_tokens` (here k) and
`max_matching_ngram_size` (here `longest`). Beside it this one has a shortest match, goes on into
what it has just copied, and takes the latest match where transformers takes the first.

The index maps every n-gram of the context to where it ended, and grows by one entry per n for each
new token, so that a proposal looks up at most `longest` keys whatever the context's length. In a
cascade the context may end in drafted tokens; when they are rejected, their entries are removed.
Where nothing matches, a table made from the target's own outputs answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ...costs.pass_costs import PassCosts
from ...device_rounds import BEFORE
from ...earlier.prefixes import agreeing
from ...earlier.votes import Draft
from ...protocols import DraftRequest
from ...records import Proposal
from .copy_chances import HOPELESS, CopyChances, copied_acceptance
from .next_token_table import NextTokenTable

if TYPE_CHECKING:
    from .device import Copies


class MaxGramDrafter:
    """Deterministic: its probabilities are one-hot.

    table: asked where nothing matches; None has no fallback.
    shortest, longest: tokens of a match.
    earliest: copy from the first match instead of the latest.
    stop_below: end a draft before its chance of being accepted whole, by match lengths and the
        table's shares, is below this; 0 never ends it early.
    source_apart: the context is an encoder-decoder's, a start token and the answer; matches are
        looked for in the source and the answer, one after the other.
    passes: what the target's passes cost; with them the draft ends where it pays best, and
        stop_below is not used.
    chances: that copied tokens are accepted, learnt within the answer; None takes those over all
        answers.
    """

    parameters = 0
    context = sys.maxsize

    def __init__(
        self,
        device: torch.device,
        table: NextTokenTable | None = None,
        shortest: int = 2,
        longest: int = 12,
        earliest: bool = False,
        stop_below: float = 0.0,
        source_apart: bool = False,
        passes: PassCosts | None = None,
        chances: CopyChances | None = None,
    ) -> None:
        self.device, self._table = device, table
        self._shortest, self._longest, self._earliest = shortest, longest, earliest
        self._stop_below = stop_below if passes is None else HOPELESS
        self._passes, self._chances = passes, chances
        self._acceptance = copied_acceptance if chances is None else chances
        self._source_apart = source_apart
        self.calls = 0
        self._copied = Draft()
        self._source: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # ascending
        self._line: list[int] = []  # the text that is indexed

    def reset(self, prompt_ids: list[int]) -> None:
        if prompt_ids != self._source:  # of the same prompt only what followed it is forgotten
            self._ends, self._line = {}, []
        self._source = prompt_ids
        self.calls = 0
        self._copied = Draft()
        if self._chances is not None:
            self._chances.reset()
        self._index(prompt_ids)

    def commit(self, context: list[int]) -> None:
        self._index(self._text(context))

    def _text(self, context: list[int]) -> list[int]:
        """All text there is to copy from."""
        return self._source + context[1:] if self._source_apart else context

    def _index(self, context: list[int]) -> None:
        """Enter every n-gram that ends before the last token: each has a successor, and the suffix
        never matches itself."""
        same = agreeing(self._line, context)
        first = max(1, same)
        for end in reversed(range(first, len(self._line))):  # what was rejected
            for key in self._keys(end):
                ends = self._ends[key]
                ends.pop()
                if not ends:
                    del self._ends[key]
        self._line[same:] = context[same:]
        for end in range(first, len(context)):
            for key in self._keys(end):
                self._ends.setdefault(key, []).append(end)

    def _keys(self, end: int) -> Iterator[tuple[int, ...]]:
        """The n-grams that end before position `end`."""
        for n in range(self._shortest, min(self._longest, end) + 1):
            yield tuple(self._line[end - n : end])

    def match(self, line: list[int]) -> tuple[int, int] | None:
        """Place where the longest known suffix of `line` was followed by a token, and how long it
        is."""
        for n in range(min(self._longest, len(line)), self._shortest - 1, -1):
            ends = self._ends.get(tuple(line[-n:]))
            if ends is not None:
                return ends[0 if self._earliest else -1], n
        return None

    def guess(self, context: list[int], k: int) -> list[int]:
        """At most k tokens, as many as pay; a copy that reaches the end goes on into what it has
        just copied."""
        made = self.copy(context, k)
        most = k if self._passes is None else self._passes.best_cut(made.chances)
        return made.ids[:most]

    def copy(self, context: list[int], k: int, temperature: float = 0.0) -> Draft:
        """Copy at most k tokens.

        Where k is 3, the context [1, 2, 3, 4, 2, 3] gives [4, 2, 3]: the last two tokens, 2 and 3,
        came before, and were followed by 4, 2, 3.
        """
        context = self._text(context)
        line = context[-self._longest :]
        self._copied = made = Draft()
        if self._chances is not None:
            self._chances.temperature = temperature
        copying = self.match(line)
        chance = 1.0
        while len(made.ids) < k:
            matched = 0
            if copying is not None:
                source, matched = copying
                at = source - len(context)
                token = context[source] if at < 0 else made.ids[at]
                share = self._acceptance(matched)
                copying = source + 1, matched + 1
            else:
                found = self._table.next(line + made.ids) if self._table is not None else None
                if found is None:
                    break
                token, share = found
            chance *= share
            if chance < self._stop_below:
                break
            made.ids.append(token)
            made.chances.append(chance)
            made.matched.append(matched)
            if copying is None:  # the table's token may complete a known n-gram
                copying = self.match((line + made.ids)[-self._longest :])
        return made

    def learn(self, written: list[int]) -> None:
        copied, self._copied = self._copied, Draft()
        if self._chances is not None:
            right = agreeing(copied.ids, written)
            self._chances.observe(copied.matched, right, len(written))

    def round_draft(self) -> Copies | None:
        from .device import Copies

        if self._source_apart or self._longest > BEFORE or (self._stop_below and not self._passes):
            return None
        after = None
        if self._table is not None:
            known = self._table.after_one
            after = torch.zeros(1 + max(known, default=0), dtype=torch.int64)
            for token, (follows, _) in known.items():
                after[token] = follows
            after = after.to(self.device)
        by_cost = self._passes is not None
        return Copies(self._shortest, self._longest, self._earliest, after, by_cost)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.calls += 1
        self._index(self._text(context))  # the first round's token comes without a commit
        ids = torch.tensor(self.guess(context, asked.k), dtype=torch.int64, device=self.device)
        return Proposal(ids)
