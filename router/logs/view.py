"""A judgement as tables for a terminal, and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from decoders.common.terminal import PIPE, tables
from policies.ope.estimators import Estimate

from .judge import Judgement

if TYPE_CHECKING:
    from rich.table import Table


def judgement_tables(found: Judgement, width: int = PIPE) -> list[Table]:
    """Who chose, every arm, and where a policy is judged its estimates."""
    versions = [
        [f"{each.name} {each.policy}", each.choice, str(each.rows), *_figures(each.value)]
        for each in found.versions
    ]
    arms = [
        [each.arm, str(each.taken), str(each.failed), _number(each.mean),
         *(_figures(each.always) if each.always else ["-", "-"]), f"{each.effective:.0f}"]
        for each in found.arms
    ]  # fmt: skip
    made = [
        *tables(
            f"Who chose: {found.reward}",
            ["policy", "choice", "rows", "mean", "95% interval"],
            versions,
            width,
        ),
        *tables(
            f"Arms: {found.reward}",
            [
                "arm",
                "taken",
                "failed",
                "mean when taken",
                "always",
                "95% interval",
                "effective rows",
            ],
            arms,
            width,
        ),
    ]
    for way, each in found.comparisons.items():
        rows = [["logged", *_figures(each.logged), "", "", str(each.rows)]] + [
            [name, *_figures(value), *_figures(each.gains[name], sign="+"),
             "-" if name == "dm" else f"{each.effective:.0f}"]
            for name, value in each.values.items()
        ]  # fmt: skip
        made += tables(
            f"Policy {found.policy} ({way}): {found.reward}",
            ["estimator", "value", "95% interval", "gain", "95% interval", "effective rows"],
            rows,
            width,
        )
    return made


def judgement_lines(found: Judgement) -> list[str]:
    """What was counted and what was not, then the warnings."""
    left = [f"  {many} left out: {why}" for why, many in found.excluded.items()]
    return [
        f"{found.used} of {found.rows} decisions count",
        *left,
        *(f"warning: {words}" for words in found.warnings),
    ]


def plain(value: Any) -> Any:
    """What JSON can hold of a record, a dict or a list; a number that is none is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figures(found: Estimate, sign: str = "") -> list[str]:
    """Value and interval."""
    low, high = _number(found.low, sign), _number(found.high, sign)
    return [_number(found.value, sign), "-" if low == high == "-" else f"{low} to {high}"]


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:{sign}.4g}"
