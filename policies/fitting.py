"""Policies by name: how each is trained from a table of rewards."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol

from decoders.common import plugins
from decoders.common.errors import NoSuchName

from .errors import PolicyError
from .fixed import fit_best_fixed, fit_fixed, fit_uniform
from .learners.binned import fit_binned
from .learners.knn import fit_knn
from .learners.logistic import fit_logistic
from .learners.regression import fit_regression
from .learners.reinforce import fit_exact, fit_reinforce
from .records import Fit, Fitted, Policy, RewardTable

if TYPE_CHECKING:
    from rich.table import Table

POLICIES: dict[str, Fit] = {
    "reinforce": fit_reinforce,
    "exact": fit_exact,
    "knn": fit_knn,
    "regression": fit_regression,
    "logistic": fit_logistic,
    "binned": fit_binned,
    "best-fixed": fit_best_fixed,
    "fixed": fit_fixed,
    "uniform": fit_uniform,
}
plugins.watched("policy", POLICIES)

_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


class GuardReport(Protocol):
    """The promise of a policy with a guard of its own; as a string, in one sentence."""

    def tables(self, judged: str, width: int) -> list[Table]:
        """The measurements behind it. judged: on which queries."""

    def as_json(self) -> dict[str, Any]: ...


class OwnGuard:
    """How an algorithm guards its policies itself, so that cross-fitting does not judge them.

    The methods are those of policies that watch their own answers while they serve.
    """

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise PolicyError for options out of range, before a table is read."""

    def prepared(self, table: RewardTable) -> RewardTable:
        """The table as the algorithm reads it. Raises PolicyError where it cannot."""
        return table

    def report(self, policy: Policy, table: RewardTable, seed: int) -> GuardReport | None:
        """The promise, measured on this table; None where answers alone will tell."""
        return None


OWN_GUARDS: dict[str, OwnGuard] = plugins.watched("own guard", {})  # by the names in POLICIES


def check_name(name: str, *others: str) -> None:
    """Raise NoSuchName for an unknown policy.

    others: names that count as known, such as "auto".
    """
    if name not in POLICIES and name not in others:
        plugins.load("policies")
    if name not in POLICIES and name not in others:
        raise NoSuchName("policy", name, [*others, *POLICIES])


def options_of(name: str) -> dict[str, Any]:
    """The options that a policy's fit function takes, with their defaults: its keyword-only
    arguments, and the fields of a dataclass among them."""
    check_name(name)
    found: dict[str, Any] = {}
    for option, default in _keywords(name).items():
        found |= asdict(default) if _is_record(default) else {option: default}
    return found


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise PolicyError for an unknown policy, for an option that it does not take, and for a value
    that is no number, or neither true nor false, where the option's default is."""
    known = options_of(name)
    for option, value in options.items():
        if option not in known:
            raise PolicyError(
                f"the policy {name!r} has no option {option!r}; it takes: "
                f"{', '.join(known) or 'none'}"
            )
        kind, words = _KINDS.get(type(known[option]), (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise PolicyError(f"{option} must be {words}, not {value!r}")


def _is_record(default: Any) -> bool:
    """Whether it is a dataclass, whose fields are options."""
    return is_dataclass(default)


def _keywords(name: str) -> dict[str, Any]:
    parameters = inspect.signature(POLICIES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def fit(
    name: str,
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    **options: Any,
) -> Fitted:
    """Train the named policy on the table; validation is only measured, never chosen by.

    Raises PolicyError for an unknown name or option, and for tables that do not belong together.
    """
    check_options(name, options)
    if validation is not None:
        ours, theirs = (
            (each.arms, each.embedder, each.width, each.feature_names, each.reward_name)
            for each in (table, validation)
        )
        if ours != theirs:
            raise PolicyError(
                "the training and validation tables differ in arms, embedder, width, features or "
                "reward; derive both from the same collection"
            )
    for option, default in _keywords(name).items():
        if _is_record(default):
            given = {f.name: options.pop(f.name) for f in fields(default) if f.name in options}
            options[option] = replace(default, **given)
    return POLICIES[name](table, validation, seed, **options)
