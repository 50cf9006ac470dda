"""Two of the other papers' tables on the T5 family: Narasimhan et al., Table 2, and Kim et al.,
Table 1. What is compared are rules to accept drafts, at equal quality."""

from __future__ import annotations

from typing import Any

from decoders.arms import AUTOREGRESSIVE

from . import queries, t5
from .fronts import Fronts, fronts, lead
from .records import Arms, Claim, Column, Interval, Line, Reproduction, Run, Table
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
            lambda found: quicker(fronts(found, SAMPLED, TASK), "opt@", f"{other}@"),
        )

    def better(other: str) -> Claim:
        return Claim(
            f"OPT has more BLEU than {other} within the target's own time",
            lambda found: finer(fronts(found, SAMPLED, TASK), "opt@", f"{other}@"),
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
            lambda found: near(fronts(found, GREEDY, TASK), f"{form}@"),
        )

    return _of_rules(
        "bild",
        "Kim et al., Table 1: BiLD in both forms",
        arms,
        Run(GREEDY, 0.0, arms),
        (faster("printed"), faster("keeping")),
    )


def quicker(arms: Fronts, ours: str, theirs: str) -> list[Interval]:
    """The fastest of each prefix that has the target's own quality."""
    return [lead(arms.fastest(ours), arms.fastest(theirs))]


def finer(arms: Fronts, ours: str, theirs: str) -> list[Interval]:
    """The best of each prefix that is as fast as the target alone."""
    return [lead(arms.best(ours), arms.best(theirs))]


def near(arms: Fronts, ours: str) -> list[Interval]:
    """The fastest within a point of the target's own quality, beside drafts without loss."""
    return [lead(arms.fastest(ours, POINT), arms.speed[LOSSLESS])]


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
