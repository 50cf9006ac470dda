"""What a check says: figures, three sentences and the options to paste."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, nnls

from decoders.arms import recipe

from ...tabulated import Tabulated
from .. import export
from .metrics import ENGINES, Counts
from .timing import Window

VARIED = 1.4  # widest over narrowest steps, from which on a line through them says something
CLEAR = 0.03  # a gain below this share is called none
RARELY = 0.3  # share of the passes


@dataclass(frozen=True)
class Cost:
    """A step: base + token times the tokens that it reads.

    An answer more costs what a token does, and what else each answer takes besides, so that the
    token of a draft costs at most this.
    """

    base: float
    token: float

    def step(self, running: float, drafted: float) -> float:
        """Seconds, of so many answers with so many drafted tokens each."""
        return self.base + self.token * running * (1 + drafted)


@dataclass(frozen=True)
class Findings:
    """What is known of a server.

    running: answers at once that it is judged at.
    counts, rounds: over all windows.
    chances: that the drafted token at each position is accepted; by one rate for all where the
        server does not say.
    """

    engine: str
    url: str
    running: float
    counts: Counts
    rounds: float
    cost: Cost
    chances: tuple[float, ...]
    windows: Sequence[Window]

    @property
    def known(self) -> bool:
        """Whether steps of several widths were seen, so that their cost is known."""
        widths = [each.width for each in self.windows]
        return max(widths) > VARIED * min(widths)

    @property
    def drafts(self) -> bool:
        return self.counts.drafted > 0

    @property
    def drafted(self) -> float:
        """Tokens of a draft."""
        return self.counts.drafted / max(1.0, self.counts.drafts)

    @property
    def acceptance(self) -> float:
        return self.counts.accepted / max(1.0, self.counts.drafted)

    def dearer(self, drafted: float) -> float:
        """A step whose drafts have so many tokens, over one without drafts."""
        return self.cost.step(self.running, drafted) / self.cost.step(self.running, 0)

    @property
    def gain(self) -> float:
        """The speed with its drafts as they are, over that without any."""
        tokens = 1 + self.counts.accepted / self.rounds
        return tokens / self.dearer(self.counts.drafted / self.rounds)

    @property
    def gain_where_made(self) -> float:
        """The same of passes that verify a draft, whose lengths may differ."""
        drafts = max(1.0, self.counts.drafts)
        return (1 + self.counts.accepted / drafts) / self.dearer(self.drafted)

    def gain_of(self, length: int) -> float:
        """The same of a pass with a draft of this length."""
        return (1 + sum(self.chances[:length])) / self.dearer(length)

    @property
    def best(self) -> int:
        """The length of a draft with the greatest gain; 0 where none gains."""
        gains = [1.0, *(self.gain_of(k) for k in range(1, len(self.chances) + 1))]
        return int(np.argmax(gains))

    @property
    def break_even(self) -> int:
        """The longest draft that is no slower than none, of those whose acceptance is known."""
        paying = [k for k in range(1, len(self.chances) + 1) if self.gain_of(k) >= 1]
        return max(paying, default=0)

    def as_json(self) -> dict[str, Any]:
        names = ["drafts", "drafted", "acceptance", "known"]
        names += ["gain", "best", "break_even"] if self.known else []
        return {
            "engine": self.engine,
            "url": self.url,
            "running": self.running,
            **{name: getattr(self, name) for name in names},
            "accepted_per_position": list(self.chances),
            "tokens_a_pass": 1 + self.counts.accepted / self.rounds,
            "dearer": {str(k): self.dearer(k) for k in (1, 2, 4, 8, 16) if self.known},
            "counts": asdict(self.counts) | {"rounds": self.rounds},
            "steps": [
                {"at_once": each.asked, "running": each.running, "width": each.width,
                 "step_s": each.step_s, "tokens": each.counts.written, "rounds": each.rounds,
                 "wall_s": each.wall_s, "drafted": each.counts.drafted,
                 "accepted": each.counts.accepted}
                for each in self.windows
            ],
            "sentences": sentences(self),
            "options": options(self),
        }  # fmt: skip


def findings(engine: str, url: str, running: float, windows: Sequence[Window]) -> Findings:
    """Draw what follows from the windows."""
    counts = sum((each.counts for each in windows), Counts())
    rounds = sum(each.rounds for each in windows)
    return Findings(
        engine, url, running, counts, rounds, cost_of(windows), chances_of(counts), list(windows)
    )


def cost_of(windows: Sequence[Window]) -> Cost:
    """Fit the steps' seconds by their tokens, each window weighed by its passes."""
    weights = np.sqrt([each.rounds for each in windows])
    columns = np.array([[1.0, each.width] for each in windows]) * weights[:, None]
    (base, token), _ = nnls(columns, np.array([each.step_s for each in windows]) * weights)
    return Cost(float(base), float(token))


def chances_of(counts: Counts) -> tuple[float, ...]:
    if not counts.drafts:
        return ()
    if counts.at:
        return tuple(each / counts.drafts for each in counts.at)
    length = max(1, round(counts.drafted / counts.drafts))
    accepted = min(float(length), counts.accepted / counts.drafts)
    # of each token given those before it, so that as many of a draft are accepted
    rate = brentq(lambda rate: sum(_powers(rate, length)) - accepted, 0.0, 1.0)
    return tuple(_powers(rate, length))


def _powers(rate: float, length: int) -> list[float]:
    return [rate**place for place in range(1, length + 1)]


