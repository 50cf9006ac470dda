"""`draftpick audit` of `draftpick serve`: sampled answers go by equality."""

import json
from pathlib import Path

import pytest
from serve_toys import native_engine, served

from router import cli


def test_drafts_change_no_sampled_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "queries.jsonl"
    texts = ["abcabcab", "hello there", "zzz", "so many letters"]
    queries.write_text("\n".join(json.dumps({"id": t, "task": "qa", "turns": [t]}) for t in texts))
    with served(engine=native_engine(tmp_path / "tiny"), slots=4) as toy:
        words = ["audit", f"{toy.url}/v1", "--plain-body", '{"speculative": false}', "--json"]
        words += ["--queries", str(queries), "--model", "auto", "--draws", "4"]
        words += ["--max-new-tokens", "16", "--temperature"]
        for temperature in ("0.7", "1"):
            code, shown = cli.main([*words, temperature]), capsys.readouterr()
            assert shown.out, shown.err
            found = json.loads(shown.out)
            assert code == 0 and found["sampled"] is None, shown.err
            assert (found["seeded"]["answers"], found["seeded"]["differ"]) == (16, 0)
            assert "All 16 sampled answers are the same" in " ".join(found["sentences"])
