"""A sweep: the rows it writes, what fails on the way, and going on after a kill."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_fakes import (
    ARMS,
    EOS,
    FakeEngine,
    Killed,
    all_pairs,
    answer,
    make_queries,
    pairs,
    sweep,
)
from kills import die, killed
from stored_tables import rows, table_of

from collect.queries import Query
from collect.store import tables
from collect.store.collection import Collection
from collect.store.manifest import read_manifest
from collect.sweeps.batch import Prompt, SweepOptions
from collect.sweeps.on_ray import _Worker
from collect.sweeps.progress import SweepProgress
from collect.sweeps.ray_cluster import cores_each
from collect.sweeps.run import _describe_arms, batches
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs

OPTIONS = SweepOptions(max_new_tokens=8, batch_size=4)


def test_rows_hold_what_the_engine_did(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries()
    seen: list[SweepProgress] = []
    report = sweep(engine, queries, tmp_path / "out", OPTIONS, seen.append)
    assert (report.collected, report.already, report.errors, report.rows) == (12, 0, 0, 36)
    assert (seen[0].done, seen[-1].done, seen[-1].total) == (0, 36, 36)
    assert [one.done for one in seen] == list(range(0, 37, 4))  # after each arm of a batch
    assert seen[-1].tokens == 36 * 5
    assert pairs(tmp_path / "out") == all_pairs(queries)
    made = rows(tmp_path / "out")
    ids = engine.encode_chat([{"role": "user", "content": queries[3].turns[0]}])
    small = made[queries[3].id, "small"]
    assert small["target_ids"] == small["output_ids"] == answer(ids)
    assert small["target_ids"][-1] == EOS
    assert "w2 " not in small["text"] + " "
    assert (small["rouge_l"], small["rounds"], small["accepted"]) == (1.0, 1, 4)
    assert small["agree"] == [True] * 5
    assert (small["prefill_s"], small["decode_s"]) == (0.5 / 4, 1.0 / 4)
    ngram = made[queries[3].id, "ngram"]
    assert ngram["rouge_l"] == pytest.approx(0.5)  # two words of four are the same
    plain = made[queries[3].id, "autoregressive"]
    assert plain["output_ids"] != plain["target_ids"]  # sampled
    assert plain["seed"] is not None
    assert small["seed"] is None
    assert (plain["rounds"], plain["drafted"], plain["new_tokens"]) == (4, 0, 5)
    stored = tables.read_table(tmp_path / "out", "queries").to_pylist()
    (row,) = [row for row in stored if row["query_id"] == queries[3].id]
    assert row["embedding"] == [sum(ids), len(ids), 1.0]
    assert (row["embedder"], row["prompt_ids"], row["source"]) == ("target:fake/3", ids, "tests")


def test_cores_are_shared_evenly() -> None:
    assert cores_each([{"CPU": 16, "GPU": 4}, {"CPU": 8, "GPU": 1}], 5, 5) == 4
    assert cores_each([{"CPU": 16}, {"CPU": 8}], 2, 0) == 8
    assert cores_each([{"CPU": 2}], 4, 0) == 1
    assert cores_each([{"CPU": 64}, {"CPU": 8, "GPU": 2}], 2, 2) == 4


def test_only_the_first_turn_is_collected(tmp_path: Path) -> None:
    query = Query("chat", "mt_bench", ("first turn", "second turn"))
    engine = FakeEngine()
    sweep(engine, [query], tmp_path, OPTIONS)
    (row,) = tables.read_table(tmp_path, "queries").to_pylist()
    assert row["turns"] == ["first turn", "second turn"]
    assert row["prompt_ids"] == engine.encode_chat([{"role": "user", "content": "first turn"}])


def test_batches_hold_like_lengths_in_a_seeded_order() -> None:
    prompts = [Prompt(Query(str(n), "qa", ("?",)), [0] * n) for n in (5, 1, 4, 2, 3, 6)]
    groups = batches(prompts, 2, seed=1)
    assert sorted(sorted(len(p.ids) for p in g) for g in groups) == [[1, 2], [3, 4], [5, 6]]
    assert groups == batches(prompts, 2, seed=1)
    assert any(groups != batches(prompts, 2, seed=s) for s in range(2, 9))


def test_a_query_that_does_not_fit_becomes_error_rows(tmp_path: Path) -> None:
    queries = [*make_queries(1), Query("long", "qa", ("word " * 100,))]
    report = sweep(FakeEngine(), queries, tmp_path, OPTIONS)
    assert report.errors == len(ARMS)
    assert pairs(tmp_path) == all_pairs(queries)
    row = rows(tmp_path)["long", "small"]
    assert "the context holds 64" in row["error"]
    assert row["rouge_l"] is None
    assert row["rounds"] is None
    assert row["output_ids"] == []


def test_a_failing_arm_is_retried_alone(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries()
    bad = engine.encode_chat([{"role": "user", "content": "poison"}])[0]
    queries.append(Query("bad", "qa", ("short poison",)))
    engine.batch.poison = {"small": bad}
    assert sweep(engine, queries, tmp_path, OPTIONS).errors == 1
    made = rows(tmp_path)
    assert pairs(tmp_path) == all_pairs(queries)
    assert made["bad", "small"]["error"] == "small cannot do this"
    assert made["bad", "small"]["rouge_l"] is None
    assert [key for key, row in made.items() if row["error"]] == [("bad", "small")]
    assert ("small", 1) in engine.batch.calls  # its neighbours were tried one by one


def test_a_failing_target_fails_every_arm_of_that_query_only(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries()
    bad = engine.encode_chat([{"role": "user", "content": "poison"}])[0]
    queries.append(Query("bad", "qa", ("short poison",)))
    engine.batch.poison = {"target": bad}
    assert sweep(engine, queries, tmp_path, OPTIONS).errors == len(ARMS)
    assert pairs(tmp_path) == all_pairs(queries)
    stored = tables.read_table(tmp_path, "queries").to_pylist()
    assert [row["query_id"] for row in stored if row["embedding"] is None] == ["bad"]


def test_a_backend_that_loses_a_result_is_an_error_not_a_shift(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries(1)
    engine.batch.loses = "small"
    sweep(engine, queries, tmp_path, OPTIONS)
    made = rows(tmp_path)
    assert pairs(tmp_path) == all_pairs(queries)
    assert all(made[q.id, "small"]["error"] for q in queries)
    assert not any(made[q.id, "autoregressive"]["error"] for q in queries)


SEVERAL = replace(OPTIONS, temperatures=(0, 1), at_once=(1, 8), draws=3)


@pytest.mark.parametrize(("options", "each"), [(OPTIONS, 1), (SEVERAL, 2 * (1 + 3))], ids=str)
@pytest.mark.parametrize("step", range(1, 14))
def test_killed_inside_any_write_then_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, options: SweepOptions, each: int
) -> None:
    """A kill between any two system calls of any write, with whatever that leaves on disk."""
    queries, calls = make_queries(2), Counter[str]()
    real_replace, real_fsync = os.replace, os.fsync

    def tick() -> None:
        calls["all"] += 1
        if calls["all"] == step:
            raise Killed

    def dying_fsync(number: int) -> None:
        tick()
        real_fsync(number)

    def dying_replace(source: Path, goal: Path) -> None:
        tick()
        real_replace(source, goal)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", dying_fsync)
        patch.setattr(os, "replace", dying_replace)
        patch.setattr(Path, "unlink", lambda *a, **k: None)  # a killed process cleans nothing up
        with pytest.raises(Killed):
            sweep(FakeEngine(), queries, tmp_path / "out", options)
    assert len(pairs(tmp_path / "out")) % (each * len(ARMS)) == 0  # whole queries only
    sweep(FakeEngine(), queries, tmp_path / "out", options)
    assert pairs(tmp_path / "out") == sorted(all_pairs(queries) * each)
    assert len(rows(tmp_path / "out", "temperature", "running", "draw")) == 36 * each
    assert not list((tmp_path / "out").rglob("*.tmp"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of this process")
def test_sigkill_in_the_middle_then_resumed(tmp_path: Path) -> None:
    """A copy of this process, really killed while it holds the lock."""
    engine = FakeEngine()
    engine.batch.hook = lambda *_: die() if len(engine.batch.calls) == 9 else None
    killed(lambda: sweep(engine, make_queries(), tmp_path / "out", OPTIONS))
    stored = pairs(tmp_path / "out")
    assert 0 < len(stored) < 36
    report = sweep(FakeEngine(), make_queries(), tmp_path / "out", OPTIONS)
    assert report.already == len(stored) // 3
    assert pairs(tmp_path / "out") == all_pairs(make_queries())


def test_a_second_run_does_nothing_and_more_queries_are_added(tmp_path: Path) -> None:
    engine = FakeEngine()
    sweep(engine, make_queries(1), tmp_path, OPTIONS)
    engine.batch.calls.clear()
    assert sweep(engine, make_queries(1), tmp_path, OPTIONS).collected == 0
    assert engine.batch.calls == []
    assert engine.batch.costs_measured == 1  # the first machine's costs stay
    elsewhere = FakeEngine()
    assert sweep(elsewhere, make_queries(2), tmp_path, OPTIONS).collected == 6
    costs = read_manifest(tmp_path).costs  # and arms draft by them
    assert elsewhere.batch.told == engine.batch.told == costs
    assert not elsewhere.batch.costs_measured
    assert pairs(tmp_path) == all_pairs(make_queries(2))
    assert len(read_manifest(tmp_path).sessions) == 3


def test_a_worker_elsewhere_drafts_by_the_costs_that_it_is_told() -> None:
    engine = FakeEngine()
    worker = _Worker(lambda: (engine, engine.batch))
    prompts = [Prompt(each, [1, 2]) for each in make_queries(1)]
    arms, costs = _describe_arms(engine, ARMS), Costs((0.5,), {"small": 0.1})
    assert len(worker.collect(prompts, arms, OPTIONS, costs).queries) == len(prompts)
    assert engine.batch.told == costs and not engine.batch.costs_measured


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    sweep(FakeEngine(), make_queries(1), tmp_path, OPTIONS)
    other = FakeEngine(target="big@sha256:1/float32")
    with pytest.raises(DraftpickError) as caught:
        sweep(other, make_queries(1), tmp_path, SweepOptions(max_new_tokens=9))
    assert "target (there 'fake@sha256:0/float32', now 'big@sha256:1/float32')" in str(caught.value)
    assert "max_new_tokens (there 8, now 9)" in str(caught.value)
    assert "another --out" in str(caught.value)
    with pytest.raises(DraftpickError, match="arms"):
        sweep(FakeEngine(), make_queries(1), tmp_path, SweepOptions(("small",), 8))
    sweep(FakeEngine(), make_queries(1), tmp_path / "several", SEVERAL)
    for options, words in (
        (replace(SEVERAL, draws=5), r"draws \(there 3, now 5\)\. Use another --out"),
        (replace(SEVERAL, temperatures=(0, 0.7)), r"temperatures \(there \(0\.0, 1\.0\), now"),
    ):
        with pytest.raises(DraftpickError, match=words):
            sweep(FakeEngine(), make_queries(1), tmp_path / "several", options)
    assert sweep(FakeEngine(), make_queries(1), tmp_path / "several", SEVERAL).collected == 0


def test_costs_of_another_machine_are_named_and_seconds_not_mixed(tmp_path: Path) -> None:
    rows, seconds = tmp_path / "rows", tmp_path / "seconds"
    measured = SweepOptions(max_new_tokens=8, measure=True)
    for folder, options in ((rows, OPTIONS), (seconds, measured)):
        assert sweep(FakeEngine(), make_queries(1), folder, options).costs_of is None
    slower = FakeEngine()
    slower.timed_by = "slower fakes"
    assert sweep(slower, make_queries(2), rows, OPTIONS).costs_of == "fakes"
    assert sweep(FakeEngine(), make_queries(3), rows, OPTIONS).costs_of is None
    with pytest.raises(DraftpickError, match=r"was timed by fakes, .* would be by slower fakes"):
        sweep(slower, make_queries(2), seconds, measured)
    assert len(read_manifest(seconds).sessions) == 1
    manifest = seconds / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"timed_by"', '"of_a_version_without"'))
    assert sweep(slower, make_queries(2), seconds, measured).collected > 0


def test_a_changed_query_is_refused(tmp_path: Path) -> None:
    sweep(FakeEngine(), [Query("q", "qa", ("one",))], tmp_path, OPTIONS)
    with pytest.raises(DraftpickError, match=r"'q' is in .* with another text"):
        sweep(FakeEngine(), [Query("q", "qa", ("two",))], tmp_path, OPTIONS)


def test_a_query_with_another_group_or_prompt_is_refused(tmp_path: Path) -> None:
    plain, long = Query("q", "qa", ("one",)), Query("long", "qa", ("two",), prompt_ids=(7,) * 100)
    sweep(FakeEngine(), [plain, long], tmp_path, OPTIONS)
    sweep(FakeEngine(), [plain, long], tmp_path, OPTIONS)  # one that was refused is the same, too
    for other in replace(plain, group="a passage"), replace(plain, prompt_ids=(7, 8, 9)):
        with pytest.raises(DraftpickError, match="with another text, task, group or prompt"):
            sweep(FakeEngine(), [other], tmp_path, OPTIONS)


def test_unknown_arm_no_queries_bad_options(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="unknown arm 'huge'; known: autoregressive"):
        sweep(FakeEngine(), make_queries(), tmp_path / "out", SweepOptions(("huge",)))
    with pytest.raises(DraftpickError, match="no queries"):
        sweep(FakeEngine(), [], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    nothing: list[dict[str, Any]] = [{"max_new_tokens": 0}, {"batch_size": 0}]
    for wrong in (*nothing, {"temperature": 0.0}, {"temperature": float("nan")}):
        with pytest.raises(DraftpickError):
            SweepOptions(**wrong)


def test_measuring_decodes_every_arm_in_a_seeded_random_order(tmp_path: Path) -> None:
    options = SweepOptions(max_new_tokens=8, batch_size=4, measure=True)
    one, two = FakeEngine(), FakeEngine()
    sweep(one, make_queries(), tmp_path / "a", options)
    sweep(two, make_queries(), tmp_path / "b", options)
    assert one.decoded == two.decoded
    orders = [tuple(one.decoded[i : i + 3]) for i in range(3, len(one.decoded), 3)]
    assert all(sorted(order) == sorted(ARMS) for order in orders)
    assert len(set(orders)) > 1
    row = rows(tmp_path / "a")["qa-0", "small"]
    assert (row["measured_tokens"], row["measured_prefill_s"]) == (5, 0.25)
    assert row["measured_decode_s"] == pytest.approx(0.1)


def test_an_arm_that_fails_while_measured_is_an_error_row(tmp_path: Path) -> None:
    class Breaking(FakeEngine):
        def decode(self, arm: str, *args: Any, **kwargs: Any) -> Any:
            if arm == "ngram":
                raise ValueError("no table")
            return super().decode(arm, *args, **kwargs)

    options = SweepOptions(max_new_tokens=8, measure=True)
    report = sweep(Breaking(), make_queries(1), tmp_path, options)
    assert report.errors == 6
    row = rows(tmp_path)["qa-0", "ngram"]
    assert row["error"] == "while measuring: no table"
    assert row["rouge_l"] is None


def test_the_same_seed_gives_the_same_table(tmp_path: Path) -> None:
    for name in ("a", "b"):
        sweep(FakeEngine(), make_queries(), tmp_path / name, OPTIONS)
    one, other = table_of(tmp_path / "a"), table_of(tmp_path / "b")
    assert one.digest == other.digest and np.isfinite(one.rewards).all()


def test_without_similarity_no_drafter_writes(tmp_path: Path) -> None:
    queries, plain, quick = make_queries(2), FakeEngine(), FakeEngine()
    sweep(plain, queries, tmp_path / "plain", SweepOptions(max_new_tokens=8))
    sweep(quick, queries, tmp_path / "quick", SweepOptions(max_new_tokens=8, similarity=False))
    names = {name for name, _ in quick.batch.calls}
    assert names == {"target"} | {f"replay {name}" for name in ARMS if name != "autoregressive"}
    with_it, without = (table_of(tmp_path / name, "saved-passes") for name in ("plain", "quick"))
    np.testing.assert_array_equal(with_it.rewards, without.rewards)
    assert Collection.open(tmp_path / "quick").outcomes_at()[queries[0].id]["small"].rouge_l is None
    with pytest.raises(DraftpickError, match="needs the drafters' own answers"):
        table_of(tmp_path / "quick", "paper")
    with pytest.raises(DraftpickError, match=r"similarity \(there False, now True\)"):
        sweep(quick, make_queries(3), tmp_path / "quick", SweepOptions(max_new_tokens=8))


@pytest.mark.parametrize(
    "more", [{}, {"measure": True}, {"temperatures": (0.0, 1.0), "at_once": (1, 8)}], ids=str
)
def test_progress_counts_every_answer_once(more: dict[str, Any], tmp_path: Path) -> None:
    """Also where a prompt, or an arm on a prompt, fails: what is seen before a batch is stored is
    what is stored."""
    engine, queries = FakeEngine(), make_queries()
    ids = [engine.encode_chat([{"role": "user", "content": one.turns[0]}]) for one in queries]
    engine.batch.poison["target"] = ids[0][0]
    engine.batch.poison["replay small"] = ids[-1][0]
    seen: list[SweepProgress] = []
    report = sweep(engine, queries, tmp_path, replace(OPTIONS, **more), seen.append)
    assert report.errors > 0
    made = [(one.done, one.errors, one.tokens) for one in seen]
    assert made == sorted(made)
    stored = tables.read_table(tmp_path, "outcomes").to_pylist()
    assert made[-1] == (
        len(stored),
        sum(row["error"] is not None for row in stored),
        sum(row["new_tokens"] or 0 for row in stored if row["error"] is None),
    )
    assert seen[-1].total == len(stored) and len(seen) > 4
    assert seen[-1].tokens_per_s == seen[-1].tokens / seen[-1].seconds


def test_progress_goes_on_where_the_last_run_stopped(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries()
    sweep(engine, queries[:4], tmp_path, OPTIONS)
    seen: list[SweepProgress] = []
    sweep(engine, queries, tmp_path, OPTIONS, seen.append)
    assert (seen[0].done, seen[0].total, seen[0].tokens) == (12, 36, 0)
    assert seen[-1].done == 36
