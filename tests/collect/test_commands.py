"""`collect` and `train` from the outside, with a fake engine behind `collect`."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from collect_fakes import ARMS, FakeEngine, FakeRecipe, all_pairs, make_queries, pairs, sweep
from commands import Draftpick
from stored_tables import table_of

from collect.sweeps.batch import SweepOptions
from decoders.common.hashing import HashingEmbedder
from policies import load
from router.commands.collect import run as collect_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(collect_run, "load_engine", lambda *asked: (fake, fake.batch))
    return fake


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for task in ("qa", "math"):
        path = tmp_path / f"{task}.jsonl"
        lines = [{"id": q.id, "task": q.task, "turns": q.turns} for q in make_queries(3, (task,))]
        path.write_text("\n".join(map(json.dumps, lines)))
        paths.append(path)
    return paths


def collected(folder: Path, each: int) -> Path:
    """A collection of so many queries of two tasks."""
    queries = make_queries(each, ("qa", "math"))
    sweep(FakeEngine(), queries, folder / "rewards", SweepOptions(max_new_tokens=8))
    return folder / "rewards"


def train(rewards: Path, *more: object) -> list[object]:
    """The policy lies beside the rewards."""
    place = rewards.parent
    words = ["train", "--rewards", rewards, "--out", place / "policy"]
    return [*words, "--tracking-uri", f"sqlite:///{place}/mlflow.db", *more]


def origin_of(rewards: Path) -> dict[str, Any]:
    """Of the policy that was trained."""
    return json.loads((rewards.parent / "policy" / "policy.json").read_text())["origin"]


def test_collect_then_summary(
    draftpick: Draftpick, engine: FakeEngine, files: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # The shell turns --queries *.jsonl into one option and more arguments.
    common = ("collect", "--queries", *files, "--out", out, "--max-new-tokens", 8)
    result = draftpick(*common, "--limit", 2)
    assert "4 queries collected" in result.out
    # no terminal here: progress comes in lines
    assert "collecting: 0 of 12 answers" in result.err
    assert "collecting: 12 of 12 answers" in result.err and "tokens/s, 0 errors" in result.err
    assert pairs(out) == all_pairs(make_queries(2, ("qa", "math")))
    engine.timed_by = "slower fakes"
    report = draftpick(*common, "--json").json
    assert (report["collected"], report["already"], report["errors"]) == (2, 4, 0)
    assert report["costs_of"] == "fakes"
    assert "Costs stay those of the first run, by fakes; for" in draftpick(*common).out
    made = draftpick("collect", "--summary", out, "--reward", "acceptance", "--json").json
    means = made["arms"]["small"]["mean"]
    assert means == {"qa": 1.0, "math": 1.0, "overall": 1.0}
    assert "oracle" in draftpick("collect", "--summary", out).out


def test_collect_uses_the_shipped_queries(
    draftpick: Draftpick, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.context = 10_000
    result = draftpick("collect", "--out", tmp_path / "out", "--limit", 1, "--arms", "small")
    assert "9 queries collected" in result.out


def test_ctrl_c_says_how_to_go_on(
    draftpick: Draftpick, engine: FakeEngine, files: list[Path], tmp_path: Path
) -> None:
    def interrupt(name: str, prompts: list[list[int]]) -> None:
        if len(engine.batch.calls) == 8:
            raise KeyboardInterrupt

    engine.batch.hook = interrupt
    common = ["collect", *files, "--out", tmp_path / "out", "--batch-size", 2]
    common += ["--max-new-tokens", 8]
    assert "run the same command to go on" in draftpick(*common, code=130).err
    assert len(pairs(tmp_path / "out")) == 2 * len(ARMS)
    engine.batch.hook = None
    draftpick(*common)
    assert pairs(tmp_path / "out") == all_pairs(make_queries(3, ("qa", "math")))


def test_mistakes_are_sentences(
    draftpick: Draftpick, engine: FakeEngine, files: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def error(*words: object) -> str:
        return draftpick(*words, code=2).err

    assert "no such query file" in error("collect", tmp_path / "no.jsonl", "--out", out)
    assert "unknown arm 'huge'" in error("collect", *files, "--out", out, "--arms", "huge")
    assert "holds no collected rewards" in error("train", "--rewards", out)
    assert not out.exists()
    engine.context = 1
    assert "every row collected in this run is an error" in error("collect", *files, "--out", out)


def test_train_prints_values_and_where_things_are(draftpick: Draftpick, tmp_path: Path) -> None:
    rewards = collected(tmp_path, 12)
    common = train(rewards, "--reward", "acceptance", "--policy", "best-fixed")
    result = draftpick(*common)
    for words in ("best fixed (small)", "per-task-best", "oracle", "held-out", "MLflow run"):
        assert words in result.out
    assert (tmp_path / "policy").is_dir()
    record = draftpick(*common, "--json").json
    assert record["best_fixed"] == "small"
    assert record["values"]["greedy"]["mean"] == 1.0


def test_answers_at_once_from_the_command_line(
    draftpick: Draftpick, engine: FakeEngine, files: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    common = ["collect", *files, "--out", out, "--max-new-tokens", 8]
    result = draftpick(*common, "--temperatures", "0,1", "--at-once", "1, 8")
    assert "0 of 72 new rows are errors" in result.out
    shown = ["collect", "--summary", out, "--reward", "saved-passes"]
    assert "8 answers at once" in " ".join(draftpick(*shown).out.split())
    record = draftpick(*shown, "--json").json
    means = [
        found["arms"]["small"]["mean"]["qa"]
        for found in (record, record["at_once"]["8"]["0"], record["at_temperature"]["1"])
    ]
    assert means == pytest.approx([0.75, 0.5, 0.5])
    few = draftpick("headroom", out, "--at-once", "8", code=2)
    assert "6 queries are too few" in few.err
    learn = train(out, "--policy", "regression", "--no-guard", "--reward", "modelled")
    assert "requests-running" in draftpick(*learn).out
    assert "requests-running" not in draftpick(*learn, "--at-once", "1").out


def test_weights_say_how_often_traffic_has_a_setting(draftpick: Draftpick, tmp_path: Path) -> None:
    options = SweepOptions(max_new_tokens=8, temperatures=(0, 1), at_once=(1, 8))
    rewards = tmp_path / "rewards"
    sweep(FakeEngine(), make_queries(30, ("qa", "math")), rewards, options)
    alike = table_of(rewards, "modelled")
    settings = ("temperature", "requests-running")
    columns = alike.features[:, [alike.feature_names.index(name) for name in settings]]
    hot, loaded = (columns > 0).T
    counts = np.select([hot & loaded, hot | loaded], [0, 1], default=6)
    means = dict(zip(alike.arms, np.average(alike.rewards, 0, counts), strict=True))
    asked = ("--reward", "modelled", "--weights", "0@1=6,1@8=0", "--json")
    found = draftpick("headroom", rewards, *asked).json
    assert {one["arm"]: one["mean"] for one in found["arms"]} == pytest.approx(means)
    assert found["choices"][0]["mean"] == pytest.approx(max(means.values()))
    made = draftpick(*train(rewards, "--policy", "knn", *asked)).json
    assert made["guard"]["queries"] == 60 and made["guard"]["tried"]
    values = {arm: made["values"][f"fixed/{arm}"]["mean"] for arm in means}
    assert values == pytest.approx(means)


def test_temperatures_from_the_command_line(
    draftpick: Draftpick, engine: FakeEngine, files: list[Path], tmp_path: Path
) -> None:
    """Collected, summed up, and learned from with the features that vary."""
    out = tmp_path / "out"
    common = ["collect", *files, "--out", out, "--max-new-tokens", 8]
    result = draftpick(*common, "--temperatures", "0, 1")
    assert "0 of 36 new rows are errors" in result.out
    shown = ["collect", "--summary", out, "--reward", "saved-passes"]
    assert "at temperature 1" in " ".join(draftpick(*shown).out.split())
    record = draftpick(*shown, "--json").json
    assert record["arms"]["small"]["mean"]["qa"] == pytest.approx(0.75)
    assert record["at_temperature"]["1"]["arms"]["small"]["mean"]["qa"] == pytest.approx(0.5)
    greedy = draftpick("collect", "--summary", out, "--reward", "paper", "--json").json
    assert "at_temperature" not in greedy  # similarity is of greedy answers
    learn = train(out, "--policy", "regression", "--no-guard", "--reward", "saved-passes")
    result = draftpick(*learn)
    assert "the query, temperature, greedy, log-prompt-length" in result.out
    assert load(tmp_path / "policy").origin.features[:2] == ("temperature", "greedy")
    for chosen, features in (("none", []), ("greedy", ["greedy"])):
        made = draftpick(*learn, "--features", chosen, "--json").json
        assert made["features"] == features
    assert "Left out:   6 at other temperatures" in draftpick(*learn, "--temperatures", 1).out
    draftpick(*learn, "--arms", "autoregressive,small")
    assert load(tmp_path / "policy").arms == ["autoregressive", "small"]
    for wrong, says in (
        ((*common, "--temperatures", "0,0.5"), "was collected with other settings: temperatures"),
        ((*learn, "--features", "mood"), "unknown feature 'mood'"),
    ):
        assert says in draftpick(*wrong, code=2).err


def test_train_keeps_the_best_fixed_arm_unless_told_otherwise(
    draftpick: Draftpick, tmp_path: Path
) -> None:
    rewards = collected(tmp_path, 30)
    common = train(rewards, "--reward", "acceptance", "--features", "none")
    guarded = draftpick(*common, "--json").json
    assert guarded["guard"]["saved"] == "best-fixed"
    assert guarded["guard"]["verdict"].startswith("Saved: the best fixed arm (small). No policy")
    tried = [one["name"] for one in guarded["guard"]["tried"]]
    assert tried == ["regression", "knn", "logistic", "reinforce"]
    assert guarded["regret"]["worse_than_plain"] == 0.0
    unguarded = draftpick(*common, "--policy", "knn", "--no-guard", "--json").json
    assert unguarded["guard"] is None
    assert origin_of(rewards)["name"] == "knn"
    shown = draftpick(*common, "--paper").out
    assert "Saved:" not in shown and "oracle - policy (regret)" in shown
    origin = origin_of(rewards)
    assert (origin["name"], origin["options"]["baseline"]) == ("reinforce", "none")
    assert (origin["options"]["start"], origin["options"]["epochs"]) == ("random", 3)
    few = collected(tmp_path / "few", 2)
    said = draftpick(*train(few, "--reward", "acceptance", "--features", "none")).out
    assert "Saved: the best fixed arm (small). 4 queries are too few to estimate" in said


def test_headroom_says_what_to_do(draftpick: Draftpick, tmp_path: Path) -> None:
    rewards = collected(tmp_path, 30)
    common = ["headroom", rewards, "--reward", "acceptance"]
    result = draftpick(*common, "--out", tmp_path / "h.png")
    for words in (
        "best fixed (small)",
        "oracle",
        "Where the gap lies",
        "One arm is enough: small.",
    ):
        assert words in result.out
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    found = draftpick(*common, "--json").json
    assert found["best_fixed"] == "small" and found["queries"] == 60
    assert found["choices"][0]["gain"]["mean"] == 0.0
    fewer = [*common, "--arms", "autoregressive", "--arms", "small", "--json"]
    arms = [one["arm"] for one in draftpick(*fewer).json["arms"]]
    assert arms == ["autoregressive", "small"]
    for wrong, words in (
        (["headroom", tmp_path / "none"], "holds no collected rewards"),
        ([*common, "--by", "load"], "unknown feature 'load'"),
        ([*common, "--arms", "huge"], "unknown arm in this collection 'huge'"),
        ([*common, "--temperatures", "1"], "1"),
        ([*common, "--out", tmp_path / "h.txt"], "takes a .png, .svg or .pdf file, not h.txt"),
        (["headroom", rewards, "--reward", "measured"], "needs measured times"),
    ):
        assert words in draftpick(*wrong, code=2).err


def test_what_is_stored_is_looked_at_without_pytorch(tmp_path: Path) -> None:
    rewards = collected(tmp_path, 30)
    script = (
        "import sys; from router.cli import main; rewards = sys.argv[1]; "
        "assert main(['headroom', rewards, '--reward', 'saved-passes']) == 0; "
        "assert main(['collect', '--summary', rewards]) == 0; "
        "print(sorted({'torch', 'scipy.stats'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(rewards)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Where the gap lies" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_judged_by_another_reward_after_learning_from_few(
    draftpick: Draftpick, tmp_path: Path
) -> None:
    rewards = collected(tmp_path, 20)
    plain = train(rewards, "--policy", "best-fixed")
    common = [*plain, "--judge-by", "acceptance"]
    shown = draftpick(*common)
    assert "The same policy judged by acceptance" in shown.out
    found = draftpick(*common, "--train-size", 6, "--json").json
    assert found["judged_by"]["reward"].startswith("acceptance")
    truth = table_of(rewards, "acceptance")
    best = truth.arms.index(found["best_fixed"])  # by similarity
    worth = found["judged_by"]["values"]
    assert worth["greedy"]["mean"] == pytest.approx(truth.rewards[:, best].mean(), abs=0.2)
    assert worth["oracle"]["mean"] == 1.0
    digest = origin_of(rewards)["table_digest"]
    draftpick(*plain)
    assert origin_of(rewards)["table_digest"] != digest
    for wrong, says in (
        (("--train-size", 33), "cannot learn from 33 queries: the table has 32"),
        (("--judge-by", "beauty"), "unknown reward 'beauty'"),
        (("--judge-by", "measured"), "collect again"),
    ):
        assert says in draftpick(*common, *wrong, code=2).err


# -- a collection is opened once, and every file of it read once -----------------------------------


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, two temperatures and loads, and a space of its own."""
    folder = tmp_path_factory.mktemp("collected") / "rewards"
    options = SweepOptions(max_new_tokens=8, batch_size=12, temperatures=(0.0, 1.0), at_once=(1, 8))
    engine = FakeEngine()
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    sweep(engine, make_queries(6), folder, options, embedder=HashingEmbedder())
    assert len(list(folder.rglob("*.parquet"))) == 7
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, rewards: Path) -> Iterator[Counter[str]]:
    """How often each file of the collection was read."""
    found: Counter[str] = Counter()
    read_table, read_text = pq.read_table, Path.read_text

    def table(path: Any, *given: Any, **named: Any) -> Any:
        found[Path(path).relative_to(rewards).as_posix()] += 1
        return read_table(path, *given, **named)

    def text(path: Path, *given: Any, **named: Any) -> str:
        if rewards in path.parents:
            found[path.relative_to(rewards).as_posix()] += 1
        return read_text(path, *given, **named)

    monkeypatch.setattr(pq, "read_table", table)
    monkeypatch.setattr(Path, "read_text", text)
    yield found


