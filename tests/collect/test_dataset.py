"""The folder on disk: locks, full disks, damage, and reading it back."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from collect_fakes import ARMS, FakeBatch, FakeEngine, all_pairs, make_queries, pairs, sweep
from router_fakes import at_eighty
from stored_tables import rows_of, table_of

from collect.queries import TASKS, Query
from collect.rewards import Reward
from collect.store import writer
from collect.store.collection import Collection
from collect.store.manifest import FORMAT, MANIFEST, read_manifest
from collect.store.tables import load
from collect.store.writer import Store
from collect.summary import cautions, render, summarise
from collect.sweeps.batch import SweepOptions
from decoders.common.errors import Damaged, DraftpickError
from decoders.costs.measured import Costs
from router.cli import main

OPTIONS = SweepOptions(max_new_tokens=8, batch_size=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(FakeEngine(), make_queries(), tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != writer.LOCK
    }


def test_reads_back_as_hugging_face_data_sets(folder: Path) -> None:
    tables = load(folder)
    assert tables.queries.num_rows == 12
    assert tables.outcomes.num_rows == 36
    assert tables.queries[0]["embedder"] == "target:fake/3"


def test_manifest_says_how_it_was_made(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.identity.arms == ARMS
    assert manifest.identity.max_new_tokens == 8
    assert manifest.costs.verify_s[0] == pytest.approx(0.010)
    assert set(manifest.costs.draft_s) == {"small", "ngram"}
    (session,) = manifest.sessions
    assert {"time", "argv", "git", "versions", "hardware"} <= set(session)
    assert session["hardware"]["cores"] >= 1
    assert "python" in session["versions"]


def test_two_writers_are_refused(folder: Path) -> None:
    with Store(folder), pytest.raises(DraftpickError, match="another process is writing"):
        sweep(FakeEngine(), make_queries(3), folder, OPTIONS)
    sweep(FakeEngine(), make_queries(3), folder, OPTIONS)  # and free again afterwards


def test_leftovers_are_ignored_and_removed(folder: Path) -> None:
    (folder / "outcomes" / ".00009.parquet.tmp").write_bytes(b"half")
    (folder / "queries" / "00003.parquet").write_bytes(b"a queries shard that nothing committed")
    assert pairs(folder) == all_pairs(make_queries())
    embedding = folder / "embeddings" / ".sentence-1.parquet.tmp"  # which `train` writes just now
    embedding.parent.mkdir()
    embedding.write_bytes(b"half")
    sweep(FakeEngine(), make_queries(3), folder, OPTIONS)
    assert pairs(folder) == all_pairs(make_queries(3))
    assert list(folder.rglob("*.tmp")) == [embedding]


@pytest.mark.parametrize("table", ["queries", "outcomes"])
def test_a_damaged_shard_says_what_to_delete(folder: Path, table: str) -> None:
    shard = folder / table / "00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(Damaged, match=r"delete .*outcomes/00001\.parquet") as caught:
        table_of(folder)
    assert str(shard) in str(caught.value)
    (folder / "outcomes" / "00001.parquet").unlink()
    sweep(FakeEngine(), make_queries(), folder, OPTIONS)
    assert pairs(folder) == all_pairs(make_queries())


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    out, calls = tmp_path / "out", [0]
    real = os.fsync

    def full(number: int) -> None:
        calls[0] += 1
        if calls[0] == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DraftpickError, match="No space left on device; free space"):
            sweep(FakeEngine(), make_queries(), out, OPTIONS)
    assert not list(out.rglob("*.tmp"))
    for name, content in tree(out).items():
        if name.endswith(".parquet"):
            pq.read_table(out / name)
        else:
            json.loads(content)
    assert len(pairs(out)) % len(ARMS) == 0
    sweep(FakeEngine(), make_queries(), out, OPTIONS)
    assert pairs(out) == all_pairs(make_queries())


def test_a_disk_that_refuses_inside_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(folder)

    def full(table: Any, file: Any) -> None:
        file.write(b"half a shard")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        with pytest.raises(DraftpickError, match="what is stored so far is kept"):
            sweep(FakeEngine(), make_queries(3), folder, OPTIONS)
    assert tree(folder) | {MANIFEST: b""} == before | {MANIFEST: b""}


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match=r"holds no collected rewards \(manifest.json"):
        table_of(tmp_path / "nowhere")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DraftpickError, match="is not empty and holds no manifest"):
        sweep(FakeEngine(), make_queries(), tmp_path, OPTIONS)
    with pytest.raises(DraftpickError, match="cannot be written"):
        sweep(FakeEngine(), make_queries(), tmp_path / "thesis.tex", OPTIONS)


@pytest.mark.parametrize("text", ["", "{half", "[]", f'{{"format": "{FORMAT}"}}'])
def test_a_damaged_manifest(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(Damaged, match="is damaged"):
        table_of(folder)


@pytest.mark.parametrize("found", ["draftpick-rewards-4", "draftpick-rewards-9"])
def test_a_collection_of_another_format_is_refused_and_left_alone(folder: Path, found: str) -> None:
    record = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**record, "format": found}))
    before = tree(folder)
    uses: list[Callable[[], object]] = [
        lambda: table_of(folder),
        lambda: summarise(Collection.open(folder)),
        lambda: load(folder),
        lambda: sweep(FakeEngine(), make_queries(3), folder, OPTIONS),
    ]
    for use in uses:
        with pytest.raises(DraftpickError, match=f"has the format '{found}'.*collect again into"):
            use()
    assert tree(folder) == before


def test_a_table_has_the_rewards_by_each_measurement_of_the_costs(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Collection.open(folder)
    assert table_of(folder).repeats is None and "measured once" in cautions(once)[0]
    costs = once.manifest.costs
    each = [replace(costs, verify_s=tuple(s * n for s in costs.verify_s)) for n in (1, 2, 4)]
    several = Costs.of_repeats(each)
    monkeypatch.setattr(FakeBatch, "cost_table", property(lambda self: several))
    sweep(FakeEngine(), make_queries(), tmp_path / "several", OPTIONS)
    found = Collection.open(tmp_path / "several")
    assert cautions(found, "time-saved") == [] or "mean width" in cautions(found, "time-saved")[0]
    table = table_of(tmp_path / "several")
    assert table.repeats is not None and table.repeats.shape == (3, len(table), len(ARMS))
    np.testing.assert_array_equal(table.repeats[0], table_of(folder).rewards)
    np.testing.assert_array_equal(table.repeats[1], table.rewards)  # the median
    assert table_of(tmp_path / "several", "acceptance").repeats is None


def test_the_default_reward_is_of_speed(folder: Path) -> None:
    assert table_of(folder).reward_name == summarise(Collection.open(folder)).reward == "modelled@5"


def test_reward_table(folder: Path) -> None:
    table = table_of(folder, "acceptance")
    assert table.arms == list(ARMS)
    assert table.reward_name == "acceptance@2"
    assert table.embedder == "target:fake/3"
    assert table.arms_fingerprint == "arms:autoregressive,small,ngram"
    assert table.query_ids == sorted(q.id for q in make_queries())
    assert np.array_equal(table.rewards, np.tile([0.0, 1.0, 0.0], (12, 1)))
    paper = table_of(folder, "paper", alpha=0.0)
    assert paper.rewards[0, 1] == pytest.approx(1 - np.exp(0.010 - 0.135))
    chosen = table_of(folder, "acceptance", arms=("small",))
    assert chosen.arms == ["small"]
    assert chosen.arms_fingerprint == ""


def test_a_choice_of_arms_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    """The engine's for these arms, so that a policy over them is held to their recipes; none where
    a recipe's files are no longer those of the collection."""
    from decoders.arms import recipe
    from decoders.arms.file import fingerprint

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")

    class Engine(FakeEngine):
        def arms_fingerprint(self, names: list[str]) -> str:
            return fingerprint({name: self.arms[name] for name in names})

    engine = Engine()
    arms: dict[str, Any] = {
        "autoregressive": {"kind": "autoregressive"},
        "small": {"kind": "neural", "drafter": str(model), "length": {"k": 4}},
        "ngram": {"kind": "recurrent", "drafter": "recurrent-general"},
    }
    engine.arms = {name: recipe(name=name, **body) for name, body in arms.items()}
    sweep(engine, make_queries(4), tmp_path / "rewards", SweepOptions(max_new_tokens=8))
    of_all = table_of(tmp_path / "rewards", "acceptance")
    assert of_all.arms_fingerprint == engine.arms_fingerprint(list(arms))
    for chosen in (("small",), ("autoregressive", "ngram"), ("ngram", "small", "autoregressive")):
        table = table_of(tmp_path / "rewards", "acceptance", arms=chosen)
        assert table.arms_fingerprint == engine.arms_fingerprint(list(chosen))
    (model / "model.safetensors").write_bytes(b"others")
    table = table_of(tmp_path / "rewards", "acceptance", arms=("small",))
    assert table.arms_fingerprint == ""


