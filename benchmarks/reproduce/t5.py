"""The T5 family in the place of Flan-T5-XXL: its models, its drafters, and what tables share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collect.queries import Query
from decoders.arms import AUTOREGRESSIVE

from . import queries
from .draws import margin
from .records import MEAN, Arms, Claim, Column, Interval, Line, Measured, Models

FAMILY = Path(__file__).resolve().parents[1] / "t5_family"
EN_DE, SUM = "draft-en-de", "draft-sum"
DRAFTED = 4  # tokens a round; the paper's 7 does not suit drafters that cost this much
EPOCHS = 30  # three passes over a few hundred queries would hardly move the policy
TASKS = ("translation", "summarization")
PAPER_TASKS = ("IWSLT2017 En-De", "XSum")
GREEDY, SAMPLED = "greedy decoding", "sampling"  # runs, at temperature 0 and 1
SPEED, ACCEPTED, QUALITY = "speedup_vs_ar", "acceptance_rate", "quality"
BASE = Line("auto-regressive", AUTOREGRESSIVE)
DRAFTERS = (Line("T5-Small", EN_DE), Line("T5-Small-XSum", SUM))
SMALL = (
    "The target has 16.5 million parameters and each drafter 1.2 million, where the paper has 11 "
    "billion and 60 million: a drafted token costs a far larger share of the target's pass. "
    f"Therefore {DRAFTED} tokens are drafted a round, not 7, where nothing else is said.",
    "Translations are of captions, summaries of short articles and abstracts, written for this "
    "project, in the place of IWSLT2017 and XSum. `draft-en-de` is in the place of T5-Small, "
    "`draft-sum` in that of T5-Small-XSum.",
    f"The policy learns from hundreds of queries in {EPOCHS} epochs, instead of from 400 thousand "
    "in three.",
)


def models(folder: Path = FAMILY) -> Models:
    return Models(
        target=str(folder / "target"),
        dtype="float32",
        max_new_tokens=48,
        family=folder,
        make="make them with `python benchmarks/train_t5_family.py --data DATA --out "
        "benchmarks/t5_family`",
    )


def drafters(drafted: int = DRAFTED) -> Arms:
    """Both specialists, with drafts of so many tokens."""
    return {
        name: {"kind": "neural", "drafter": str(FAMILY / folder), "length": {"k": drafted}}
        for name, folder in ((EN_DE, "en-de"), (SUM, "sum"))
    }


def train_queries(limit: int) -> list[Query]:
    return [*queries.translations("train", limit), *queries.articles("train", limit)]


def test_queries(limit: int) -> list[Query]:
    return [*queries.translations("test", limit), *queries.articles("test", limit)]


def policy_lines(name: str) -> tuple[Line, Line]:
    """A policy's two rows."""
    return Line("greedy policy", name), Line("dynamic policy", f"{name} (dynamic)")


def task_columns(run: str, mean: bool = False) -> tuple[Column, ...]:
    """A column a task of one run, and perhaps their mean."""
    found = [Column(task, run, task, paper) for task, paper in zip(TASKS, PAPER_TASKS, strict=True)]
    return (*found, Column(MEAN, run, MEAN, "average")) if mean else tuple(found)


def beats_each(run: str, arms: Sequence[str], way: str) -> Claim:
    """The paper's main one: over both tasks, the policy is faster than each specialist alone."""

    def holds(found: Measured) -> list[Interval]:
        return [margin(found, run, way, arm, MEAN) for arm in arms]

    return Claim(f"{run}: `{way}` is faster than each drafter alone, mean of the tasks", holds)


def accelerates(run: str, method: str, task: str) -> Claim:
    return Claim(
        f"{run}: `{method}` accelerates {task}",
        lambda found: [margin(found, run, method, None, task)],
    )


def slows_down(run: str, method: str, task: str) -> Claim:
    return Claim(
        f"{run}: `{method}` slows {task} down",
        lambda found: [opposite(margin(found, run, method, None, task))],
    )


def keeps(run: str, way: str, best: str, task: str, share: float = 0.95) -> Claim:
    return Claim(
        f"{run}: `{way}` keeps {share:.0%} of the speed of `{best}` on {task}",
        lambda found: [margin(found, run, way, best, task, share)],
    )


def opposite(bounds: Interval) -> Interval:
    return -bounds[1], -bounds[0]
