"""What the audit says."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from ...tabulated import Tabulated, cell
from .greedy import FAULT, SAME, TIE, UNKNOWN, alike
from .run import UNSTABLE, Audit, Compared
from .sampled import LEVEL, Seeded, TwoSample

SHOWN = 5  # answers that are shown
AROUND = 40  # characters of an answer around the place where it parts


def tabulated(found: Audit) -> list[Tabulated]:
    """Greedy answers by kind, then those that parted, and the sampled ones."""
    rows = []
    for kind in dict.fromkeys(each.request.kind for each in found.compared):
        own = [each for each in found.compared if each.request.kind == kind]
        counts = [
            sum(each.verdict == verdict for each in own)
            for verdict in (SAME, TIE, FAULT, UNKNOWN, UNSTABLE)
        ]
        bad = sum(each.broken for each in own)
        rows.append([kind, f"{len(own)}", *map(str, counts), f"{bad}"])
    heads = ["asked", "answers", "same", "tie", "parted", "unclear", "unstable", "broken"]
    made = [Tabulated("Greedy answers with and without drafts", heads, rows)]
    if parted := _parted(found):
        rows = [
            [
                each.request.name[:24],
                f"{each.parting.at}",
                _gap(each.parting.gap),
                _around(each.plain.text, each.drafted.text),
                _around(each.drafted.text, each.plain.text),
            ]
            for each in parted[:SHOWN]
        ]
        heads = ["request", "at token", "nats", "without drafts", "with drafts"]
        made.append(Tabulated(f"Where answers part ({len(parted)})", heads, rows))
    if found.sampled is not None:
        one = found.sampled
        rows = [["texts", cell(one.p_texts, ".4f")]]
        rows.append(["log-probabilities", cell(one.p_logprobs, ".4f")])
        if one.p_likeliest is not None:
            rows.append(["how often the likeliest token is drawn", f"{one.p_likeliest:.4f}"])
        title = f"Sampled answers: {one.requests} requests, {one.draws} draws of each server"
        made.append(Tabulated(title, ["test of", "p"], rows))
    if found.seeded is not None:
        drawn = found.seeded
        rows = [[f"{drawn.answers}", f"{drawn.differ}", f"{drawn.rounded_at_most:.2g}"]]
        heads = ["answers", "differ", "by rounding at most"]
        made.append(Tabulated("Sampled answers to the same seeds", heads, rows))
    return made


def sentences(found: Audit) -> list[str]:
    """The verdict first."""
    said = [_verdict(found)]
    if len(found.moved):
        said.append(
            "Where answers agree, log-probabilities differ by "
            f"{float(np.median(found.moved)):.2g} nats at the median and "
            f"{float(found.moved.max()):.2g} at most; gaps of up to {found.tie:.2g} nats count as "
            "ties."
        )
    if found.seeded is not None and not found.seeded.differ:
        said.append(
            f"All {found.seeded.answers} sampled answers are the same to the same seeds, token for "
            "token."
        )
    if found.of(TIE):
        said.append(
            f"{len(found.of(TIE))} answers part at a tie, as rounding lets them: what follows such "
            "a place is not compared."
        )
    if found.of(UNKNOWN) and not found.unclear:
        said.append(
            f"{len(found.of(UNKNOWN))} answers part whose servers give no log-probabilities; that "
            "many may be ties."
        )
    if found.of(UNSTABLE):
        said.append(
            f"{len(found.of(UNSTABLE))} answers part where the server without drafts does not "
            "repeat its own answer either."
        )
    if found.sampled is not None and found.sampled.distinct == 0:
        said.append(
            "The sampled answers to each request are all alike, so that they say nothing: the "
            "servers seem to take the same seed every time."
        )
    if found.sampled is not None and found.sampled.p_logprobs is None and found.moved.size:
        said.append(
            "Log-probabilities of sampled answers are missing or differ between the servers, so "
            "that these are judged by their texts alone."
        )
    for kind, reason in found.refused.items():
        said.append(f"Requests of the kind {kind} were not compared: {reason}.")
    return said


def _verdict(found: Audit) -> str:
    if not found.parted:
        said = f"No answer of {len(found.compared)} parts beyond ties."
        if not found.whole:
            return f"{said} None was compared to its end, so that this says nothing."
        return (
            f"{said} {found.whole} were compared to their end: a fault that changes "
            f"{found.rarest:.1%} of the answers or more would have been among them with 95% "
            "confidence."
        )
    reasons = []
    if parted := found.of(FAULT):
        reasons.append(f"{len(parted)} of {len(found.compared)} greedy answers part beyond ties")
    if found.unclear:
        reasons.append(
            f"{len(found.of(UNKNOWN))} greedy answers part whose servers give no "
            "log-probabilities, more than ties explain"
            if any(each.judged for each in found.compared)
            else f"{len(found.of(UNKNOWN))} of {len(found.compared)} greedy answers part, and "
            "without log-probabilities ties cannot be told from faults"
        )
    if found.spoilt:
        reasons.append(f"{len(found.spoilt)} calls or JSON answers are broken with drafts alone")
    if found.sampled is not None and found.sampled.parted:
        reasons.append(f"sampled answers are drawn from another distribution (below {LEVEL:.0%})")
        if found.sampled.p_likeliest is not None and found.sampled.p_likeliest < LEVEL:
            excess = found.sampled.likeliest_excess
            more = "more" if excess > 0 else "less"
            reasons.append(
                f"the likeliest token is drawn {100 * abs(excess):.1f} points {more} "
                "often, against its log-probability, than without drafts"
            )
    if found.shifted:
        reasons.append("log-probabilities differ by more than rounding where answers agree")
    if found.seeded is not None and found.seeded.parted:
        reasons.append(
            f"{found.seeded.differ} of {found.seeded.answers} sampled answers differ to the same "
            "seeds"
        )
    return f"Drafting changes this server's answers: {'; '.join(reasons)}."


def as_json(found: Audit) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "parted": found.parted,
        "answers": len(found.compared),
        "verdicts": {v: len(found.of(v)) for v in (SAME, TIE, FAULT, UNKNOWN, UNSTABLE)},
        "broken": sum(each.broken for each in found.compared),
        "least_share_seen": found.rarest,
        "tie_nats": found.tie,
        "moved_nats": float(np.median(found.moved)) if len(found.moved) else None,
        "partings": [
            {
                "kind": each.request.kind,
                "request": each.request.name,
                "verdict": each.verdict,
                "broken": each.broken,
                "at": each.parting.at,
                "nats": _finite(each.parting.gap),
                "without_drafts": {"text": each.plain.text, "calls": each.plain.calls},
                "with_drafts": {"text": each.drafted.text, "calls": each.drafted.calls},
            }
            for each in found.compared
            if each.verdict != SAME or each.broken
        ],
        "sampled": _with_verdict(found.sampled),
        "seeded": _with_verdict(found.seeded),
        "refused": dict(found.refused),
        "sentences": sentences(found),
    }


def _with_verdict(found: TwoSample | Seeded | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found) | {"parted": found.parted}


def _parted(found: Audit) -> list[Compared]:
    return [each for each in found.compared if each.verdict in (FAULT, UNKNOWN) or each.broken]


def _finite(gap: float | None) -> float | str | None:
    return gap if gap is None or math.isfinite(gap) else "beyond the likeliest"


def _gap(gap: float | None) -> str:
    if gap is None:
        return "-"
    return f"{gap:.2f}" if math.isfinite(gap) else "many"


def _around(text: str, other: str) -> str:
    """The text from where it parts from the other, in one line."""
    at = alike(text, other)
    return " ".join(text[max(0, at - 8) : at + AROUND - 8].split())
