"""`train --register` and `promote`, from the outside."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from collect_fakes import FakeEngine, make_queries, sweep
from commands import Draftpick, Said

import policies
from collect.queries import Query
from collect.sweeps.batch import SweepOptions
from policies.mlflow_store import using
from router import cli


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collections: what is trained on, and others with other queries, one of them small; one where
    `small` is lossy."""
    place = tmp_path_factory.mktemp("registered")
    queries = make_queries(30, ("qa", "math"))
    held, renamed = (
        [Query(f"{called}-{q.id}", q.task, (more + q.turns[0],), source="tests") for q in queries]
        for called, more in (("held", "other "), ("renamed", ""))
    )
    made = (("rewards", queries), ("held", held), ("few", held[:5]), ("renamed", renamed))
    for name, these in made:
        sweep(FakeEngine(), these, place / name, SweepOptions(max_new_tokens=8))
    engine = FakeEngine()
    engine.arms["small"] = replace(engine.arms["small"], lossless=False)
    sweep(engine, held, place / "lossy", SweepOptions(max_new_tokens=8))
    return place


@pytest.fixture(autouse=True)
def store(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    monkeypatch.setenv("COLUMNS", "80")


def training(place: Path, name: str, arm: str, reward: str = "acceptance") -> list[object]:
    """For a version of NAME that always takes this arm: `small` earns 1, `ngram` 0."""
    words = ["train", "--rewards", place / "rewards", "--reward", reward, "--policy", "fixed"]
    return [*words, "--set", f"arm={arm}", "--register", name, "--out", place / arm]


@pytest.fixture(scope="module")
def pair(place: Path) -> str:
    """A registered name: version 1 takes `ngram`, 2 `small`, 3 as well, by another reward."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
        for what in (("ngram",), ("small",), ("small", "modelled")):
            assert cli.main([str(word) for word in training(place, "pair", *what)]) == 0
    return "pair"


def champion(name: str, alias: str = "champion") -> str:
    """The arm that the version with this alias takes."""
    found = policies.load(f"models:/{name}@{alias}")
    return str(found.origin.options["arm"])


def last(said: Said) -> str:
    """The last line of both streams."""
    return (said.out + said.err).strip().splitlines()[-1]


def test_promote_moves_the_alias_only_to_what_is_not_worse(
    place: Path, draftpick: Draftpick
) -> None:
    import mlflow

    words = ["promote", "drafter", "--rewards", place / "held"]
    said = draftpick(*training(place, "drafter", "ngram"))
    assert "Registered: models:/drafter/1, the champion, as there was none" in said.out
    said = draftpick(*training(place, "drafter", "small"))
    assert "drafter/2, the challenger; draftpick promote drafter" in said.out
    assert last(draftpick(*words, "--dry-run")).endswith("; it would be @champion.")
    assert champion("drafter") == "ngram", "a dry run moves nothing"
    assert last(draftpick(*words)) == (
        "version 2 of drafter earns 1 more than @champion (version 1) on 60 queries, at least "
        "1 more with 95% confidence over all looks, of which this is number 1; it is now @champion."
    )
    assert champion("drafter") == "small"
    assert last(draftpick(*words)) == "version 2 of drafter is @champion already."
    assert last(draftpick(*words, "--version", 1, code=1)) == (
        "version 1 of drafter earns 1 (100.0%) less than @champion (version 2) on 60 queries, "
        "at least 1 less with 95% confidence over all looks, of which this is number 2; @champion "
        "stays version 2."
    )
    assert champion("drafter") == "small"
    found = draftpick(*words, "--version", 1, "--margin", 1, "--json").json
    assert (found["candidate"], found["holder"], found["moved"]) == (1, 2, True)
    assert found["gain"]["low"] == pytest.approx(-1) and found["look"] == 3
    assert champion("drafter") == "ngram"
    with using(None):
        version = mlflow.MlflowClient().get_model_version("drafter", "1")
        looks = mlflow.MlflowClient().get_registered_model("drafter").tags["draftpick.looks"]
    assert len(set(looks.split())) == 3, "the dry run and what it announced are one look"
    assert version.tags["draftpick.promoted"].startswith(found["words"])
    assert "against" not in version.description and "the best fixed arm" in version.description


def test_promote_without_a_holder_asks_for_the_best_fixed_arm(
    place: Path, pair: str, draftpick: Draftpick
) -> None:
    words = ["promote", pair, "--rewards", place / "held", "--alias", "production", "--version"]
    assert re.fullmatch(
        r"version 1 of pair earns 1 \(100.0%\) less than the best fixed arm \(small\) on 60 "
        r"queries, at least 1 less with 95% confidence over all looks, of which this is number "
        r"\d; nobody is @production\.",
        last(draftpick(*words, 1, code=1)),
    )
    draftpick(*words, 2)
    assert champion(pair, "production") == "small"


def test_promote_refuses_queries_that_were_trained_on(
    place: Path, pair: str, draftpick: Draftpick
) -> None:
    words = ["promote", pair, "--rewards", place / "rewards", "--version", 2, "--dry-run"]
    assert re.fullmatch(
        r"error: version 2 was trained on 48 of the 60 queries in \S+, which is optimistic; "
        r"collect others, or compare anyway with --force",
        last(draftpick(*words, code=2)),
    )
    forced = draftpick(*words, "--force")
    assert "warning: version 2 was trained on 48 of the 60" in forced.err
    assert champion(pair) == "ngram"


def test_promote_refuses_what_may_lose_more(place: Path, pair: str, draftpick: Draftpick) -> None:
    words = ["promote", pair, "--rewards", place / "lossy", "--version", 2, "--dry-run"]
    assert last(draftpick(*words, code=2)) == (
        "error: version 2 takes lossy arms without a bound, while @champion (version 1) loses "
        "nothing; train one with a bound as tight (`draftpick train --max-loss`) or of lossless "
        "arms alone (--arms), or compare anyway with --force"
    )
    forced = draftpick(*words, "--force").err
    assert "warning: version 2 takes lossy arms without" in forced


def test_promote_knows_a_text_under_another_id(
    place: Path, pair: str, draftpick: Draftpick
) -> None:
    words = ["promote", pair, "--rewards", place / "renamed", "--version", 2, "--dry-run"]
    told = last(draftpick(*words, code=2))
    assert "was trained on 0 of the 60 queries in" in told
    assert "and on others of the groups or with the texts of 48, which is optimistic" in told


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["nothing"], "there is no registered model 'nothing'"),
        (["pair", "--version", "9"], "has no version 9; it has 3, 2, 1"),
        (["pair", "--alias", "latest"], "an alias has letters"),
        (["pair", "--alias", "p", "--rewards", "few"], "5 queries are too few to compare"),
        (["pair"], "different rewards (modelled@5 and acceptance@2)"),
        (["pair", "--tracking-uri", "sqlite:///{place}/none.db"], "there is no MLflow store"),
    ],
)
def test_promote_says_what_is_wrong(
    place: Path, pair: str, draftpick: Draftpick, more: list[str], says: str
) -> None:
    rewards = [] if "--rewards" in more else ["--rewards", str(place / "held")]
    given = [str(place / word) if word == "few" else word.format(place=place) for word in more]
    assert says in draftpick("promote", *given, *rewards, code=2).error


def test_a_reward_may_be_named_for_versions_of_different_ones(
    place: Path, pair: str, draftpick: Draftpick
) -> None:
    words = ["promote", pair, "--rewards", place / "held", "--reward", "acceptance", "--dry-run"]
    told = last(draftpick(*words))
    assert "version 3 of pair earns 1 more than @champion (version 1)" in told
