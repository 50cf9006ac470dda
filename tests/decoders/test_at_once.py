"""What decoding costs, and how arms draft, where several answers are written at once."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path

import pytest
import torch
from decoder_toys import arms_with_a_cell, native

from collect.replay.batch import Batch
from decoders import Engine
from decoders.arms import recipe
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.costs import measured
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import WIDEST, assume, known
from decoders.costs.under_load import SharedCosts
from decoders.models.memory import OutOfMemory
from decoders.testing.toys import ToyBackend


@pytest.fixture
def engine(tiny: Callable[..., Path], tmp_path: Path) -> Engine:
    made = arms_with_a_cell(tmp_path)
    made.append(made[-1] | {"name": "adaptive", "length": {"kind": "adaptive", "k": 4}})
    target = native(tiny(max_position_embeddings=512, vocab_size=128))
    assume(target, PassCosts((1.0, 1.0, 1.0, 1.0, 1.0, 1.0)))
    return Engine(target, {each["name"]: recipe(**each) for each in made}, name="tiny")  # type: ignore[arg-type]


def native_like(engine: Engine) -> LlamaBackend:
    """The same model, of which no costs are known."""
    target = engine.target
    assert isinstance(target, LlamaBackend)
    return LlamaBackend(target.shape, target.weights)


def test_arms_that_go_by_costs_draft_less_beside_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = SharedCosts((1, 2, 8), (1, 2), ((1.0, 1.0), (1.0, 1.5), (1.0, 8.0)), narrow=8)
    monkeypatch.setattr("decoders.costs.under_load.measure", lambda slots: dear)
    monkeypatch.setattr("decoders.costs.under_load.timed", lambda *given: dear)
    batch = Batch(engine, at_once=(1, 2, 8))
    costs = batch.cost_table
    assert set(costs.at_once) == {2, 8} and costs.of_answers(8).verify_s == (1.0, 8.0)
    assert costs.of_answers(1) is costs
    assert costs.of_answers(8).draft_s["copy"] == pytest.approx(8 * costs.draft_s["copy"])
    assert costs.draft_s["cell"] <= costs.of_answers(8).draft_s["cell"]
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    answer = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5, 9, 2, 6]
    # what an arm drafts at most in so many rounds where a token more costs eight passes
    tries = {"copy": 0, "both": 1 / 4, "adaptive": 1, "cell": 3}
    for arm, least in tries.items():
        drafted, rounds = [], 0
        for answers in (1, 2, 8, 1):
            with batch.at_batch_size(answers):
                (replay,) = batch.replay(arm, [prompt], [answer], len(answer))
            drafted.append(replay.drafted)
            rounds = max(rounds, replay.rounds)
        assert drafted[2] <= drafted[1] <= drafted[0] > 0
        if arm != "adaptive":  # which remembers what a draft cost
            assert drafted[3] == drafted[0]
        if arm == "cell":  # of fixed length
            assert len(set(drafted)) == 1
        else:
            assert drafted[2] <= ceil(least * rounds) and drafted[2] < drafted[0], arm


def test_passes_of_one_answer_are_measured_where_no_arm_goes_by_them(engine: Engine) -> None:
    fixed = {"autoregressive": engine.arms["autoregressive"], "cell": engine.arms["cell"]}
    alone = Engine(native_like(engine), fixed, name="tiny")
    costs = Batch(alone, at_once=(1, 2)).cost_table
    assert len(costs.verify_s) == WIDEST and len(costs.of_answers(2).verify_s) == 8
    drafts_by = known(alone.target)
    assert drafts_by is not None and len(drafts_by.verify_s) == WIDEST


def test_shared_passes_are_timed(engine: Engine, tmp_path: Path) -> None:
    for folder in (None, tmp_path / "costs"):
        costs = Batch(engine, at_once=(1, 4), folder=folder).cost_table.of_answers(4)
        assert len(costs.verify_s) == 8 and min(costs.verify_s) > 0


def test_a_target_without_shared_passes_is_refused() -> None:
    toy = ToyBackend(torch.eye(8))
    arms = {"autoregressive": recipe(kind="autoregressive", name="autoregressive")}
    with pytest.raises(DraftpickError, match=r"native backend alone.*leave --at-once out"):
        Batch(Engine(toy, arms, name="toy"), at_once=(1, 2))


def test_room_for_all_answers_is_seen_to_before_costs_are_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def full(engine: Engine, answers: int) -> None:
        raise OutOfMemory(f"no room for {answers}")

    monkeypatch.setattr("collect.replay.costs.ContinuousBatch", full)
    batch = Batch(engine, at_once=(1, 8), on_costs=lambda *now: told.append(now))
    with pytest.raises(OutOfMemory, match="no room for 8"):
        _ = batch.cost_table
    assert not told
    monkeypatch.undo()
    _ = batch.cost_table
    assert told == [(time, answers) for answers in (1, 8) for time in range(measured.MEASUREMENTS)]
