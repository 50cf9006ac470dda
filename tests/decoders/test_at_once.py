"""What decoding costs, alone and where several answers are written at once: passes, drafts, and
what a round takes beside them."""

import json
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from decoder_toys import CPU, TickingClock, Tiny, native, random_cell, save_cell
from engine_toys import arms, tokenizer

from collect.replay import rounds
from collect.replay.batch import Batch
from collect.replay.costs import shapes
from collect.replay.rounds import OverheadTimer
from decoders import Engine, loop
from decoders.arms import recipe
from decoders.backends.batched.slots import SlotBackend
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.costs import measured
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts
from decoders.costs.passes import WIDEST, assume, known
from decoders.costs.under_load import SharedCosts
from decoders.models.memory import OutOfMemory
from decoders.records import Request
from decoders.sampling.draft_vocab import DraftVocab
from decoders.testing.toys import ToyBackend
from decoders.verify import Coupled

ARMS = ("autoregressive", "copy", "both", "cell")


def made_in(folder: Path) -> dict[str, dict[str, Any]]:
    """An arm of every kind, for a target of 32 numbers a state; the cell is saved in the folder."""
    save_cell(folder, random_cell(32, 1), DraftVocab([*range(1, 15)], 128))
    cell = {"kind": "recurrent", "drafter": str(folder)}
    copy = {"kind": "max_gram", "by_cost": True}
    both = {"kind": "hybrid", "model": cell}
    return {"copy": copy, "both": both, "cell": cell | {"length": {"k": 3}}}


def engine_of(tiny: Tiny, made: dict[str, dict[str, Any]]) -> Engine:
    target = native(tiny(max_position_embeddings=512, vocab_size=128))
    assume(target, PassCosts((0.001,) * 6))
    words = tokenizer([f"w{i}" for i in range(127)])
    return Engine(target, arms(made), tokenizer=words)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are measured once."""
    monkeypatch.setattr(measured, "MEASUREMENTS", 1)


@pytest.fixture
def engine(tiny: Tiny, tmp_path: Path) -> Engine:
    return engine_of(tiny, made_in(tmp_path))


@pytest.mark.usefixtures("once")
def test_arms_that_go_by_costs_draft_less_beside_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive: dict[str, Any] = {"kind": "adaptive", "k": 4}
    drafter = engine.arms["cell"].drafter  # type: ignore[attr-defined]
    arm = recipe(name="adaptive", kind="recurrent", drafter=drafter, length=adaptive)
    engine.arms["adaptive"] = arm
    assume(engine.target, PassCosts((1.0,) * 6))
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
        drafted, most = [], 0
        for answers in (1, 2, 8, 1):
            with batch.at_batch_size(answers):
                (replay,) = batch.replay(arm, [prompt], [answer], len(answer))
            drafted.append(replay.drafted)
            most = max(most, replay.rounds)
        assert drafted[2] <= drafted[1] <= drafted[0] > 0
        if arm != "adaptive":  # which remembers what a draft cost
            assert drafted[3] == drafted[0]
        if arm == "cell":  # of fixed length
            assert len(set(drafted)) == 1
        else:
            assert drafted[2] <= ceil(least * most) and drafted[2] < drafted[0], arm


def test_costs_of_a_folder_are_gone_on_with(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured, arms draft by them at every load, and a length that learns does so at
    each by itself."""
    length = {"kind": "adaptive", "k": 4}
    drafter = engine.arms["cell"].drafter  # type: ignore[attr-defined]
    arm = recipe(name="adaptive", kind="recurrent", drafter=drafter, length=length)
    engine.arms["adaptive"] = arm
    monkeypatch.setattr("collect.replay.batch.costs_of", None)
    flat, draft_s = (1.0,) * 6, dict.fromkeys(engine.arms, 0.1)
    at_once = {2: Costs(flat, dict.fromkeys(engine.arms, 4.0)), 8: Costs((1.0, 8.0), draft_s)}
    costs = Costs(flat, draft_s, at_once)
    prompt, answer = [3, 1, 4, 1, 5, 9, 2, 6], [3, 1, 4, 1, 5, 9, 2, 6] * 3

    def rounds(loads: Sequence[int]) -> dict[tuple[str, int], list[int]]:
        batch = Batch(engine, at_once=(1, 2, 8))
        batch.go_on_with(costs)
        assert batch.cost_table is costs
        found = {}
        for answers in loads:
            for name in ("copy", "both", "adaptive"):
                with batch.at_batch_size(answers):
                    (made,) = batch.replay(name, [prompt], [answer], len(answer))
                found[name, answers] = made.widths
        return found

    made = rounds((1, 2, 8))
    assert made == rounds((8, 2, 1))
    assert all(made[arm, 1] != made[arm, 8] for arm in ("copy", "both", "adaptive"))


