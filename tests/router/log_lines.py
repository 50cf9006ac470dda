"""Lines of a log, without a model or a router."""

from datetime import UTC, datetime
from typing import Any

from router.logs.record import Asked, LoggedDecision, Result
from router.logs.writer import DecisionLog

__all__ = ["DecisionLog", "decision"]

ASKED = Asked(prompt_tokens=5, max_new_tokens=8, temperature=0.0, top_p=1.0, top_k=0)


def decision(name: str = "r", **named: Any) -> LoggedDecision:
    fields: dict[str, Any] = {
        "time": datetime.now(UTC), "id": name, "target": "t", "policy": "p", "policy_name": "toy",
        "arms_fingerprint": "a", "choice": "drawn", "arm": "wide", "propensity": 0.25,
        "probabilities": {"small": 0.75, "wide": 0.25}, "request": ASKED,
        "outcome": Result(new_tokens=9, rounds=4, drafted=6, accepted=4, wall_s=0.5,
                          tokens_per_s=18.0),
    }  # fmt: skip
    return LoggedDecision(**(fields | named))
