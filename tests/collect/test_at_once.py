"""Several answers at once: the rows of a load, and the table that is made of them."""

from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collect_fakes import ARMS, FakeEngine, make_queries, sweep
from stored_tables import rows, rows_of, table_of

from collect.records import ArmInfo, OutcomeKey
from collect.store.collection import Collection
from collect.summary import summarise, summarise_all
from collect.sweeps.batch import Prompt, Setup, SweepOptions
from collect.sweeps.conditions import collect_loads
from decoders.common.errors import DraftpickError
from policies.evaluation.units import units_of

OPTIONS = SweepOptions(max_new_tokens=8, batch_size=4, temperatures=(0, 1), at_once=(1, 8))
NUMBERS = ("rounds", "drafted", "accepted")
LOADS = ("temperature", "running")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(FakeEngine(), make_queries(), tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_a_row_for_each_arm_temperature_and_load(tmp_path: Path) -> None:
    queries = make_queries()
    report = sweep(FakeEngine(), queries, tmp_path, OPTIONS)
    assert (report.collected, report.errors, report.rows) == (12, 0, 12 * 3 * 2 * 2)
    made = rows(tmp_path, *LOADS)
    assert set(made) == {*product((query.id for query in queries), ARMS, (0, 1), (0, 7))}
    one, query = "small", queries[3].id
    alone, beside = made[query, one, 0, 0], made[query, one, 0, 7]
    assert [alone[name] for name in NUMBERS] == [1, 4, 4]
    assert [beside[name] for name in NUMBERS] == [2, 2, 4]
    kept = ("new_tokens", "parameters", "rouge_l", "repetitive", "seed")
    assert [alone[name] for name in kept] == [beside[name] for name in kept]
    assert beside["decode_s"] is None and beside["target_ids"] == [] and beside["text"] == ""
    drawn = made[query, one, 1, 7]
    assert [drawn[name] for name in NUMBERS] == [9, 1, 3]
    live = made[query, "ngram", 1, 7]  # its answers are its own
    assert [live[n] for n in NUMBERS] == [made[query, "ngram", 1, 0][n] for n in NUMBERS]
    assert made[query, "autoregressive", 1, 7]["rounds"] == 4


def test_an_arm_that_fails_beside_others_alone() -> None:
    engine = FakeEngine()
    infos = [ArmInfo(arm, arm, 1, True, {}) for arm in ARMS]
    prompts = [Prompt(query, [1, 2, 3]) for query in make_queries(1)[:2]]

    def fail(name: str, given: list[list[int]]) -> None:
        if engine.batch.answers == 8 and name == "replay small":
            raise MemoryError("no room")

    engine.batch.hook = fail
    done = collect_loads(Setup(engine, engine.batch, infos, OPTIONS), prompts)
    failed = {(r.arm, r.temperature, r.running) for r in done.outcomes if r.error is not None}
    assert failed == {("small", 0.0, 7)}
    assert len(done.outcomes) == 2 * 3 * 2 * 2


def test_goodput_is_judged_by_the_costs_of_shared_passes(folder: Path) -> None:
    table = table_of(folder, "modelled")
    assert {"temperature", "requests-running"} <= set(table.feature_names)
    assert len(table) == 12 * 4 and len(set(table.groups or ())) == 12
    names = [name for name in table.query_ids if name.startswith("qa-0")]
    assert names == ["qa-0", "qa-0@0x8", "qa-0@1", "qa-0@1x8"]
    small = table.arms.index("small")
    value = table.rewards[table.query_ids.index("qa-0@0x8"), small]
    # four tokens after the first, in two rounds of a pass over two tokens, with two drafted
    assert value == pytest.approx(4 * 0.020 / (2 * 0.028 + 2 * 8 * 0.002))
    assert (table.rewards[:, table.arms.index("autoregressive")] == 1).all()


def test_a_choice_of_loads(folder: Path) -> None:
    table, left_out = rows_of(folder, "modelled", at_once=[8])
    assert len(table) == 24 and left_out.other_temperatures == 24
    assert str(left_out) == "24 at other temperatures or loads"
    assert "requests-running" not in table.feature_names
    with pytest.raises(DraftpickError, match=r"for 4 answers at once .it has 1, 8.; .*--at-once"):
        table_of(folder, "modelled", at_once=[4])
    assert len(table_of(folder, "paper")) == 12  # for one answer at a time
    with pytest.raises(DraftpickError, match="'paper' is for one answer at a time"):
        table_of(folder, "paper", at_once=[8])


def test_settings_count_as_often_as_traffic_has_them(folder: Path) -> None:
    alike = table_of(folder, "modelled")
    table = table_of(folder, "modelled", weights={(0, 1): 3, (1, 8): 0})
    counts = {(0, 1): 3, (0, 8): 1, (1, 1): 1, (1, 8): 0}
    assert len(table) == 12 * 3 and set(table.weights) == {1, 3}
    names = {"": (0, 1), "@0x8": (0, 8), "@1": (1, 1), "@1x8": (1, 8)}
    count = [counts[names[query.removeprefix(query.split("@")[0])]] for query in alike.query_ids]
    means = units_of(table).by_query(table.rewards).mean(axis=0)
    assert means == pytest.approx(np.average(alike.rewards, 0, count))
    assert set(table.queries) == set(alike.queries)
    with pytest.raises(DraftpickError, match="temperature 1 with 4 answers at once; leave 1@4 out"):
        table_of(folder, "modelled", weights={(1, 4): 2})
    with pytest.raises(DraftpickError, match="all settings have the weight 0"):
        table_of(folder, "modelled", at_once=[8], weights={(0, 8): 0, (1, 8): 0})


def test_a_repetitive_answer_is_left_out_at_every_load(tmp_path: Path) -> None:
    sweep(FakeEngine(), make_queries(1), tmp_path, OPTIONS)
    assert Collection.open(tmp_path).repetitive == set()
    shard = tmp_path / "outcomes" / "00000.parquet"
    stored = pq.read_table(shard)
    flags = [row["query_id"] == "qa-0" and row["temperature"] == 1 for row in stored.to_pylist()]
    place = stored.schema.get_field_index("repetitive")
    pq.write_table(stored.set_column(place, "repetitive", pa.array(flags)), shard)
    table, left_out = rows_of(tmp_path, "modelled", repetitive="without")
    assert left_out.repetitive == 2
    assert {"qa-0@1", "qa-0@1x8"}.isdisjoint(table.query_ids) and "qa-0@0x8" in table.query_ids


def test_a_summary_of_a_load(folder: Path) -> None:
    found = Collection.open(folder)
    assert summarise(found, "modelled", 0.5, 1.0, 8) == summarise_all(found, "modelled")[3]
    assert [one.temperature for one in summarise_all(found, "paper")] == [0]
    assert len(found.outcomes_at(0.0, 7)) == 12
    assert OutcomeKey("qa-0", 0.0, 7) in found.outcomes


@pytest.mark.parametrize("wrong", [(8,), (0, 1), ()])
def test_one_answer_alone_must_be_among_them(wrong: tuple[int, ...]) -> None:
    with pytest.raises(DraftpickError, match=r"1 must be the least .* for instance 1,8,32"):
        SweepOptions(at_once=wrong)
