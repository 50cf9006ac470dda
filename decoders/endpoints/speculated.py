"""What a server tells of its own drafts, where it does: vLLM, SGLang and llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class Speculated:
    """What a server says of one answer's drafts.

    drafted, accepted: tokens.
    rounds: passes that verified drafts; None where that is not told.
    per_position: how often the first, the second ... drafted token was accepted; likewise.
    """

    drafted: int
    accepted: int
    rounds: int | None = None
    per_position: tuple[int, ...] | None = None


def speculated(record: Mapping[str, Any], choice: Mapping[str, Any]) -> Speculated | None:
    """Drafted and accepted tokens of a whole answer, or of a stream's event; None where nothing is
    told, or what is told makes no sense: nothing is guessed.

    vLLM has `metrics.speculative_decoding` with --per-request-spec-decode-metrics, SGLang
    `meta_info`, llama.cpp's server `timings`.
    """
    metrics = _of(_of(record, "metrics"), "speculative_decoding")
    if metrics:
        return _sound(
            metrics.get("num_draft_tokens"),
            metrics.get("num_accepted_draft_tokens"),
            metrics.get("num_spec_steps"),
            metrics.get("acceptance_histogram"),
        )
    for told in (_of(choice, "meta_info"), _of(record, "meta_info")):
        if "spec_draft_token_num" in told:
            drafted, accepted = told["spec_draft_token_num"], told.get("spec_accept_token_num")
            return _sound(drafted, accepted, told.get("spec_verify_ct"))
    timings = _of(record, "timings")
    if "draft_n" in timings:
        return _sound(timings["draft_n"], timings.get("draft_n_accepted"))
    return None


def _of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _sound(
    drafted: Any, accepted: Any, rounds: Any = None, histogram: Any = None
) -> Speculated | None:
    """histogram: how many rounds accepted 0, 1, 2 ... tokens."""
    if not (_count(drafted) and _count(accepted) and accepted <= drafted):
        return None
    if not _count(rounds):
        return Speculated(drafted, accepted)
    if not isinstance(histogram, list) or not all(map(_count, histogram)):
        return Speculated(drafted, accepted, rounds)
    at_least = list(accumulate(reversed(histogram)))[::-1]  # rounds with n or more accepted
    per_position = tuple(at_least[1:])
    if sum(histogram) != rounds or sum(per_position) != accepted:
        return Speculated(drafted, accepted, rounds)
    return Speculated(drafted, accepted, rounds, per_position)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0
