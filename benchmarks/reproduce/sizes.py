"""Table 2 and Figure 2: drafters of several sizes on one task, and the weight of their cost.

The larger drafters are the target's own first layers, read by its own norm and head.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import queries, t5
from .draws import margin
from .held_out import ahead
from .records import (
    Arms,
    Claim,
    Column,
    Curve,
    Interval,
    Line,
    Measured,
    PolicyPlan,
    Reproduction,
    Run,
    Table,
)
from .t5 import BASE, EN_DE, SAMPLED, SPEED, SUM

TASK = "summarization"
ONE, TWO = "exit-1", "exit-2"  # of the target's three decoder layers
ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
REWARD = "parameter-ratio"
CURVE = "Speed-up of the dynamic policy by alpha"
DIFFERS = (
    *t5.SMALL,
    "The family has drafters of one size only. In the place of Flan-T5-Small and Flan-T5-Base are "
    "the target's first one and two decoder layers, which nobody trained to draft.",
)


def arms() -> Arms:
    exits: Mapping[str, Mapping[str, object]] = {
        name: {"kind": "early_exit", "layer": layer, "length": {"k": t5.DRAFTED}}
        for name, layer in ((ONE, 1), (TWO, 2))
    }
    return {**t5.drafters(), **exits}


def table_2() -> Reproduction:
    """Each drafter alone: what it costs and how well it is aligned decide together."""
    lines = (
        BASE,
        Line("T5-Small", EN_DE),
        Line("T5-Small-XSum", SUM),
        Line("Flan-T5-Small", ONE),
        Line("Flan-T5-Base", TWO),
    )

    def aligned_is_best(found: Measured) -> list[Interval]:
        return [margin(found, SAMPLED, SUM, other, TASK) for other in (EN_DE, ONE, TWO)]

    return Reproduction(
        name="table-2",
        title="Table 2: drafters of several sizes",
        minutes=3,
        models=t5.models(),
        arms=arms(),
        draw_train=lambda limit: queries.articles("train", limit),
        draw_test=lambda limit: queries.articles("test", limit),
        train=1,
        test=30,
        policies=(),
        runs=(Run(SAMPLED, 1.0, arms()),),
        tables=(
            Table(
                "Speed-up on summaries at temperature 1",
                SPEED,
                (Column(TASK, SAMPLED, TASK, "XSum"),),
                lines,
                {
                    "auto-regressive": (1.00,),
                    "T5-Small": (0.97,),
                    "T5-Small-XSum": (1.21,),
                    "Flan-T5-Small": (1.09,),
                    "Flan-T5-Base": (1.00,),
                },
            ),
        ),
        claims=(
            Claim("the drafter made for the task is the fastest, though not the largest",
                  aligned_is_best),
            t5.accelerates(SAMPLED, SUM, TASK),
        ),
        differs=DIFFERS,
    )  # fmt: skip


def figure_2() -> Reproduction:
    """The dynamic policy's speed and choices as alpha goes from cost alone to similarity alone."""
    names = (EN_DE, SUM, ONE, TWO)
    plans = tuple(
        PolicyPlan(f"alpha-{alpha:g}", names, alpha, REWARD, epochs=t5.EPOCHS) for alpha in ALPHAS
    )

    def smaller(found: Measured, ours: float, theirs: float) -> list[Interval]:
        """How much oftener one alpha takes the two smaller drafters than another."""
        both = [found.points[CURVE][f"{alpha:g}"] for alpha in (ours, theirs)]
        mine, other = [point.shares[EN_DE] + point.shares[SUM] for point in both]
        return [ahead(mine, other, both[0].groups)]

    return Reproduction(
        name="figure-2",
        title="Figure 2: similarity against cost",
        minutes=6,
        models=t5.models(),
        arms=arms(),
        draw_train=lambda limit: queries.articles("train", limit),
        draw_test=lambda limit: queries.articles("test", limit),
        train=96,
        test=30,
        policies=plans,
        curves=(
            Curve(
                CURVE,
                "alpha",
                {f"{plan.alpha:g}": plan.name for plan in plans},
                paper="As alpha grows the policy takes the smallest drafter more often, says the "
                "text; by its own formula (2) alpha = 1 is similarity alone.",
            ),
        ),
        claims=(
            Claim(
                "by formula (2): cost alone (alpha = 0) takes the smaller drafters more often than "
                "similarity alone (alpha = 1)",
                lambda found: smaller(found, 0.0, 1.0),
            ),
            Claim(
                "by the text: alpha = 1 takes the smaller drafters more often than alpha = 0",
                lambda found: smaller(found, 1.0, 0.0),
            ),
        ),
        differs=(
            *DIFFERS,
            f"The reward is `{REWARD}`: the paper's cost, 1 - exp(P) / exp(P_max) in billions, is "
            "0.00 to 0.01 for all of these drafters.",
            "Speed is `modelled`: rounds expected at temperature 1 and costs of passes measured "
            "on this machine.",
        ),
    )
