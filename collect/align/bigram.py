"""Max-Gram's fallback: what most often follows each token, or each two, in the target's answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from decoders.methods.max_gram.next_token_table import NextTokenTable

from .calibration import Example

K = TypeVar("K", bound=Hashable)
SEEN = 3  # a pair enters the table once its most frequent successor was seen so often
DOUBT = 2  # added to every total, so that what was seen once is not held certain


def successors(examples: Sequence[Example]) -> NextTokenTable:
    """Counts over the answers of `examples`."""
    one: dict[int, Counter[int]] = defaultdict(Counter)
    two: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for example in examples:
        answer = example.ids[example.start :].tolist()
        for at in range(1, len(answer)):
            one[answer[at - 1]][answer[at]] += 1
            if at > 1:
                two[answer[at - 2], answer[at - 1]][answer[at]] += 1
    return NextTokenTable(_commonest(one, 1), _commonest(two, SEEN))


def _commonest(counts: Mapping[K, Counter[int]], least: int) -> dict[K, tuple[int, float]]:
    table = {}
    for key, after in counts.items():
        token, times = after.most_common(1)[0]
        if times >= least:
            table[key] = token, times / (after.total() + DOUBT)
    return table


def acceptance(examples: Sequence[Example], table: NextTokenTable) -> dict[str, float]:
    """Share of held-out answer tokens that the table predicts, per task and `overall`."""
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for example in examples:
        answer = example.ids[example.start :].tolist()
        hits = 0
        for at in range(1, len(answer)):
            found = table.next(answer[:at][-2:])
            hits += found is not None and found[0] == answer[at]
        for name in (example.task, "overall"):
            right[name] += hits
            total[name] += max(0, len(answer) - 1)
    return {name: right[name] / max(1, total[name]) for name in sorted(total)}
