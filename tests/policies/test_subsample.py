"""A smaller table: so many queries, in proportion, the smaller choice inside the larger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_tables import table

from policies import PolicyError, RewardTable
from policies.selection.crossfit import subsample


def of_tasks(tasks: list[str], rows: int = 1) -> RewardTable:
    """`rows` rows a query."""
    n = len(tasks) * rows
    made = table(np.zeros((n, 2)), np.arange(2.0 * n).reshape(-1, 2))
    of = np.repeat(np.arange(len(tasks)), rows)
    return replace(made, tasks=[tasks[i] for i in of], groups=[str(i) for i in of])


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 9),
    st.data(),
)
def test_so_many_whole_queries_and_nested(
    tasks: list[str], rows: int, seed: int, data: st.DataObject
) -> None:
    whole = of_tasks(tasks, rows)
    more = data.draw(st.integers(1, len(tasks)))
    fewer = data.draw(st.integers(1, more))
    large, small = subsample(whole, more, seed), subsample(whole, fewer, seed)
    assert len(set(large.groups)) == more and len(large) == more * rows
    assert len(set(small.groups)) == fewer and set(small.query_ids) <= set(large.query_ids)
    for task in set(tasks):  # a task's share is kept but for one query
        had, kept = tasks.count(task), small.tasks.count(task) / rows
        assert abs(kept - fewer * had / len(tasks)) <= len(set(tasks))


def test_every_task_in_its_proportion() -> None:
    whole = of_tasks(["x"] * 60 + ["y"] * 30)
    counts = [subsample(whole, 30, seed).tasks.count("x") for seed in range(30)]
    assert max(abs(count - 20) for count in counts) <= 2


def test_another_seed_takes_others() -> None:
    whole = of_tasks(["x"] * 50)
    assert subsample(whole, 10, 0).groups != subsample(whole, 10, 1).groups


@pytest.mark.parametrize("queries", [0, -1, 4])
def test_a_number_that_cannot_be(queries: int) -> None:
    with pytest.raises(PolicyError, match="1 to 3, or collect more"):
        subsample(of_tasks(["x"] * 3), queries, 0)
