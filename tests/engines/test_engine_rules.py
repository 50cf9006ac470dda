"""Engines' own drafting is replayed as the engines draft."""

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gguf_toys import save_golden_gguf
from real_servers import ENGINES

from collect.traffic.engine_rules.recipe import EngineRecipe
from collect.traffic.engine_rules.vllm import Suffix
from collect.traffic.logged import AbsentTarget, LoggedReplay
from collect.traffic.records import KnownText

pytestmark = pytest.mark.engines


def said(environment: str, script: str, *words: Any) -> Any:
    python = ENGINES / environment / "bin" / "python"
    command = [python, Path(__file__).with_name(script), *words]
    done = subprocess.run(command, capture_output=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def test_suffixes_are_those_of_arctic_inference() -> None:
    drafted = 0
    for requests in said("vllm", "with_arctic_inference.py"):
        rule = Suffix(24)
        for prompt, rounds in requests:
            rule.begin(prompt)
            for new, most, draft in rounds:
                assert rule.draft(new, most) == draft
                drafted += len(draft)
            rule.remember(rule.end([]))
    assert drafted > 10_000


ROWS = [("ngram-simple", (3, 8)), ("ngram-simple", (6, 24)), ("ngram-mod", (16, 2, 16)),
        ("ngram-mod", (4, 8, 24)), ("ngram-map-k", (3, 8)), ("ngram-map-k", (6, 24))]  # fmt: skip


def test_n_grams_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Of a map of keys the first answer alone: a slot keeps its map for the next."""
    save_golden_gguf(tmp_path / "model.gguf", "llama")
    chance = Random(0)
    prompts = [[chance.randrange(1, 99) for _ in range(40)] for _ in range(4)]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    drafted = 0
    for (rule, sizes), answers in zip(
        ROWS, said("xllamacpp", "with_xllamacpp_ngrams.py", tmp_path), strict=True
    ):
        answers = answers[:1] if rule == "ngram-map-k" else answers
        texts = [KnownText(p, a[0], 200) for p, a in zip(prompts, answers, strict=False)]
        row = EngineRecipe(
            name="a", engine="llama.cpp", rule=rule, settings=sizes, longest=sizes[-1], options=()
        )
        found = LoggedReplay(AbsentTarget(100), None, {"a": row}).replay(
            "a", texts, range(len(texts))
        )
        counts = [(each.drafted, each.accepted) for each in found if each is not None]
        assert counts == [(each[1], each[2]) for each in answers], (rule, sizes)
        drafted += sum(each[0] for each in counts)
    assert drafted > 300
