"""Figure 3 and Tables 11 to 14: how many queries, how many drafted tokens, which temperature."""

from __future__ import annotations

from . import t5
from .held_out import ahead
from .records import Claim, Column, Curve, Interval, Measured, PolicyPlan, Reproduction, Run, Table
from .specialists import DRAWN, POLICY
from .t5 import DRAFTERS, EN_DE, SPEED, SUM

LEARNT_FROM = (4, 8, 16, 32, 64, 128, 192)
LENGTHS = (2, 5, 7, 10)  # tokens drafted a round; the paper has the last three
TEMPERATURES = (0.5, 0.9, 1.0)
CURVE = "Speed-up of the policy by the queries that it learnt from"


def figure_3() -> Reproduction:
    """How soon a policy can tell the tasks apart."""
    plans = tuple(
        PolicyPlan(f"queries-{n}", (EN_DE, SUM), train_size=n, epochs=t5.EPOCHS)
        for n in LEARNT_FROM
    )

    def few_do(found: Measured) -> list[Interval]:
        few, every = found.points[CURVE]["64"], found.points[CURVE][str(LEARNT_FROM[-1])]
        by_costs = few.by_costs - 0.98 * every.by_costs
        return [ahead(few.dynamic, 0.98 * every.dynamic, few.groups, by_costs)]

    return Reproduction(
        name="figure-3",
        title="Figure 3: how many queries a policy needs",
        minutes=6,
        models=t5.models(),
        arms=t5.drafters(),
        draw_train=t5.train_queries,
        draw_test=t5.test_queries,
        train=96,
        test=24,
        policies=plans,
        curves=(
            Curve(
                CURVE,
                "queries",
                {str(plan.train_size): plan.name for plan in plans},
                paper="Fewer than 10,000 examples do as well as all of nearly 400 thousand.",
            ),
        ),
        claims=(
            Claim("a third of the queries gives 98% of the speed that all of them give", few_do),
        ),
        differs=(
            *t5.SMALL,
            "Speed is `modelled`: rounds expected at temperature 1 and costs of passes measured "
            "on this machine.",
        ),
    )


def tables_11_12() -> Reproduction:
    """The number of drafted tokens."""
    runs = tuple(Run(_drafts(k), 1.0, t5.drafters(k), (POLICY,)) for k in LENGTHS)
    none: tuple[float | None, ...] = (None,)
    return _ablation(
        "tables-11-12",
        "Tables 11 and 12: the number of drafted tokens",
        7,
        runs,
        tuple(f"{k} tokens" for k in LENGTHS),
        {
            "T5-Small": (*none, 1.16, 1.19, 1.16),
            "T5-Small-XSum": (*none, 0.80, 0.83, 0.82),
            "greedy policy": (*none, 1.09, 1.09, 1.09),
            "dynamic policy": (*none, 1.06, 1.07, 1.06),
        },
        {
            "T5-Small": (*none, 0.96, 0.97, 0.96),
            "T5-Small-XSum": (*none, 1.19, 1.21, 1.19),
            "greedy policy": (*none, 1.15, 1.17, 1.14),
            "dynamic policy": (*none, 1.15, 1.16, 1.14),
        },
    )


def tables_13_14() -> Reproduction:
    """The temperature."""
    runs = tuple(Run(f"temperature {t:g}", t, t5.drafters(), (POLICY,)) for t in TEMPERATURES)
    return _ablation(
        "tables-13-14",
        "Tables 13 and 14: the temperature",
        5,
        runs,
        tuple(run.name for run in runs),
        {
            "T5-Small": (1.06, 1.09, 1.10),
            "T5-Small-XSum": (0.83, 0.81, 0.83),
            "greedy policy": (1.11, 1.11, 1.09),
            "dynamic policy": (1.07, 1.11, 1.07),
        },
        {
            "T5-Small": (0.98, 0.98, 0.97),
            "T5-Small-XSum": (1.18, 1.19, 1.21),
            "greedy policy": (1.16, 1.18, 1.17),
            "dynamic policy": (1.17, 1.18, 1.16),
        },
    )


def _ablation(
    name: str,
    title: str,
    minutes: int,
    runs: tuple[Run, ...],
    headings: tuple[str, ...],
    *paper: dict[str, tuple[float | None, ...]],
) -> Reproduction:
    """A table a task, a column a run."""
    lines = (*DRAFTERS, *t5.policy_lines(POLICY))
    tables = []
    for task, theirs, figures in zip(t5.TASKS, t5.PAPER_TASKS, paper, strict=True):
        columns = tuple(
            Column(heading, run.name, task, theirs)
            for heading, run in zip(headings, runs, strict=True)
        )
        tables.append(Table(f"Speed-up, {task}", SPEED, columns, lines, figures))
    return Reproduction(
        name=name,
        title=title,
        minutes=minutes,
        models=t5.models(),
        arms=t5.drafters(),
        draw_train=t5.train_queries,
        draw_test=t5.test_queries,
        train=96,
        test=12,
        policies=(PolicyPlan(POLICY, (EN_DE, SUM), epochs=t5.EPOCHS),),
        runs=runs,
        tables=tuple(tables),
        claims=tuple(
            t5.beats_each(run.name, (EN_DE, SUM), way) for run in runs for way in (POLICY, DRAWN)
        ),
        differs=t5.SMALL,
    )


def _drafts(k: int) -> str:
    return f"{k} drafted tokens"
