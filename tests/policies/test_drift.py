"""The world changes half-way through 2,000 requests, in three ways (`benchmarks/drift.py`)."""

import json
from pathlib import Path
from typing import Any

import drift
import numpy as np
import pytest

from policies import options_of


@pytest.mark.slow  # half a minute, no model
@pytest.mark.parametrize("kind", ["tasks", "temperature", "drafter"])
def test_drift_is_recovered_from_and_the_budget_is_kept(kind: str) -> None:
    """300 requests after the drift, learning online has recovered at least nine tenths of what
    training again on every arm's reward recovers, and earns within 1% of it. At no moment is more
    than the budget lost against the best fixed arm, before the drift."""
    table = drift.made_up(1200, 0)
    runs = [drift.simulate(table, kind, 2000, seed) for seed in range(2)]
    earned = {who: np.stack([run[who] for run in runs]) for who in runs[0]}
    told = drift.summary({kind: earned})[kind]
    assert told["thompson"]["recovered"] > 0.9, told
    assert told["thompson"]["reward"] > 0.99 * told["retrained"]["reward"], told
    lost = (earned["best fixed"] - earned["thompson"]).cumsum(axis=1)
    allowed = options_of("thompson")["budget"] * earned["best fixed"].cumsum(axis=1)
    assert (lost - allowed).max() < earned["best fixed"].max()
    assert told["static"]["regret"][2] > 1.15 * told["retrained"]["regret"][2]  # there was a drift


@pytest.mark.slow
def test_the_script_tells_and_draws(tmp_path: Path, script: Any) -> None:
    out, figures = tmp_path / "drift.png", tmp_path / "drift.json"
    script("drift", "--requests", 620, "--runs", 1, "--out", out, "--json", figures)
    assert out.read_bytes().startswith(b"\x89PNG")
    told = json.loads(figures.read_text())
    assert set(told) == set(drift.KINDS)
    assert all(set(players) == set(drift.PLAYERS) for players in told.values())
    with pytest.raises(SystemExit):
        script("drift", "--requests", 600)
