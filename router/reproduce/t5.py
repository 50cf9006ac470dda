"""Tables 1, 3 and 4: the T5 family in the place of Flan-T5-XXL, one drafter a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collect.queries import Query
from decoders.arms import AUTOREGRESSIVE

from . import queries
from .records import MEAN, Arms, Claim, Line, Measured, Models, PolicyPlan, Reproduction, Run, Table

FAMILY = Path(__file__).resolve().parents[2] / "benchmarks" / "t5_family"
EN_DE, SUM = "draft-en-de", "draft-sum"
DRAFTED = 4  # tokens a round; the paper's 7 does not suit drafters that cost this much
TASKS = ("translation", "summarization")
GREEDY, SAMPLED = "greedy decoding", "sampling"  # runs, at temperature 0 and 1
SPEED, ACCEPTED, QUALITY = "speedup_vs_ar", "acceptance_rate", "quality"
SMALL = (
    "The target has 16.5 million parameters and each drafter 1.2 million, where the paper has 11 "
    "billion and 60 million: a drafted token costs a far larger share of the target's pass.",
    "Translations are of captions and summaries of short articles, written for this project, in "
    "the place of IWSLT2017 and XSum.",
    "The policy learns from hundreds of queries instead of 400 thousand, in more epochs.",
)


def models(folder: Path = FAMILY) -> Models:
    return Models(
        str(folder / "target"), "float32", 64, folder,
        "make them with `python benchmarks/train_t5_family.py --data DATA --out "
        "benchmarks/t5_family`",
    )  # fmt: skip


def drafters(drafted: int = DRAFTED) -> Arms:
    """Both specialists, with drafts of so many tokens."""
    return {
        name: {"kind": "neural", "drafter": str(FAMILY / folder), "length": {"k": drafted}}
        for name, folder in ((EN_DE, "en-de"), (SUM, "sum"))
    }


def two_tasks(split: queries.Split, limit: int) -> list[Query]:
    return [*queries.translations(split, limit), *queries.articles(split, limit)]


def policy_lines(run: str, name: str) -> tuple[Line, Line]:
    """A policy's two rows."""
    return Line("greedy policy", run, name), Line("dynamic policy", run, f"{name} (dynamic)")


def beats_each(run: str, arms: Sequence[str], way: str) -> Claim:
    """The paper's main one: over both tasks, the policy is faster than each specialist alone."""

    def holds(found: Measured) -> bool:
        ours = found.value(run, way, MEAN)
        return all(ours > found.value(run, arm, MEAN) for arm in arms)

    return Claim(f"{run}: `{way}` is above each drafter alone, mean of the tasks", holds)


def own_task(run: str, arm: str, task: str) -> Claim:
    return Claim(
        f"{run}: `{arm}` accelerates its own task, {task}",
        lambda found: found.value(run, arm, task) > 1,
    )


def other_task(run: str, arm: str, task: str) -> Claim:
    return Claim(
        f"{run}: `{arm}` slows down {task}, which it was not made for",
        lambda found: found.value(run, arm, task) < 1,
    )


def table_1() -> Reproduction:
    """Two specialists, and policies that choose between them by the query alone."""
    chooser = PolicyPlan("policy", (EN_DE, SUM), epochs=EPOCHS)
    lines = (
        Line("T5-Small (draft-en-de)", SAMPLED, EN_DE),
        Line("T5-Small-XSum (draft-sum)", SAMPLED, SUM),
        *policy_lines(SAMPLED, chooser.name),
    )
    greedy = (
        Line("T5-Small (draft-en-de)", GREEDY, EN_DE),
        Line("T5-Small-XSum (draft-sum)", GREEDY, SUM),
        *policy_lines(GREEDY, chooser.name),
    )
    small, xsum, best, drawn = (line.label for line in lines)
    wide = (*TASKS, MEAN)
    titles = ("IWSLT2017 En-De", "XSum", "average")
    both = (SAMPLED, GREEDY)
    return Reproduction(
        name="table-1",
        title="Table 1: choosing between specialists",
        minutes=6,
        models=models(),
        arms=drafters(),
        draw_train=lambda limit: two_tasks("train", limit),
        draw_test=lambda limit: two_tasks("test", limit),
        train=189,
        test=24,
        policies=(chooser,),
        runs=(
            Run(SAMPLED, 1.0, drafters(), (chooser.name,)),
            Run(GREEDY, 0.0, drafters(), (chooser.name,)),
        ),
        tables=(
            Table(
                "Speed-up at temperature 1", SPEED, wide, titles, lines,
                {small: (1.10, 0.99, 1.04), xsum: (0.83, 1.18, 1.01), best: (1.09, 1.17, 1.13),
                 drawn: (1.07, 1.16, 1.11)},
            ),
            Table(
                "Accepted of the drafted tokens at temperature 1", ACCEPTED, TASKS, titles, lines,
                {small: (0.3821, 0.2602), xsum: (0.0875, 0.3829), best: (0.3772, 0.3776),
                 drawn: (0.3664, 0.3734)},
            ),
            Table(
                "Quality at temperature 1 (BLEU, ROUGE-L)", QUALITY, TASKS, titles,
                (Line("autoregressive", SAMPLED, AUTOREGRESSIVE), *lines),
                {"autoregressive": (0.0985, 0.2983), small: (0.0924, 0.2910),
                 xsum: (0.0951, 0.2910), best: (0.0976, 0.2983), drawn: (0.0962, 0.2945)},
            ),
            Table(
                "Speed-up at temperature 0", SPEED, wide, titles, greedy,
                {small: (1.10, 0.97, 1.03), xsum: (0.83, 1.21, 1.02)},
            ),
            Table(
                "Accepted of the drafted tokens at temperature 0", ACCEPTED, TASKS, titles, greedy,
                {small: (0.4168, 0.2821), xsum: (0.0723, 0.4024)},
            ),
        ),
        claims=(
            *(beats_each(run, (EN_DE, SUM), name) for run in both
              for name in (chooser.name, f"{chooser.name} (dynamic)")),
            *(own_task(run, EN_DE, "translation") for run in both),
            *(own_task(run, SUM, "summarization") for run in both),
            *(other_task(run, EN_DE, "summarization") for run in both),
            *(other_task(run, SUM, "translation") for run in both),
        ),
        differs=SMALL,
    )  # fmt: skip


EPOCHS = 30  # three passes over our few queries would hardly move the policy
