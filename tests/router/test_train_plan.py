"""`draftpick train`: which options go together, without a command line and without a collection."""

from pathlib import Path
from typing import Any

import pytest

from decoders.common.errors import DraftpickError, NoSuchName
from policies import PolicyError
from policies.learners.reinforce import PAPER
from router.commands.train.plan import TrainOptions, TrainPlan, plan
from router.commands.with_records import made

HERE = Path("no-such-folder")


def planned(**options: Any) -> TrainPlan:
    return plan(made(TrainOptions, {"rewards": HERE} | options))


def test_the_defaults() -> None:
    found = planned()
    assert (found.asked.rewards, found.policy) == (HERE, "auto")
    assert (found.settings, found.guard) == ({}, True)
    assert (found.table.alpha, found.asked.seed) == (0.5, 0)
    assert found.risk is None and found.table.reward is None and found.table.features is None
    assert not HERE.exists()


def test_rows_features_and_settings() -> None:
    found = planned(
        policy="knn",
        arms=["a,b", "c"],
        temperatures="0,1",
        at_once="1,8",
        features="greedy, temperature",
        repetitive="without",
        reward="paper",
        alpha=0.25,
        settings=["k=5", "metric=dot"],
        guard=False,
    )
    table = found.table
    assert (table.reward, table.alpha, table.repetitive) == ("paper", 0.25, "without")
    assert (table.arms, table.features) == (["a", "b", "c"], ("greedy", "temperature"))
    assert (table.temperatures, table.at_once) == ((0.0, 1.0), (1, 8))
    assert found.settings == {"k": 5, "metric": "dot"} and not found.guard
    assert planned(features="none").table.features == ()


def test_epochs_and_lr_are_settings() -> None:
    found = planned(policy="reinforce", epochs=2, lr=0.1)
    assert found.settings == {"epochs": 2, "lr": 0.1}


def test_the_papers_training() -> None:
    found = planned(paper=True, epochs=7)
    assert (found.policy, found.guard, found.table.reward) == ("reinforce", False, "paper")
    assert found.settings == {**PAPER, "epochs": 7} and found.table.features == ()
    kept = planned(paper=True, reward="modelled", features="greedy").table
    assert (kept.reward, kept.features) == ("modelled", ("greedy",))


def test_risk_control() -> None:
    found = planned(max_loss=0.1)
    assert found.policy == "risk-control" and found.table.at_once == (1,)
    assert found.risk == {"max_loss": 0.1, "confidence": 0.95, "in_expectation": False}


def test_what_learns_while_it_serves_is_not_guarded() -> None:
    assert not planned(policy="thompson").guard and planned(policy="knn").guard


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "best-fixed", "epochs": 3}, "has no option 'epochs'"),
        ({"epochs": 3}, "takes no options .epochs."),
        ({"settings": ["k"]}, "--set takes NAME=VALUE, for instance --set k=5, not 'k'"),
        ({"paper": True, "policy": "knn"}, "--paper is REINFORCE; leave --policy knn out"),
        ({"paper": True, "max_loss": 0.1}, "--paper has no risk control"),
        ({"max_loss": 0.1, "judge_by": "modelled"}, "takes neither --judge-by nor --train-size"),
        ({"max_loss": 0.1, "train_size": 9}, "takes neither --judge-by nor --train-size"),
        ({"max_loss": 0.1, "at_once": "1,8"}, "risk control is about answers, not load"),
        ({"max_loss": 0.1, "policy": "knn"}, "leave --policy knn out"),
        ({"max_loss": 0.1, "confidence": 0.9, "in_expectation": True}, "leave one out"),
        ({"confidence": 0.9}, "give the largest loss, for instance"),
        ({"in_expectation": True}, "give the largest loss, for instance"),
        ({"policy": "risk-control"}, "give the largest loss, for instance"),
        ({"max_loss": 1.5}, "must be above 0 and below 1"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises((DraftpickError, PolicyError, NoSuchName), match=words):
        planned(**options)
