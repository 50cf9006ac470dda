"""Tables 5 and 6: the default target in the place of Vicuna-33B and of LLaMA-2-13B."""

from __future__ import annotations

from collect.queries import Query, first_per_task, shipped
from decoders.arms import AUTOREGRESSIVE
from decoders.zoo.catalogue import TARGET

from .draws import margin
from .records import (
    MEAN,
    Arms,
    Claim,
    Column,
    Interval,
    Line,
    Measured,
    Models,
    PolicyPlan,
    Reproduction,
    Run,
    Table,
)
from .t5 import BASE, EPOCHS, SPEED, opposite

MODELS = Models(TARGET, "auto", 64)
RUN = "sampling"
GENERAL, MATHS, TRANSLATION = "recurrent", "recurrent-math", "recurrent-translation"
SPEC_BENCH = (
    ("mt_bench", "MT-Bench"), ("translation", "Trans."), ("summarization", "Sum."), ("qa", "QA"),
    ("math", "Math"), ("rag", "RAG"),
)  # fmt: skip
EXITS = (6, 12, 18, 24)  # of 30 layers; the paper's 8, 16, 24 and 32 are of 40
DRAFTED = 4
SIZE = (
    "The target has 135 million parameters in four bits, where the paper has 33 and 13 billion: "
    "reading a few tokens at once costs it more than reading one.",
    f"The policy learns from the training queries that ship, in {EPOCHS} epochs.",
)


def table_5() -> Reproduction:
    """Spec-Bench's tasks: drafters for all, chosen from in pairs."""
    pairs = {
        "general or math": (GENERAL, MATHS),
        "general or translation": (GENERAL, TRANSLATION),
        "math or translation": (MATHS, TRANSLATION),
    }
    names = {title: title.replace(" ", "-") for title in pairs}
    alone = {"Vicuna-68m": GENERAL, "Vicuna-160m": MATHS, "LLaMA-68m": TRANSLATION}
    theirs = ("policy, 68m / 160m", "policy, Vicuna-68m / LLaMA-68m", "policy, 160m / LLaMA-68m")
    arms = {
        name: {"kind": "recurrent", "drafter": drafter, "length": {"k": DRAFTED}}
        for name, drafter in (
            (GENERAL, "recurrent-general"), (MATHS, MATHS), (TRANSLATION, TRANSLATION)
        )
    }  # fmt: skip
    plans = tuple(PolicyPlan(names[title], pair, epochs=EPOCHS) for title, pair in pairs.items())

    def near_the_best(name: str, pair: tuple[str, str]) -> Claim:
        def holds(found: Measured) -> list[Interval]:
            return [margin(found, RUN, name, arm, MEAN, 0.98) for arm in pair]

        return Claim(f"`{name}` has 98% of the speed of the better of the two, on average", holds)

    return Reproduction(
        name="table-5",
        title="Table 5: drafters for many tasks, on Spec-Bench's",
        minutes=8,
        models=MODELS,
        arms=arms,
        draw_train=_train,
        draw_test=_test,
        train=44,
        test=3,
        policies=plans,
        runs=(Run(RUN, 1.0, arms, tuple(names.values()), dynamic=False),),
        tables=(
            Table(
                "Speed-up at temperature 1",
                SPEED,
                (
                    *(Column(task, RUN, task, paper) for task, paper in SPEC_BENCH),
                    Column(MEAN, RUN, MEAN, "average"),
                ),
                (
                    *(Line(paper, arm) for paper, arm in alone.items()),
                    *map(Line, theirs, names.values()),
                ),
                {
                    "Vicuna-68m": (1.74, 1.28, 1.74, 1.54, 1.70, 1.63, 1.60),
                    "Vicuna-160m": (1.52, 1.10, 1.51, 1.36, 1.50, 1.44, 1.40),
                    "LLaMA-68m": (1.40, 1.32, 1.41, 1.41, 1.48, 1.49, 1.41),
                    theirs[0]: (1.74, 1.28, 1.73, 1.54, 1.70, 1.62, 1.59),
                    theirs[1]: (1.72, 1.31, 1.73, 1.53, 1.69, 1.63, 1.60),
                    theirs[2]: (1.51, 1.31, 1.49, 1.39, 1.49, 1.47, 1.41),
                },
            ),
        ),
        claims=tuple(near_the_best(names[title], pair) for title, pair in pairs.items()),
        differs=(
            *SIZE,
            "The drafters are the three recurrent ones that ship; the paper's differ in size and "
            "in the data that they were trained on.",
            "The questions are those that ship, not Spec-Bench's own.",
        ),
    )  # fmt: skip


