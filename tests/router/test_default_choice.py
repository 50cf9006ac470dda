"""The policy that ships, on the default target: what it takes for questions of each kind."""

from __future__ import annotations

import pytest

from collect.queries import shipped
from decoders.records import Request
from router import Router


@pytest.mark.slow
def test_the_shipped_policy_tells_sql_and_json_from_other_questions() -> None:
    """By the prompt alone: of the test's queries, with schemas and shapes of their own."""
    router = Router.from_pretrained()
    taken: dict[str, list[str]] = {}
    for query in shipped("test"):
        answer = router.generate(query.turns[0], max_new_tokens=1)
        taken.setdefault(query.task, []).append(answer.arm)
    for task, arms in taken.items():
        share = arms.count("hybrid-data") / len(arms)
        assert share >= 0.8 if task in ("sql", "json") else share <= 0.2, (task, arms)
    assert Request().sampling.greedy
