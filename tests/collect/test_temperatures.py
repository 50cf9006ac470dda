"""Several temperatures: the rows, what fails on the way, and the table that is made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_fakes import ARMS, FakeEngine, answer, make_queries, sweep
from stored_tables import rows, rows_of, table_of

from collect.features import RequestContext, feature_vector
from collect.queries import Query
from collect.store import manifest, tables
from collect.store.collection import Collection
from collect.summary import summarise
from collect.sweeps.batch import SweepOptions, seed_of
from decoders.common.errors import DraftpickError, NoSuchName
from policies import fit

OPTIONS = SweepOptions(max_new_tokens=8, batch_size=4, temperatures=(0, 0.7, 1))
HOT = (0.7, 1.0)


def every_key(queries: list[Query]) -> set[tuple[str, str, float]]:
    return {(query.id, arm, at) for query in queries for arm in ARMS for at in (0, *HOT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(FakeEngine(), make_queries(), tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_a_row_for_each_arm_and_temperature(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries()
    report = sweep(engine, queries, tmp_path, OPTIONS)
    assert (report.collected, report.errors, report.rows) == (12, 0, 12 * 9)
    made = rows(tmp_path, "temperature")
    assert set(made) == every_key(queries)
    ids = engine.encode_chat([{"role": "user", "content": queries[3].turns[0]}])
    seed = seed_of(OPTIONS, queries[3].id, 0.7)
    drawn = answer(ids, 1 + seed % 3)
    small = made[queries[3].id, "small", 0.7]
    assert (small["rounds"], small["drafted"], small["accepted"]) == (2, 4, 3)
    assert (small["seed"], small["new_tokens"]) == (seed, 5)
    assert small["target_ids"] == drawn and small["rouge_l"] is None
    plain = made[queries[3].id, "autoregressive", 0.7]
    assert (plain["rounds"], plain["drafted"], plain["target_ids"]) == (4, 0, drawn)
    ngram = made[queries[3].id, "ngram", 0.7]
    assert (ngram["rounds"], ngram["new_tokens"]) == (2, 4)
    assert ngram["output_ids"] == answer(ids, 7)[:4] and ngram["target_ids"] == drawn
    stored = tables.read_table(tmp_path, "queries", ("max_new_tokens",)).to_pylist()
    assert {row["max_new_tokens"] for row in stored} == {8}
    assert manifest.read_manifest(tmp_path).identity.temperatures == (0, 0.7, 1)


def test_a_query_s_answers_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    queries = make_queries()
    sweep(FakeEngine(), queries, tmp_path / "a", OPTIONS)
    alone = SweepOptions(max_new_tokens=8, batch_size=1, temperatures=(1, 0, 0.7))
    sweep(FakeEngine(), queries[::-1], tmp_path / "b", alone)
    one, other = (rows(tmp_path / name, "temperature") for name in "ab")
    columns = ("target_ids", "seed", "rounds", "output_ids")
    for key in one:
        if key[2] > 0:
            assert [one[key][c] for c in columns] == [other[key][c] for c in columns]


def test_every_query_and_temperature_has_a_seed_of_its_own() -> None:
    other = SweepOptions(seed=1)
    seeds = [seed_of(o, q, t) for o in (OPTIONS, other) for q in "ab" for t in (0.7, 1.0)]
    assert len(set(seeds)) == 8


def test_what_fails_at_a_temperature_fails_there_alone_at_every_load(tmp_path: Path) -> None:
    engine, queries = FakeEngine(), make_queries(1)
    bad = engine.encode_chat([{"role": "user", "content": "poison"}])[0]
    worse = engine.encode_chat([{"role": "user", "content": "venom"}])[0]
    queries += [Query("bad", "qa", ("short poison",)), Query("worse", "qa", ("some venom",))]
    queries.append(Query("long", "qa", ("word " * 100,)))
    engine.batch.poison = {"hot small": bad, "sampled": worse}
    report = sweep(engine, queries, tmp_path, replace(OPTIONS, at_once=(1, 8)))
    made = rows(tmp_path, "temperature", "running")
    assert set(made) == {(*key, running) for key in every_key(queries) for running in (0, 7)}
    alone, errors = (
        {key[:3] for key, row in made.items() if row["error"] and key[3] == running}
        for running in (0, 7)
    )
    assert alone == errors
    assert {key for key in errors if key[0] == "bad"} == {("bad", "small", at) for at in HOT}
    # the autoregressive arm draws at temperature 1 for its similarity at temperature 0, too
    assert {key for key in errors if key[0] == "worse"} == {
        ("worse", "autoregressive", 0.0), *(("worse", arm, at) for arm in ARMS for at in HOT)
    }  # fmt: skip
    assert sum(key[0] == "long" for key in errors) == 9
    assert report.errors == 2 * len(errors) == 2 * (2 + 7 + 9)
    assert made["bad", "small", 1.0, 0]["rounds"] is None
    table, left_out = rows_of(tmp_path, "modelled")
    assert (left_out.unembedded, left_out.failed) == (6, 4)
    assert str(left_out) == "6 where the target failed, 4 where every arm failed"
    assert np.isnan(table.rewards[table.query_ids.index("bad@1"), 1])
    assert np.isnan(table.losses[table.query_ids.index("bad@1"), 1])


@pytest.mark.parametrize("wrong", [(), (1.0,), (0, -1), (0, float("nan")), (0, float("inf"))])
def test_wrong_temperatures_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(DraftpickError, match="temperature"):
        SweepOptions(temperatures=wrong)


def test_a_table_has_a_row_for_each_temperature(folder: Path) -> None:
    table, left_out = rows_of(folder, "saved-passes")
    assert len(table) == 36 and not str(left_out)
    assert table.query_ids[:3] == ["math-0", "math-0@0.7", "math-0@1"]
    assert table.groups[:4] == ["math-0", "math-0", "math-0", "math-1"]
    assert table.tasks[:3] == ["math"] * 3
    assert (table.embeddings[0] == table.embeddings[2]).all()
    hardware = manifest.read_manifest(folder).sessions[0]["hardware"]
    assert f"{hardware['cores']} cores" in table.machine
    assert fit("best-fixed", table).policy.origin.machine == table.machine
    small = table.arms.index("small")
    assert table.rewards[:3, small].tolist() == pytest.approx([0.75, 1 - 2 / 4, 1 - 2 / 4])
    assert table.rewards[:3, 0].tolist() == [0, 0, 0]
    assert table_of(folder, "saved-passes", temperatures=[0.7]).query_ids[0] == "math-0@0.7"
    held, rest = table.split(0.5, seed=1)
    assert rest is not None and not set(held.groups) & set(rest.groups)


def test_rewards_of_similarity_and_time_are_of_greedy_answers(folder: Path) -> None:
    table, left_out = rows_of(folder, "paper")
    assert len(table) == 12 and left_out.other_temperatures == 24
    assert str(left_out) == "24 at other temperatures or loads"
    with pytest.raises(DraftpickError, match="'paper' is for greedy answers"):
        table_of(folder, "paper", temperatures=[0, 1])
    with pytest.raises(DraftpickError, match=r"not collected at temperature 0\.5 \(it has 0, 0\.7"):
        table_of(folder, "modelled", temperatures=[0.5])


def test_features_are_of_each_row_s_request(folder: Path) -> None:
    table = table_of(folder, "modelled")
    assert table.feature_names == ("temperature", "greedy", "log-prompt-length")  # what varies
    assert table.inputs.shape == (36, 3 + 3)
    queries = tables.read_table(folder, "queries").to_pylist()
    stored = {row["query_id"]: row["prompt_ids"] for row in queries}
    for row, (group, name) in enumerate(zip(table.groups, table.query_ids, strict=True)):
        at = float(name.partition("@")[2] or 0)
        context = RequestContext(stored[group], 8, at)
        assert (table.features[row] == feature_vector(table.feature_names, context)).all()
    assert table_of(folder, "modelled", features=()).feature_names == ()
    chosen = table_of(folder, "modelled", features=["log-max-new-tokens", "temperature"])
    assert chosen.features[:2].tolist() == [pytest.approx([np.log(8), 0]),
                                            pytest.approx([np.log(8), 0.7])]  # fmt: skip
    with pytest.raises(NoSuchName, match="unknown feature 'mood'; known: greedy"):
        table_of(folder, "modelled", features=["mood"])


def test_losses_are_those_of_the_arms_own_greedy_answers(tmp_path: Path) -> None:
    engine = FakeEngine()
    lossy = engine.arms["ngram"]
    engine.arms["ngram"] = type(lossy)(lossy.name, lossy.kind, lossless=False)
    sweep(engine, make_queries(1), tmp_path, OPTIONS)
    table = table_of(tmp_path, "modelled")
    assert (table.losses[:, :2] == 0).all()
    greedy = Collection.open(tmp_path).outcomes_at()
    for row, group in enumerate(table.groups):
        similarity = greedy[group]["ngram"].rouge_l
        assert similarity == pytest.approx(0.5)
        assert table.losses[row, 2] == pytest.approx(1 - similarity)


def test_sampled_answers_are_announced_with_the_greedy_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that prompts are read once for all temperatures."""
    engine, announced, asked = FakeEngine(), list[Any](), list[Any]()
    usual = engine.batch.target

    def target(prompts: Any, most: int, *drawn: Any, also: Any = ()) -> Any:
        announced.extend((prompts, *each) for each in also)
        if drawn:
            asked.append((prompts, *drawn))
        return usual(prompts, most, *drawn)

    monkeypatch.setattr(engine.batch, "target", target)
    sweep(engine, make_queries(), tmp_path, OPTIONS)
    assert asked and sorted(asked) == sorted(announced)