def test_the_arms_chosen_from_set_the_scale(folder: Path) -> None:
    """With the target among them a small drafter's size hardly counts; among drafters it does."""

    def sizes(reward: str, *arms: str) -> list[float]:
        return table_of(folder, reward, alpha=0.0, arms=arms or None).rewards[0].tolist()

    assert sizes("parameter-ratio") == pytest.approx([0, 1 - 10 / 135, 1])
    assert sizes("parameter-ratio", "small", "ngram") == [0, 1]
    assert sizes("paper", "small", "ngram") == [0, pytest.approx(-np.expm1(-0.010))]
    # small drafts a token in 2 ms, copying in 0.1 ms; a pass of the target takes 10 ms
    assert sizes("latency-ratio") == pytest.approx([0, 0.8, 0.99])
    assert sizes("latency-ratio", "small", "ngram") == pytest.approx([0, 0.95])
    # what others are compared with is there, chosen or not
    assert np.isfinite(table_of(folder, "modelled", arms=["small"]).rewards).all()


def test_a_measured_speed_up_needs_no_chosen_baseline(tmp_path: Path) -> None:
    sweep(FakeEngine(), make_queries(), tmp_path, replace(OPTIONS, measure=True))
    whole = table_of(tmp_path, "measured-speedup").rewards[:, 1]
    alone = table_of(tmp_path, "measured-speedup", arms=["small"]).rewards[:, 0]
    assert np.array_equal(whole, alone) and (whole > 1).all()


