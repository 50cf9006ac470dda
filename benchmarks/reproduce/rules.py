"""Two of the other papers' tables on the T5 family: Narasimhan et al., Table 2, and Kim et al.,
Table 1. What is compared are rules to accept drafts, at equal quality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoders.arms import AUTOREGRESSIVE

from . import queries, t5
from .records import Arms, Claim, Column, Line, Measured, Reproduction, Run, Table
from .t5 import EN_DE, FAMILY, GREEDY, QUALITY, SAMPLED, SPEED

TASK = "translation"
ALPHAS = (0.1, 0.3, 0.5)
ROLLBACKS = (1.0, 2.0, 4.0)
LOSSLESS = "lossless"
POINT = 0.01  # of BLEU, as Kim et al. allow
DIFFERS = (
    "The target is a T5 of 16.5 million parameters and the drafter one of 1.2 million, trained "
    "together; queries are captions written for this project.",
    "Few thresholds are tried, so that equal quality is the nearest point at or above the target's "
    "own, not a point on a curve.",
)


def speccascade() -> Reproduction:
    """Deferral rules at temperature 1, where OPT and Diff are two rules."""
    rules = ("opt", "diff", "chow", "lossy")
    arms: dict[str, Any] = {LOSSLESS: _draft(4, {"rule": "lossless"})}
    for rule in rules:
        arms |= {f"{rule}@{a:g}": _draft(4, {"rule": rule, "alpha": a}) for a in ALPHAS}

    def faster(other: str) -> Claim:
        return Claim(
            f"OPT is faster than {other} where each has at least the target's own BLEU",
            lambda found: (
                at_quality(found, SAMPLED, "opt@") > at_quality(found, SAMPLED, f"{other}@")
            ),
        )

    def better(other: str) -> Claim:
        return Claim(
            f"OPT has more BLEU than {other} within the target's own time",
            lambda found: in_time(found, SAMPLED, "opt@") > in_time(found, SAMPLED, f"{other}@"),
        )

    return _of_rules(
        "speccascade",
        "Narasimhan et al., Table 2: deferral rules at temperature 1",
        arms,
        Run(SAMPLED, 1.0, arms),
        (*map(faster, rules[1:]), *map(better, rules[1:])),
    )


def bild() -> Reproduction:
    """BiLD as it is printed, in the form that keeps the target's argmax, and without loss."""
    arms: dict[str, Any] = {LOSSLESS: _draft(10, {"rule": "lossless"}, 0.5)}
    for name, keep in (("printed", False), ("keeping", True)):
        arms |= {
            f"{name}@{r:g}": _draft(10, {"rule": "bild", "rollback": r, "keep_argmax": keep}, 0.5)
            for r in ROLLBACKS
        }

    def faster(form: str) -> Claim:
        return Claim(
            f"BiLD, the {form} form, is faster than the same drafts without loss, within one point "
            "of the target's own BLEU",
            lambda found: (
                at_quality(found, GREEDY, f"{form}@", POINT) > found.value(GREEDY, LOSSLESS, TASK)
            ),
        )

    return _of_rules(
        "bild",
        "Kim et al., Table 1: BiLD in both forms",
        arms,
        Run(GREEDY, 0.0, arms),
        (faster("printed"), faster("keeping")),
    )


def at_quality(found: Measured, run: str, prefix: str, loss: float = 0.0) -> float:
    """The highest speed-up of these arms that have the target's own quality, less `loss`, or more.
    Raises KeyError where none has."""
    least = found.value(run, AUTOREGRESSIVE, TASK, QUALITY) - loss
    return _best(
        found, run, prefix, SPEED, lambda arm: found.value(run, arm, TASK, QUALITY) >= least
    )


def in_time(found: Measured, run: str, prefix: str) -> float:
    """The best quality of these arms that are no slower than the target alone. Raises KeyError
    where none is."""
    return _best(found, run, prefix, QUALITY, lambda arm: found.value(run, arm, TASK) >= 1)


def _best(
    found: Measured, run: str, prefix: str, measure: str, kept: Callable[[str], bool]
) -> float:
    arms = [arm for arm in found.summaries[run]["arms"] if arm.startswith(prefix) and kept(arm)]
    if not arms:
        raise KeyError(f"no arm of {prefix} qualifies")
    return max(found.value(run, arm, TASK, measure) for arm in arms)


def _draft(drafted: int, verifier: dict[str, Any], confidence: float = 0.0) -> dict[str, Any]:
    return {
        "kind": "neural",
        "drafter": str(FAMILY / "en-de"),
        "length": {"k": drafted, "min_confidence": confidence},
        "verifier": verifier,
    }


def _of_rules(
    name: str, title: str, arms: Arms, run: Run, claims: tuple[Claim, ...]
) -> Reproduction:
    """One run of all arms; a row each, its speed and its quality."""
    column = (Column(TASK, run.name, TASK),)
    lines = (Line(AUTOREGRESSIVE, AUTOREGRESSIVE), *(Line(arm, arm) for arm in arms))
    return Reproduction(
        name=name,
        title=title,
        minutes=3,
        models=t5.models(),
        arms={EN_DE: arms[LOSSLESS]},
        draw_train=lambda limit: queries.translations("train", limit),
        draw_test=lambda limit: queries.translations("test", limit),
        train=1,
        test=60,
        policies=(),
        runs=(run,),
        tables=(Table("Speed-up", SPEED, column, lines), Table("BLEU", QUALITY, column, lines)),
        claims=claims,
        differs=DIFFERS,
    )