@pytest.mark.usefixtures("once")
def test_passes_of_one_answer_are_measured_where_no_arm_goes_by_them(engine: Engine) -> None:
    fixed = {"autoregressive": engine.arms["autoregressive"], "cell": engine.arms["cell"]}
    target: Any = engine.target
    alone = Engine(LlamaBackend(target.shape, target.weights), fixed, name="tiny")  # of no costs
    costs = Batch(alone, at_once=(1, 2)).cost_table
    assert len(costs.verify_s) == WIDEST and len(costs.of_answers(2).verify_s) == 8
    drafts_by = known(alone.target)
    assert drafts_by is not None and len(drafts_by.verify_s) == WIDEST


def test_a_target_without_shared_passes_is_refused() -> None:
    toy = ToyBackend(torch.eye(8))
    with pytest.raises(DraftpickError, match=r"native backend alone.*leave --at-once out"):
        Batch(Engine(toy, arms(), name="toy"), at_once=(1, 2))


def test_room_for_all_answers_is_seen_to_before_costs_are_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def full(engine: Engine, answers: int) -> None:
        raise OutOfMemory(f"no room for {answers}")

    monkeypatch.setattr("collect.replay.batch.ContinuousBatch", full)
    batch = Batch(engine, at_once=(1, 8), on_costs=lambda *now: told.append(now))
    with pytest.raises(OutOfMemory, match="no room for 8"):
        _ = batch.cost_table
    assert not told


# -- what a round takes beside its pass -----------------------------------------------------------


class Measured(NamedTuple):
    """Costs of one answer and of three; how often prompts were read for them, in slots (True) and
    alone; what was told of them."""

    costs: Costs
    read: Counter[bool]
    told: list[tuple[int, int]]


