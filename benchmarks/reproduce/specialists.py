"""Tables 1, 3 and 4: policies that choose between two specialists, and plain decoding."""

from __future__ import annotations

from collect.queries import Query
from decoders.arms import AUTOREGRESSIVE

from . import queries, t5
from .records import Column, PolicyPlan, Reproduction, Run, Table
from .t5 import ACCEPTED, BASE, DRAFTERS, EN_DE, GREEDY, QUALITY, SAMPLED, SPEED, SUM

POLICY = "policy"
DRAWN = f"{POLICY} (dynamic)"
MATHS = "math"


def table_1() -> Reproduction:
    """Two specialists, and policies that choose between them by the query alone."""
    lines = (*DRAFTERS, *t5.policy_lines(POLICY))
    runs = (SAMPLED, GREEDY)
    sampled, greedy = (t5.task_columns(run, mean=True) for run in runs)
    return Reproduction(
        name="table-1",
        title="Table 1: choosing between specialists",
        minutes=8,
        models=t5.models(),
        arms=t5.drafters(),
        draw_train=t5.train_queries,
        draw_test=t5.test_queries,
        train=96,
        test=24,
        policies=(PolicyPlan(POLICY, (EN_DE, SUM), epochs=t5.EPOCHS),),
        runs=(
            Run(SAMPLED, 1.0, t5.drafters(), (POLICY,)),
            Run(GREEDY, 0.0, t5.drafters(), (POLICY,)),
        ),
        tables=(
            Table(
                "Speed-up at temperature 1",
                SPEED,
                sampled,
                lines,
                {
                    "T5-Small": (1.10, 0.99, 1.04),
                    "T5-Small-XSum": (0.83, 1.18, 1.01),
                    "greedy policy": (1.09, 1.17, 1.13),
                    "dynamic policy": (1.07, 1.16, 1.11),
                },
            ),
            Table(
                "Accepted of the drafted tokens at temperature 1",
                ACCEPTED,
                sampled[:2],
                lines,
                {
                    "T5-Small": (0.3821, 0.2602),
                    "T5-Small-XSum": (0.0875, 0.3829),
                    "greedy policy": (0.3772, 0.3776),
                    "dynamic policy": (0.3664, 0.3734),
                },
            ),
            Table(
                "Quality at temperature 1 (BLEU, ROUGE-L)",
                QUALITY,
                sampled[:2],
                (BASE, *lines),
                {
                    "auto-regressive": (0.0985, 0.2983),
                    "T5-Small": (0.0924, 0.2910),
                    "T5-Small-XSum": (0.0951, 0.2910),
                    "greedy policy": (0.0976, 0.2983),
                    "dynamic policy": (0.0962, 0.2945),
                },
            ),
            Table(
                "Speed-up at temperature 0",
                SPEED,
                greedy,
                lines,
                {"T5-Small": (1.10, 0.97, 1.03), "T5-Small-XSum": (0.83, 1.21, 1.02)},
            ),
            Table(
                "Accepted of the drafted tokens at temperature 0",
                ACCEPTED,
                greedy[:2],
                lines,
                {"T5-Small": (0.4168, 0.2821), "T5-Small-XSum": (0.0723, 0.4024)},
            ),
        ),
        claims=(
            *(t5.beats_each(run, (EN_DE, SUM), way) for run in runs for way in (POLICY, DRAWN)),
            *(t5.accelerates(run, EN_DE, "translation") for run in runs),
            *(t5.accelerates(run, SUM, "summarization") for run in runs),
            *(t5.slows_down(run, EN_DE, "summarization") for run in runs),
            *(t5.slows_down(run, SUM, "translation") for run in runs),
        ),
        differs=t5.SMALL,
    )


def table_3() -> Reproduction:
    """As Table 1, with plain decoding among what is chosen from."""
    columns = t5.task_columns(SAMPLED, mean=True)
    return Reproduction(
        name="table-3",
        title="Table 3: plain decoding as an option",
        minutes=7,
        models=t5.models(),
        arms={AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE}, **t5.drafters()},
        draw_train=t5.train_queries,
        draw_test=t5.test_queries,
        train=96,
        test=24,
        policies=(with_plain(),),
        runs=(Run(SAMPLED, 1.0, t5.drafters(), (POLICY,)),),
        tables=(
            Table(
                "Speed-up at temperature 1, plain decoding an option",
                SPEED,
                columns,
                (*DRAFTERS, *t5.policy_lines(POLICY)),
                {"greedy policy": (1.09, 1.17, None), "dynamic policy": (1.07, 1.16, None)},
            ),
            Table(
                "Quality (BLEU, ROUGE-L)",
                QUALITY,
                columns[:2],
                (BASE, *t5.policy_lines(POLICY)),
                {"greedy policy": (0.0982, 0.3002), "dynamic policy": (0.0976, 0.2953)},
            ),
        ),
        claims=tuple(t5.beats_each(SAMPLED, (EN_DE, SUM), way) for way in (POLICY, DRAWN)),
        differs=t5.SMALL,
    )


def table_4() -> Reproduction:
    """With word problems, which neither drafter can do: the policy should not draft there."""
    column = (Column(MATHS, SAMPLED, MATHS, "GSM8K"),)
    lines = (BASE, *DRAFTERS, *t5.policy_lines(POLICY))
    return Reproduction(
        name="table-4",
        title="Table 4: a task that no drafter suits",
        minutes=7,
        models=t5.models(),
        arms={AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE}, **t5.drafters()},
        draw_train=lambda limit: _three("train", limit),
        draw_test=lambda limit: _three("test", limit),
        train=44,
        test=12,
        policies=(with_plain(),),
        runs=(Run(SAMPLED, 1.0, t5.drafters(), (POLICY,), tasks=(MATHS,)),),
        tables=(
            Table(
                "Speed-up on word problems at temperature 1",
                SPEED,
                column,
                lines,
                {
                    "auto-regressive": (1.00,),
                    "T5-Small": (0.78,),
                    "T5-Small-XSum": (0.74,),
                    "greedy policy": (0.95,),
                    "dynamic policy": (0.95,),
                },
            ),
            Table(
                "Exact match",
                QUALITY,
                column,
                lines,
                {
                    "auto-regressive": (0.1067,),
                    "T5-Small": (0.1099,),
                    "T5-Small-XSum": (0.1009,),
                    "greedy policy": (0.1064,),
                    "dynamic policy": (0.1038,),
                },
            ),
        ),
        claims=(
            *(t5.slows_down(SAMPLED, arm, MATHS) for arm in (EN_DE, SUM)),
            *(t5.keeps(SAMPLED, way, AUTOREGRESSIVE, MATHS, 0.9) for way in (POLICY, DRAWN)),
        ),
        differs=(
            *t5.SMALL,
            "The target cannot do word problems either: it was never trained on any.",
        ),
    )


def with_plain() -> PolicyPlan:
    """The paper's alpha where plain decoding is an option (section 3.2)."""
    return PolicyPlan(POLICY, (AUTOREGRESSIVE, EN_DE, SUM), alpha=0.5, epochs=t5.EPOCHS)


def _three(split: queries.Split, limit: int) -> list[Query]:
    draw = t5.train_queries if split == "train" else t5.test_queries
    return [*draw(limit), *queries.word_problems(split, limit)]