TRAIN = ("train", "--policy", "best-fixed", "--no-guard")


@pytest.mark.parametrize(
    "asked",
    [
        (*TRAIN, "--reward", "paper", "--repetitive", "without"),
        (*TRAIN, "--reward", "paper", "--judge-by", "modelled"),
        ("train", "--max-loss", "0.5", "--confidence", "0.5"),
        ("headroom",),
        ("collect", "--summary"),
    ],
    ids=" ".join,
)
def test_every_file_is_read_once(
    asked: tuple[str, ...], rewards: Path, read: Counter[str], tmp_path: Path, draftpick: Draftpick
) -> None:
    if asked[0] == "train":
        store = f"sqlite:///{tmp_path}/mlflow.db"
        asked += ("--out", f"{tmp_path}/policy", "--tracking-uri", store, "--rewards")
    draftpick(*asked, rewards)
    assert max(read.values()) == 1 and len(read) in (7, 8)


# -- `draftpick train --max-loss` ------------------------------------------------------------------


def test_train_controls_the_risk(tmp_path: Path, draftpick: Draftpick) -> None:
    rewards, engine = tmp_path / "rewards", FakeEngine()
    engine.arms["ngram"] = FakeRecipe("ngram", "neural", lossless=False)
    sweep(engine, make_queries(20), rewards, SweepOptions(max_new_tokens=8))
    common: list[object] = ["train", "--rewards", rewards, "--out", tmp_path / "policy"]
    common += ["--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--max-loss", 0.2]
    record = draftpick(*common, "--json").json["guarantee"]
    assert (record["max_loss"], record["confidence"]) == (0.2, 0.95)
    assert record["queries"] == 48  # half of the four fifths that are not held out
    assert record["arm_losses"] == {"ngram": 0.5}  # of four words it writes two
    rows = {row["name"]: row for row in record["choices"]}
    assert rows["policy"]["loss"]["mean"] == 0 and rows["fixed/ngram"]["loss"]["mean"] == 0.5
    shown = draftpick(*common, "--in-expectation").out
    said = ("24 held-out queries at temperature 0", "best lossless (", "best controlled (")
    assert all(words in shown for words in (*said, "No lossy arm"))
    made = load(tmp_path / "policy")
    assert made.origin.reward_name.startswith("modelled")
    assert "temperature" in made.origin.features