@pytest.fixture(scope="module")
def found(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    engine = engine_of(tiny, made_in(tmp_path_factory.mktemp("cell")))
    read, told, prefill = Counter[bool](), list[tuple[int, int]](), LlamaBackend.prefill

    def counting(self: LlamaBackend, ids: Any, *given: Any) -> Any:
        read[isinstance(self, SlotBackend)] += 1
        return prefill(self, ids, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaBackend, "prefill", counting)
        batch = Batch(engine, at_once=(1, 3), on_costs=lambda *now: told.append(now))
        costs = batch.cost_table
    assert engine.decode("copy", [1, 2, 3], Request(4)).ids  # nothing is left in the target's way
    return Measured(costs, read, told)


def test_every_arm_is_timed_alone_and_beside_others(found: Measured) -> None:
    """And each prompt is read once for all arms of a measurement."""
    times, costs = measured.MEASUREMENTS, found.costs
    assert found.told == [(time, answers) for answers in (1, 3) for time in range(times)]
    assert found.read[True] == 3 * times
    # alone: besides, one for the passes' times and one for each drafter's
    assert found.read[False] <= (1 + 1 + len(ARMS)) * times
    assert all(set(each.of_answers(3).round_s) == set(ARMS) for each in costs.repeats)
    for one in (costs, costs.of_answers(3)):
        assert set(one.round_s) == set(one.drawn_round_s) == set(ARMS)
        assert min(one.round_s.values()) >= 0 and min(one.verify_s) > 0
        assert one.overhead_s("copy", 0.0) == one.round_s["copy"]
        assert one.overhead_s("copy", 0.5) == one.drawn_round_s["copy"]


def test_costs_are_the_medians_of_several_measurements(found: Measured) -> None:
    costs = found.costs
    assert len(costs.repeats) == measured.MEASUREMENTS > 1
    assert len({one.verify_s[0] for one in costs.repeats}) > 1
    for answers in (1, 3):
        one, each = costs.of_answers(answers), [r.of_answers(answers) for r in costs.repeats]
        assert not one.at_once or answers == 1
        for arm in ("both", "cell"):
            assert one.draft_s[arm] == statistics.median(r.draft_s[arm] for r in each)
            assert one.drawn_round_s[arm] == statistics.median(r.drawn_round_s[arm] for r in each)
        assert one.verify_s[1] == statistics.median(r.verify_s[1] for r in each)
    kept = costs.of(["copy"])
    assert all(set(one.round_s) == {"autoregressive", "copy"} for one in kept.repeats)
    assert Costs.from_json(json.loads(json.dumps(asdict(costs)))) == costs


@pytest.mark.usefixtures("once")
def test_arms_that_differ_by_their_weights_alone_cost_the_same(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of another length, or of another cell's size."""
    (tmp_path / "cell").mkdir()
    made = made_in(tmp_path / "cell")
    other = shutil.copytree(tmp_path / "cell", tmp_path / "other")
    made["twin"] = made["cell"] | {"drafter": str(other)}
    made["long"] = made["cell"] | {"length": {"k": 7}, "note": "longer"}
    made["noted"] = made["cell"] | {"note": "a note"}
    engine = engine_of(tiny, made)
    same = shapes(engine)
    assert same["twin"] == same["noted"] == same["cell"] == "cell" and same["long"] == "long"
    times = count(1)

    def timed(*given: Any) -> Any:
        return tuple({arm: float(next(times)) for arm in engine.arm_names} for _ in range(2))

    monkeypatch.setattr(rounds, "alone", timed)
    monkeypatch.setattr(rounds, "at_once", timed)
    for one in (costs := Batch(engine, at_once=(1, 2)).cost_table, costs.of_answers(2)):
        for seconds in (one.draft_s, one.round_s, one.drawn_round_s):
            assert seconds["twin"] == seconds["cell"] != seconds["long"]


@pytest.mark.usefixtures("once")
def test_what_a_verifier_takes_is_counted_for_every_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = TickingClock()

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*given: Any) -> Any:
            clock.sleep(1.0)
            return function(*given)

        return slowly

    monkeypatch.setattr(Coupled, "verify", slow(Coupled.verify))  # of one alone
    monkeypatch.setattr(loop, "compared", slow(loop.compared))  # where a pass tells the tokens
    monkeypatch.setattr("time.perf_counter", clock)
    costs = Batch(engine, at_once=(1, 3)).cost_table
    for answers in (1, 3):
        one = costs.of_answers(answers)
        assert one.overhead_s("cell", 0.0) == pytest.approx(answers, abs=0.01)
        assert one.overhead_s("cell", 1.0) == pytest.approx(answers, abs=0.01)


def test_as_many_rounds_are_timed_of_every_arm(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many tokens each gives, and though passes are slow, so that they are few."""
    found = list[OverheadTimer]()

    def noted(*given: Any) -> OverheadTimer:
        found.append(OverheadTimer(*given))
        return found[-1]

    monkeypatch.setattr(rounds, "OverheadTimer", noted)
    assert {*rounds.alone(engine, Costs((1.0,) * 6, {}))[0]} == set(ARMS)
    assert [len(each.found) for each in found] == [rounds.MIN_ROUNDS] * 2 * len(ARMS)


@pytest.mark.usefixtures("once")
def test_an_arm_that_fails_is_left_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Engine.decode

    def failing(self: Engine, arm: str, *given: Any) -> Any:
        if arm == "copy":
            raise RuntimeError("not today")
        return decode(self, arm, *given)

    monkeypatch.setattr(Engine, "decode", failing)
    costs = Batch(engine, at_once=(1, 2)).cost_table
    for one in (costs, costs.of_answers(2)):
        assert "copy" not in one.round_s and set(one.drawn_round_s) == set(ARMS) - {"copy"}
        assert one.overhead_s("copy", 0.0) == one.round_s["autoregressive"]


def test_only_what_lies_between_whole_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = [0.0], [0]
    monkeypatch.setattr("collect.replay.rounds.time.perf_counter", lambda: now[0])

    def read(wanted: list[list[int]]) -> int:
        now[0] += 100  # the pass itself
        return len(wanted)

    gaps = OverheadTimer(
        read, lambda wanted: [len(ids) for ids in wanted], 2, lambda: steps[0], CPU
    )
    two, one = [[1], [2, 3]], [[1]]
    for wanted, host, stepped in [(two, 9, 3), (two, 5, 1), (one, 7, 0), (two, 8, 0), (two, 6, 4)]:
        now[0] += host
        steps[0] += stepped
        assert gaps(wanted) == len(wanted)
    assert gaps.found == [(5, 1), (6, 4)]
    assert gaps.median(0.5) == statistics.median([4.5, 4.0])
    assert gaps.median(9.0) == 0


def test_drafted_tokens_are_steps_where_nothing_is_copied() -> None:
    gaps = OverheadTimer(lambda ids: ids, lambda ids: [len(ids)], 1, None, CPU)
    for ids in ([1], [1, 2, 3], [1]):
        assert gaps(ids) is ids
    assert [steps for _, steps in gaps.found] == [2, 0]
