"""Several draws: answers that are drawn for one query at one temperature, and their mean."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect_fakes import ARMS, FakeBatch, FakeEngine, make_queries, sweep
from stored_tables import rows, rows_of, table_of

from collect.queries import Query
from collect.replay.records import Replay
from collect.store.collection import Collection
from collect.summary import summarise_all
from collect.sweeps import conditions
from collect.sweeps.batch import SweepOptions, seed_of
from decoders.common.errors import DraftpickError
from policies.selection.headroom import headroom
from router.commands.collect.plan import CollectOptions, plan
from router.commands.with_records import made

ONE = SweepOptions(max_new_tokens=8, batch_size=4, temperatures=(0, 1), at_once=(1, 8))
OPTIONS = replace(ONE, draws=3)


class Varied(FakeEngine):
    """Its arm `small` needs other numbers of rounds along other answers."""

    def __init__(self) -> None:
        super().__init__()

        class Batch(FakeBatch):
            def replay(self, name: str, *given: Any) -> list[Replay]:
                made = super().replay(name, *given)
                if self.answers > 1 or not given[-1]:
                    return made
                return [
                    replace(each, rounds=1 + seed % 3)
                    for each, seed in zip(made, given[-1], strict=True)
                ]

        self.batch = Batch()


def planned(**options: Any) -> SweepOptions | None:
    return plan(made(CollectOptions, options))


def drawn_rows(folder: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    return rows(folder, "temperature", "running", "draw")


def every_key(queries: list[Query]) -> set[tuple[str, str, float, int, int]]:
    drawn = [(0.0, 0), *((1.0, draw) for draw in range(3))]
    return {
        (q.id, a, at, n, draw) for q in queries for a in ARMS for n in (0, 7) for at, draw in drawn
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(Varied(), make_queries(4), tmp_path / "out", OPTIONS)
    return tmp_path / "out"


def test_a_row_for_each_draw_with_a_seed_of_its_own(tmp_path: Path) -> None:
    queries = make_queries(1)
    report = sweep(Varied(), queries, tmp_path, OPTIONS)
    assert report.rows == len(queries) * 3 * 4 * 2 and report.errors == 0
    made = drawn_rows(tmp_path)
    assert set(made) == every_key(queries)
    seeds = {row["seed"] for key, row in made.items() if key[2] > 0}
    assert seeds == {seed_of(OPTIONS, q.id, 1.0, draw) for q in queries for draw in range(3)}
    assert len(seeds) == 3 * len(queries)
    assert seed_of(OPTIONS, "q", 1.0, 0) == seed_of(ONE, "q", 1.0)


def test_a_mean_over_draws_is_that_of_collections_made_apart(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = table_of(folder, "modelled")
    apart = []
    for draw in range(3):
        own = partial(lambda draw, o, q, t, _: seed_of(o, q, t, draw), draw)
        monkeypatch.setattr(conditions, "seed_of", own)
        sweep(Varied(), make_queries(4), tmp_path / str(draw), ONE)
        apart.append(table_of(tmp_path / str(draw), "modelled"))
        assert apart[-1].query_ids == together.query_ids
    np.testing.assert_allclose(together.rewards, np.mean([t.rewards for t in apart], axis=0))
    for row, name in enumerate(together.query_ids):
        assert together.draws[row] == (3 if "@1" in name else 0)
        if "@1" in name:
            each = [t.rewards[row] for t in apart]
            np.testing.assert_allclose(together.drawn[:, row], each)
    assert not np.allclose(together.rewards, apart[0].rewards)


def test_an_arm_that_fails_on_one_draw_has_failed_there(tmp_path: Path) -> None:
    engine, queries = Varied(), make_queries(1)[:1]
    calls = []

    def fail(name: str, prompts: list[list[int]]) -> None:
        calls.append(name)
        if name == "hot small" and calls.count(name) == 2:
            raise MemoryError("no room")

    engine.batch.hook = fail
    report = sweep(engine, queries, tmp_path, replace(OPTIONS, at_once=(1,)))
    assert report.errors == 1
    table, left_out = rows_of(tmp_path, "modelled")
    assert not str(left_out)
    assert np.isnan(table.rewards).tolist() == [[False] * 3, [False, True, False]]
    assert table.draws.tolist() == [0, 3]
    filled = table.filled()
    assert filled.drawn is not None and not np.isnan(filled.drawn[:, 1]).any()


def test_a_summary_names_its_temperature_load_and_draws(folder: Path) -> None:
    found = summarise_all(Collection.open(folder), "modelled")
    assert [(one.temperature, one.answers_at_once, one.draws, one.optimistic) for one in found] == [
        (0, 1, 1, False), (1, 1, 3, True), (0, 8, 1, False), (1, 8, 3, True)
    ]  # fmt: skip


def test_draws_take_the_oracle_s_noise_off(tmp_path: Path, folder: Path) -> None:
    sweep(Varied(), make_queries(4), tmp_path / "once", ONE)
    once = headroom(table_of(tmp_path / "once", "modelled"))
    assert once.optimistic and once.draws == 1
    found = headroom(table_of(folder, "modelled"))
    assert not found.optimistic and found.draws == 3
    assert found.choices[-1].mean < found.oracle_at_most < once.choices[-1].mean
    assert "drawn several times" in " ".join(found.advice)


def test_the_option() -> None:
    found = planned(out=Path("no-such-folder"), temperatures="0,1", draws=4)
    assert found is not None and found.draws == 4
    with pytest.raises(DraftpickError, match="4 draws need a temperature above 0"):
        planned(out=Path("no-such-folder"), draws=4)
    with pytest.raises(DraftpickError, match="at least 1, not 0"):
        SweepOptions(draws=0)
