"""A router over the fake engine, and a few questions."""

import json
from pathlib import Path
from typing import Any

import pytest
from router_fakes import FakePolicy

from decoders.testing.fake_engine import FakeEngine
from router.routing.router import Router


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def router(engine: FakeEngine) -> Router:
    return Router(engine, FakePolicy())


@pytest.fixture
def question_file(tmp_path: Path) -> Path:
    """Spec-Bench's form: a two-turn chat, translations, sums, and categories of mt_bench."""
    lines: list[dict[str, Any]] = [
        {"question_id": 81, "category": "writing", "turns": ["tell a story", "shorter now"]},
        {"question_id": 82, "category": "math", "turns": ["what is it", "and now what"]},
        {"question_id": 83, "category": "writing", "turns": ["write a poem please"]},
        {"question_id": 241, "category": "translation", "turns": ["Guten Tag, liebe Welt hier"],
         "reference": ["GUTEN TAG, LIEBE WELT HIER"]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["6 + 6 is it 12"],
         "reference": ["6+6=12\n#### 12"]},
        {"question_id": 402, "category": "math_reasoning", "turns": ["6 + 7 is it 12"],
         "reference": ["6+7=13\n#### 13"]},
    ]  # fmt: skip
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