def table_6() -> Reproduction:
    """The target drafts for itself: four exits, with and without plain decoding."""
    arms: Arms = {
        f"exit-{layer}": {"kind": "early_exit", "layer": layer, "length": {"k": DRAFTED}}
        for layer in EXITS
    }
    exits, plain = "exits", "exits-or-plain"
    tasks = (("mt_bench", "Alpaca"), ("qa", "TriviaQA"))
    labels = ("Layer 8", "Layer 16", "Layer 24", "Layer 32")
    lines = (
        BASE,
        *(Line(label, arm) for label, arm in zip(labels, arms, strict=True)),
        Line("greedy policy", exits),
        Line("dynamic policy", f"{exits} (dynamic)"),
        Line("greedy policy, plain an option", plain),
        Line("dynamic policy, plain an option", f"{plain} (dynamic)"),
    )

    def option_helps(found: Measured) -> list[Interval]:
        return [margin(found, RUN, plain, exits, task) for task, _ in tasks]

    def near_plain(found: Measured) -> list[Interval]:
        return [margin(found, RUN, plain, AUTOREGRESSIVE, task, 0.95) for task, _ in tasks]

    def slower(found: Measured) -> list[Interval]:
        return [opposite(margin(found, RUN, arm, None, task)) for arm in arms for task, _ in tasks]

    return Reproduction(
        name="table-6",
        title="Table 6: the target's own early exits",
        minutes=13,
        models=MODELS,
        arms={AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE}, **arms},
        draw_train=lambda limit: _train(limit, ("mt_bench", "qa")),
        draw_test=lambda limit: _test(limit, ("mt_bench", "qa")),
        train=44,
        test=6,
        policies=(
            PolicyPlan(exits, tuple(arms), epochs=EPOCHS),
            PolicyPlan(plain, (AUTOREGRESSIVE, *arms), alpha=0.5, epochs=EPOCHS),
        ),
        runs=(Run(RUN, 1.0, arms, (exits, plain)),),
        tables=(
            Table(
                "Speed-up at temperature 1",
                SPEED,
                tuple(Column(task, RUN, task, paper) for task, paper in tasks),
                lines,
                {
                    "auto-regressive": (1.00, 1.00),
                    "Layer 8": (0.77, 0.77),
                    "Layer 16": (0.81, 0.69),
                    "Layer 24": (0.73, 0.69),
                    "Layer 32": (0.50, 0.60),
                    "greedy policy": (0.80, 0.66),
                    "dynamic policy": (0.82, 0.66),
                    "greedy policy, plain an option": (0.99, 0.96),
                    "dynamic policy, plain an option": (0.95, 0.91),
                },
            ),
        ),
        claims=(
            Claim("every exit alone is slower than plain decoding", slower),
            Claim("with plain decoding an option the greedy policy is faster", option_helps),
            Claim("with plain decoding an option it has 95% of its speed", near_plain),
        ),
        differs=(
            *SIZE,
            "No layer was trained to be left after; the paper's target was.",
            "Chats and questions that ship are in the place of Alpaca and TriviaQA, and one policy "
            "learns from both.",
        ),
    )


def _train(limit: int, tasks: tuple[str, ...] = ()) -> list[Query]:
    return _of(first_per_task(shipped("train"), limit), tasks)


def _test(limit: int, tasks: tuple[str, ...] = ()) -> list[Query]:
    return _of(first_per_task(shipped("test"), limit), tasks)


def _of(queries: list[Query], tasks: tuple[str, ...]) -> list[Query]:
    """Those of these tasks, or all."""
    return [query for query in queries if not tasks or query.task in tasks]