class Repeating(FakeEngine):
    """Its target repeats itself at temperature 0 on prompts of an even length."""

    def __init__(self) -> None:
        super().__init__()
        usual = self.batch.target

        def target(
            prompts: Any, most: int, temperature: float = 0.0, seed: Any = 0, **_: Any
        ) -> Any:
            made = usual(prompts, most, temperature, seed)
            if temperature == 0:
                for ids, prompt in zip(made.ids, prompts, strict=True):
                    ids[:] = [7, 8] * 10 if len(prompt) % 2 == 0 else ids
            return made

        self.batch.target = target


def test_loops_can_be_left_out(tmp_path: Path) -> None:
    queries = make_queries()
    sweep(Repeating(), queries, tmp_path, OPTIONS)
    even = {query.id for query in queries if len(query.turns[0].split()) % 2 == 0}
    assert 0 < len(even) < len(queries)
    table, left_out = rows_of(tmp_path, "modelled", repetitive="without")
    assert left_out.repetitive == len(even) and "whose answer is repetitive" in str(left_out)
    missing = {f"{q.id}" for q in queries} - set(table.query_ids)
    assert missing == even  # at temperature 0 alone
    assert {f"{name}@1" for name in even} <= set(table.query_ids)
    greedy, hot = (
        summarise(Collection.open(tmp_path), "modelled", temperature=at) for at in (0.0, 1.0)
    )
    assert greedy.repetitive_share == pytest.approx(len(even) / len(queries))
    assert hot.repetitive_share == 0
    with pytest.raises(NoSuchName, match="some"):
        rows_of(tmp_path, "modelled", repetitive="some")