def test_a_reward_of_one_s_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be among those that have a name, and none is looked up."""
    monkeypatch.setattr("collect.rewards.REWARDS", {})
    tokens = Reward("tokens", 3, lambda outcome, context: outcome.new_tokens or 0, "tokens written")
    table = table_of(folder, tokens)
    assert table.reward_name == "tokens@3"
    assert np.array_equal(table.rewards, np.full((12, 3), 5.0))
    assert summarise(Collection.open(folder), tokens).arms["autoregressive"].mean["overall"] == 5
    timed = replace(tokens, needs_measured=True)
    with pytest.raises(DraftpickError, match="the reward 'tokens' needs measured times"):
        table_of(folder, timed)


def test_failures_are_nan_and_lost_queries_left_out(tmp_path: Path) -> None:
    engine = FakeEngine()
    bad = engine.encode_chat([{"role": "user", "content": "poison"}])[0]
    engine.batch.poison = {"small": bad}
    queries = [*make_queries(1), Query("bad", "qa", ("poison",)), Query("l", "qa", ("x " * 99,))]
    sweep(engine, queries, tmp_path, OPTIONS)
    table = table_of(tmp_path, "acceptance")
    assert "l" not in table.query_ids
    assert np.isnan(table.rewards[table.query_ids.index("bad")]).tolist() == [False, True, False]
    summary = summarise(Collection.open(tmp_path), "acceptance")
    assert [arm.errors for arm in summary.arms.values()] == [1, 2, 1]
    assert any("bad, small: small cannot do this" in line for line in summary.error_examples)


def test_reward_table_says_no_clearly(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="unknown arm in this collection 'huge'"):
        table_of(folder, arms=["huge"])
    with pytest.raises(DraftpickError, match="without --measure"):
        table_of(folder, "measured")
    sweep(FakeEngine(), [Query("l", "qa", ("x " * 99,))], tmp_path / "lost", OPTIONS)
    with pytest.raises(DraftpickError, match=r"with a reward yet .* l, \w+: the prompt has 99"):
        table_of(tmp_path / "lost")


def test_summary(folder: Path) -> None:
    summary = summarise(Collection.open(folder), "saved-passes")
    record = asdict(summary)
    json.dumps(record, allow_nan=False)
    assert list(record["queries"]) == [*TASKS, "overall"]
    assert record["best_fixed"] == "small"
    assert record["arms"]["small"]["mean"]["overall"] == pytest.approx(0.75)
    assert record["arms"]["small"]["wins"] == 1
    assert record["oracle"]["qa"] == pytest.approx(0.75)
    text = at_eighty(render(summary, 80))
    assert text.count("0.750") >= len(TASKS) + 1 and "summarization" in text and "…" not in text
    assert "small" in text and "oracle" in text and len(render(summary, 200)) == 1


def test_a_summary_leaves_out_settings_without_a_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, options = FakeEngine(), replace(OPTIONS, temperatures=(0.0, 1.0))

    def fail(name: str, prompts: list[list[int]]) -> None:
        if name.startswith(("sampled", "hot")):
            raise RuntimeError("too hot")

    engine.batch.hook = fail
    sweep(engine, make_queries(1), tmp_path, replace(options, similarity=False))
    assert main(["collect", "--summary", str(tmp_path), "--reward", "saved-passes"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "small 0.7" in said and "Note: at temperature 1 with 1 answers at once" in said
    assert "too hot" in said


def test_a_querys_group_travels_to_the_table(tmp_path: Path) -> None:
    queries = [replace(query, group="one text") for query in make_queries()[:3]]
    options = replace(OPTIONS, temperatures=(0, 1))
    sweep(FakeEngine(), [*queries, *make_queries()[3:]], tmp_path, options)
    table = table_of(tmp_path, "modelled")
    assert table.groups.count("one text") == 6 and len(set(table.groups)) == 10
    assert len(set(table.query_of)) == 12


def test_queries_of_one_text_are_one_group(tmp_path: Path) -> None:
    queries = make_queries()
    again = [replace(q, id=f"again-{q.id}", turns=(f" {q.turns[0]}\n",)) for q in queries[:3]]
    passage = [replace(q, group="one passage") for q in queries[2:4]]
    sweep(FakeEngine(), [*queries[:2], *passage, *queries[4:], *again], tmp_path, OPTIONS)
    table, left_out = rows_of(tmp_path, "modelled")
    group_of = dict(zip(table.query_of, table.groups, strict=True))
    assert [group_of[q.id] for q in again[:2]] == [group_of[q.id] for q in queries[:2]]
    assert {group_of[q.id] for q in (*passage, again[2])} == {"one passage"}
    assert len(set(table.groups)) == len(queries) - 1
    assert left_out.repeated == 3 and not str(left_out)
    (line,) = left_out.cautions
    assert line.startswith("3 queries have the text of another under another id")
    for seed in range(20):
        train, held = table.split(0.3, seed)
        assert held is not None and not set(train.texts) & set(held.texts)


def test_one_text_under_two_ids_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each text twice: what is learnt of the one is not judged on the other."""
    queries = make_queries(40, ("qa",))
    again = [replace(q, id=f"again-{q.id}") for q in queries]
    sweep(FakeEngine(), [*queries, *again], tmp_path, OPTIONS)
    assert main(["headroom", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Note: 40 queries have the text of another under another id;" in said