def sentences(found: Findings) -> list[str]:
    """Does it draft, does it pay, what to change."""
    name = ENGINES[found.engine].name
    load = f"With {found.running:g} answer{'s' * (found.running != 1)} at once"
    most = found.dearer(8)
    dearer = f"a pass over 8 drafted tokens takes at most {most:.2f} times one over none"
    if not found.drafts:
        if not found.known:
            second = UNKNOWN
        else:
            second = (
                f"{load} {dearer}, so that a draft of 8 pays for sure where {most - 1:.1f} "
                "of its tokens or more are accepted."
            )
        return [
            f"{name} at {found.url} does not draft: {found.rounds:,.0f} passes wrote a token each.",
            second,
            "Find out by `draftpick headroom --from-logs` which drafts your own traffic would "
            "accept, or try the option below, and check again.",
        ]
    share = found.counts.drafts / found.rounds
    first = (
        f"{name} at {found.url} drafts {found.drafted:.1f} tokens in {min(1.0, share):.0%} of its "
        f"passes, of which {found.acceptance:.0%} are accepted ({_by_position(found)}): "
        f"{1 + found.counts.accepted / found.rounds:.2f} tokens a pass."
    )
    if not found.known:
        return [first, UNKNOWN, "Start it with more slots and check again."]
    bounds = f"drafts as accepted as these pay up to {found.break_even} tokens at least"
    if not found.break_even:
        bounds = "drafts as accepted as these may not pay at any length"
    fast = f"{found.gain:.2f} times as fast or more"
    second = f"{load} {dearer}; {bounds}, and drafting makes it {fast}."
    return [first, second, _change(found)[0]]


UNKNOWN = (
    "What a pass over more tokens costs is not known: the server writes no more answers at once "
    "than one, or its steps are all alike."
)


def _by_position(found: Findings) -> str:
    if not found.counts.at:
        return "it does not say at which positions"
    shown = sorted({0, len(found.chances) // 2, len(found.chances) - 1})
    return ", ".join(f"token {place + 1}: {found.chances[place]:.0%}" for place in shown)


def _change(found: Findings) -> tuple[str, int | None]:
    """What to do, and the length of drafts to set, 0 for none and None for that which is."""
    best, share = found.best, found.counts.drafts / found.rounds
    if best == 0:
        return (
            "Try it without drafts, or with a drafter that is accepted more often, and let "
            "`draftpick compare` say which is faster."
        ), 0
    better = found.gain_of(best) / found.gain_where_made
    if better > 1 + CLEAR:
        tokens = f"{best} token{'s' * (best > 1)}"
        change = f"Try drafts of {tokens}: by these costs {better - 1:.0%} more speed where made."
        return change, best
    if best == len(found.chances) and found.chances[-1] > 0.5 and share > RARELY:
        longer = "Try longer drafts: even their last token is accepted more often than not."
        return longer, 2 * best
    if share < RARELY:
        return (
            "Leave the length; drafts are rare, and `draftpick headroom --from-logs` says what "
            "other ways to draft would add."
        ), None
    return "Leave it as it is: another length would hardly be faster.", None


def options(found: Findings) -> list[str]:
    """What to paste, for this engine; nothing where nothing is to change."""
    if not found.drafts:
        return _start(found.engine)
    if not found.known:
        return []
    _, length = _change(found)
    if length is None:
        return []
    if length == 0:
        return OFF[found.engine]
    return [each.format(k=length, more=length + 1) for each in LENGTHS[found.engine]]


def _start(engine: str) -> list[str]:
    """Copies of up to 8 tokens, in the engine's words."""
    if engine == "draftpick":
        return ['"model": "hybrid" in requests']
    copies = recipe(name="copies", kind="max_gram", shortest=8, longest=16, length={"k": 8})
    return [shlex.join(export.ENGINES[engine].exported(copies).options)]


OFF = {
    "vllm": ["leave out --speculative-config"],
    "sglang": ["leave out --speculative-algorithm"],
    "llama.cpp": ["--spec-type none"],
    "draftpick": ['"model": "autoregressive" in requests'],
}
LENGTHS = {
    "vllm": ['"num_speculative_tokens": {k} in --speculative-config'],
    "sglang": ["--speculative-num-steps {k} --speculative-num-draft-tokens {more}"],
    "llama.cpp": [
        "--spec-draft-n-max {k} (a draft model)",
        "--spec-ngram-simple-size-m {k}, or that of its --spec-type (n-grams)",
    ],
    "draftpick": ["length: {{k: {k}}} of the arm, in the file of --config"],
}


def tabulated(found: Findings) -> list[Tabulated]:
    """Steps by answers at once, and acceptance by position."""
    rows = []
    for asked in sorted({each.asked for each in found.windows}):
        some = [each for each in found.windows if each.asked == asked]
        rounds = sum(each.rounds for each in some)
        step_s = sum(each.decode_s for each in some) / rounds
        tokens = sum(each.counts.written for each in some)
        wall_s = sum(each.wall_s for each in some)
        drafted = sum(each.counts.drafted for each in some) / rounds
        cells = f"{1000 * step_s:.1f}", f"{drafted:.1f}", f"{tokens / wall_s:.1f}"
        rows.append([f"{asked}", *cells])
    heads = ["at once", "ms a pass", "drafted a pass", "tokens/s, all"]
    tables = [Tabulated("A minute of answers", heads, rows)]
    if found.counts.at and found.known:
        rows = [
            [f"{place + 1}", f"{chance:.0%}", f"{found.gain_of(place + 1):.2f}"]
            for place, chance in enumerate(found.chances[:16])
        ]
        title = f"Drafts by length, {found.running:g} at once"
        heads = ["length", "last token accepted", "speed over none"]
        tables.append(Tabulated(title, heads, rows))
    return tables
