"""Max-Gram (Chen et al., Cascade Speculative Drafting): prompt lookup, which drafts what followed
the longest earlier match of the last tokens.

transformers has prompt lookup as `prompt_lookup_num_tokens` (here k) and
`max_matching_ngram_size` (here `longest`). Beside it this one has a shortest match, goes on into
what it has just copied, and takes the latest match where transformers takes the first.

A token's earlier places are found by one comparison with the whole text, and thinned token by token
to those of longer matches. In a cascade the context may end in drafted tokens; where they are
rejected, the text is cut back. Where nothing matches, a table made from the target's own outputs
answers.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...costs.pass_costs import PassCosts
from ...device_rounds import BEFORE
from ...earlier.prefixes import agreeing
from ...earlier.votes import Draft
from ...protocols import DraftRequest
from ...records import Proposal
from .copying import HOPELESS, CopyChances, Matches, copied, copied_acceptance
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
        self._matches = Matches(shortest, longest, earliest)
        self._stop_below = stop_below if passes is None else HOPELESS
        self._passes, self._chances = passes, chances
        self._source_apart = source_apart
        self.calls = 0
        self._copied = Draft()
        self._source: list[int] = []
        self._line: list[int] = []  # the text that is looked through
        self._known = np.zeros(0, dtype=np.int64)  # the same

    def reset(self, prompt_ids: list[int]) -> None:
        self._source, self.calls = prompt_ids, 0
        self._copied = Draft()
        if self._chances is not None:
            self._chances.reset()
        self._read(prompt_ids)

    def commit(self, context: list[int]) -> None:
        self._read(self._text(context))

    def _text(self, context: list[int]) -> list[int]:
        """All text there is to copy from."""
        return self._source + context[1:] if self._source_apart else context

    def _read(self, text: list[int]) -> None:
        same = agreeing(self._line, text)
        self._line[same:] = new = text[same:]
        self._known = np.concatenate([self._known[:same], np.array(new, dtype=np.int64)])

    def guess(self, context: list[int], k: int, temperature: float = 0.0) -> list[int]:
        """At most k tokens, as many as pay; a copy that reaches the end goes on into what it has
        just copied."""
        made = self.copy(context, k, temperature)
        most = k if self._passes is None else self._passes.best_cut(made.chances)
        return made.ids[:most]

    def copy(self, context: list[int], k: int, temperature: float = 0.0) -> Draft:
        """At most k tokens, whatever passes cost."""
        if self._chances is not None:
            self._chances.temperature = temperature
        acceptance = self._chances or partial(copied_acceptance, temperature=temperature)
        self._copied = copied(
            self._known, self._text(context), k, self._matches, acceptance, self._stop_below,
            self._table,
        )  # fmt: skip
        return self._copied

    def learn(self, written: list[int]) -> None:
        """Learn from what was written where the last copy was made, proposed or not."""
        copied, self._copied = self._copied, Draft()
        if self._chances is not None:
            right = agreeing(copied.ids, written)
            self._chances.observe(copied.matched, right, len(written))

    def round_draft(self) -> Copies | None:
        from .device import Copies

        own = self._matches
        if self._source_apart or own.longest > BEFORE or (self._stop_below and not self._passes):
            return None
        after = None
        if self._table is not None:
            known = self._table.after_one
            after = torch.zeros(1 + max(known, default=0), dtype=torch.int64)
            for token, (follows, _) in known.items():
                after[token] = follows
            after = after.to(self.device)
        by_cost = self._passes is not None
        return Copies(own.shortest, own.longest, own.earliest, after, by_cost)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        self.calls += 1
        self._read(self._text(context))  # the first round's token comes without a commit
        made = self.guess(context, asked.k, asked.sampling.temperature)
        return Proposal(torch.tensor(made, dtype=torch.int64, device=self.device))
