"""The T5 family's script, end to end on a handful of sentences."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

COLOURS = {"red": "rot", "blue": "blau", "green": "grün", "white": "weiß"}
THINGS = {"house": "Haus", "car": "Auto", "boat": "Boot", "book": "Buch"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Sixteen sentences a task; the first four are the test set too."""
    pairs = [(c, t) for c in COLOURS for t in THINGS]
    rows: dict[str, list[dict[str, str]]] = {
        "en-de": [
            {
                "input": f"translate English to German: The {t} is {c}.",
                "target": f"Das {THINGS[t]} ist {COLOURS[c]}.",
                "source": "hand",
            }
            for c, t in pairs
        ],
        "sum": [
            {
                "input": f"summarize: We saw a {t}. It was {c}. We liked the {c} {t}.",
                "target": f"We liked a {c} {t}.",
                "source": "hand",
            }
            for c, t in pairs
        ],
    }
    for task, lines in rows.items():
        for split, kept in (("train", lines), ("test", lines[:4])):
            text = "".join(json.dumps(line) + "\n" for line in kept)
            (tmp_path / f"{task}.{split}.jsonl").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_family_is_made_scored_and_left_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collect.queries import read_queries
    from decoders import Engine, Request

    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    import train_t5_family

    out = data / "family"
    options = f"--data {data} --out {out} --minutes 0.1 --vocab 120".split()
    monkeypatch.setattr(sys, "argv", ["train_t5_family.py", *options])
    train_t5_family.main()
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert set(found["quality"]["target"]) == {"en-de", "sum"}
    for task in ("en-de", "sum"):
        arms = found["arms"][task]
        assert list(arms) == ["autoregressive", "draft-en-de", "draft-sum", "max-gram"]
        assert all(figures["equal"] == 1.0 for figures in arms.values())

    card = json.loads((out / "en-de" / "card.json").read_text())
    assert (card["kind"], card["data"], card["seed"]) == ("drafter", {"hand": 16}, 0)
    assert len(read_queries([out / "en-de.jsonl", out / "sum.jsonl"])) == 8
    asked = read_queries([out / "train.jsonl"])
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [query.id for query in asked]
    engine = Engine.load(str(out / "target"), out / "arms.yaml", dtype="float32", device="cpu")
    ids = engine.encode_chat([{"role": "user", "content": "summarize: We saw a boat."}])
    assert engine.decode("draft-sum", ids, Request(5)).ids  # the card's hashes hold

    weights = out / "target" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    train_t5_family.main()  # nothing is left to do
    assert weights.stat().st_mtime_ns == before
    assert json.loads((out / "results.json").read_text()) == found
