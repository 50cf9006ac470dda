"""What passes cost by width: measured once, kept, and used to end drafts where it pays."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from decoder_toys import (
    CPU,
    SlowToy,
    TickingClock,
    Tiny,
    Watched,
    greedy,
    native,
    random_exit,
    recurrent,
)
from hypothesis import given
from hypothesis import strategies as st

from collect.replay.batch import Batch
from collect.replay.costs import DRAFTED
from collect.replay.costs import measure as measure_costs
from decoders import Engine
from decoders.arms import ArmRecipe, recipe
from decoders.backends.native import LlamaBackend
from decoders.costs.passes import (
    CONTEXT,
    HELD,
    QUIET,
    WIDEST,
    PassCosts,
    assume,
    draft_cost,
    known,
    learn,
    measure,
    time_passes,
    undisturbed,
)
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.lengths import AdaptiveLength
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.neural.drafter import NeuralDrafter
from decoders.methods.tree.widened import WidenedDrafter
from decoders.records import StepStats
from decoders.testing.toys import ToyBackend, neural


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Microseconds on a shared machine: these tests are not about how busy it is."""
    monkeypatch.setattr("decoders.costs.passes.QUIET", float("inf"))


IN_FOURS = PassCosts(tuple(float(1 + (width - 1) // 4) for width in range(1, 18)))
FLAT = PassCosts((1.0,) * 17)


def counted(vocab: int = 5, context: int = 512) -> Watched:
    target = Watched(ToyBackend.random(vocab, 1).table)
    target.context = context
    return target


def told(target: ToyBackend, folder: Path, verify_s: Sequence[float]) -> None:
    """As if its passes had been measured so."""
    learn(target, "model", folder)
    (file,) = folder.iterdir()
    file.write_text(json.dumps({"verify_s": verify_s, "busy": 1}))
    learn(target, "model", folder)


def test_a_pass_between_and_beyond_the_measured_widths() -> None:
    passes = PassCosts((10.0, 12.0, 14.0, 16.0, 20.0))
    assert [passes(width) for width in range(1, 6)] == list(passes.verify_s)
    assert passes(4.5) == pytest.approx(18)
    # 10 more over the 4 tokens that follow the first, so 2.5 each; the last step alone took 4
    assert passes(7) == pytest.approx(25)
    assert IN_FOURS(33) == pytest.approx(9)  # as a pass over 33 rows costs there
    assert FLAT(33) == 1
    assert PassCosts((2.0,))(3) == 6
    assert PassCosts((3.0, 1.0))(9) == 1  # noise: no pass gets cheaper with its width


# -- the best place to end a draft ----------------------------------------------------------------


@given(
    st.lists(st.floats(0.01, 1.0), max_size=20),
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=24),
)
def test_the_best_cut_is_the_best_of_all(shares: list[float], seconds: list[float]) -> None:
    passes, chances, chance = PassCosts(tuple(seconds)), [], 1.0
    for share in shares:
        chance *= share
        chances.append(chance)

    def speed(k: int) -> float:
        return (1 + sum(chances[:k])) / passes(k + 1)

    best = passes.best_cut(chances)
    assert all(speed(best) >= speed(k) * (1 - 1e-12) for k in range(len(chances) + 1))


# -- measured, and kept ---------------------------------------------------------------------------


@pytest.mark.parametrize(("longest_s", "repeats"), [(60.0, 5), (0.0, 2)])
def test_a_slow_model_is_timed_twice(
    longest_s: float, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoders.costs.passes.LONGEST_S", longest_s)
    assert {len(each) for each in time_passes(counted(), 5)} == {repeats}


@pytest.mark.parametrize("context", [2, 9, 19, 100, 512])
def test_every_width_is_measured_as_far_as_the_context_goes(context: int) -> None:
    target = counted(context=context)
    costs = measure(target)
    assert len(costs.verify_s) == min(WIDEST, context - 1) and min(costs.verify_s) > 0
    assert {*range(1, len(costs.verify_s) + 1)} <= {*target.widths}
    assert target.length <= CONTEXT  # nothing is held of it


def test_measured_once_and_read_ever_after(tmp_path: Path) -> None:
    first = counted()
    assert known(first) is None
    costs = learn(first, "model@1/float64", tmp_path / "costs")
    assert known(first) is costs and first.widths
    again = counted()
    assert learn(again, "model@1/float64", tmp_path / "costs") == costs == known(again)
    assert not again.widths
    (file,) = (tmp_path / "costs").iterdir()
    held = json.loads(file.read_text())
    assert held["target"] == "model@1/float64" and held["threads"] == torch.get_num_threads()
    other = counted()
    learn(other, "model@1/int8", tmp_path / "costs")
    assert other.widths  # another precision is another measurement
    assert len(list((tmp_path / "costs").iterdir())) == 2


def test_what_disturbs_is_left_out() -> None:
    quiet = [[1.0, 1.01], [1.2, 1.21], [1.1, 1.11], [2.0, 2.02]]
    assert undisturbed(quiet).verify_s == (1.0, 1.1, 1.1, 2.0)
    disturbed = [[1.0, 2.0, 2.2], [1.1, 1.2, 1.1], [1.2, 3.0, 3.0]]
    assert undisturbed(quiet).busy < QUIET < undisturbed(disturbed).busy


def test_a_measurement_on_a_busy_machine_is_kept_until_a_quieter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of each loading: what is sampled with a seed depends on where drafts end."""
    monkeypatch.setattr("decoders.costs.passes.QUIET", QUIET)
    learnt = []
    for least, usual in ((0.01, 0.05), (0.02, 0.2), (0.03, 0.03), (0.04, 0.04)):
        times = [[least, usual, usual]] * WIDEST
        monkeypatch.setattr("decoders.costs.passes.time_passes", lambda target, repeats, t=times: t)
        learnt.append(learn(counted(), "model", tmp_path).verify_s[0])
    assert learnt == [0.01, 0.01, 0.03, 0.03]


NONE, FEW, NEGATIVE = ([0.1] * n + last for n, last in ((0, []), (2, []), (WIDEST - 1, [-1.0])))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", *(json.dumps({"verify_s": s, "busy": 1}) for s in (NONE, FEW, NEGATIVE))],
)
def test_a_broken_file_is_made_anew(tmp_path: Path, text: str) -> None:
    learn(counted(), "model", tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    target = counted()
    costs = learn(target, "model", tmp_path)
    assert target.widths and json.loads(file.read_text())["verify_s"] == list(costs.verify_s)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = counted()
    assert learn(target, "model", tmp_path / "file" / "costs") is known(target)


# -- Max-Gram by cost -----------------------------------------------------------------------------

CONTEXT_IDS = [1, 2, 3, 4, 5, 6, 7, 9, 1, 2]  # a match of two: 0.57, then 0.57 * 0.66, ...


def test_a_copy_ends_where_it_pays() -> None:
    lengths = []
    for passes in (FLAT, IN_FOURS, PassCosts(tuple(float(w) for w in range(1, 18)))):
        drafter = MaxGramDrafter(CPU, passes=passes, stop_below=0.99)
        drafter.reset(CONTEXT_IDS)
        lengths.append(len(drafter.guess(CONTEXT_IDS, 16)))
    assert lengths[0] > lengths[1] == 3 and lengths[2] == 0


def test_costs_that_are_unknown_leave_the_threshold(tmp_path: Path) -> None:
    arm = recipe(name="copy", kind="max_gram", length={"k": 16}, stop_below=0.35, by_cost=True)

    def drafted(target: ToyBackend) -> int:
        drafter = arm.make_drafter(target, None)
        drafter.reset(CONTEXT_IDS)
        return len(drafter.propose(CONTEXT_IDS, greedy(16)).ids)

    target = counted(vocab=99)
    assert drafted(target) == 2  # 0.57, 0.38, then 0.27
    told(target, tmp_path, IN_FOURS.verify_s)
    assert drafted(target) == 3


# -- the adaptive length by cost ------------------------------------------------------------------


def test_an_adaptive_length_keeps_to_what_is_cheap() -> None:
    """Drafts accepted nine times in ten: all eight where width costs nothing, three where the
    fifth token of a pass doubles it."""
    lengths = []
    for passes in (FLAT, PassCosts((1.0,) * 4 + (2.5,) * 5)):
        rule = AdaptiveLength(8, passes=passes)
        for _ in range(60):
            rule.observe(StepStats(8, 7, 0.0, 1.0))
        lengths.append(rule.next())
    assert lengths == [8, 3]


def test_a_drafted_token_is_weighed_by_the_pass_over_one() -> None:
    """Its verifying passes may have been wide: what they took says nothing of a narrow one."""
    rules = [AdaptiveLength(8, passes=PassCosts((0.01,) * 9)) for _ in range(2)]
    for rule, verify_s in zip(rules, (0.01, 0.05), strict=True):
        for _ in range(60):
            rule.observe(StepStats(4, 3, 0.008, verify_s))
    assert rules[0].next() == rules[1].next()


def test_an_arm_s_adaptive_length_goes_by_what_was_learnt(tmp_path: Path) -> None:
    arm = recipe(name="copy", kind="max_gram", length={"kind": "adaptive", "k": 8})

    def settled(target: ToyBackend) -> int:
        built = arm.build(target, None)
        for _ in range(60):
            built.length.observe(StepStats(8, 7, 0.0, 1.0))
        return built.length.next()

    target = counted(vocab=99)
    assert settled(target) == 8
    told(target, tmp_path, [1.0] * 4 + [2.5] * 13)
    assert settled(target) == 3


SMALL = {"kind": "neural", "drafter": "x"}

# -- who asks for it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "asks"),
    [
        ({"kind": "autoregressive"}, False),
        ({"kind": "max_gram"}, False),
        ({"kind": "max_gram", "by_cost": True}, True),
        (SMALL, False),
        (SMALL | {"length": {"kind": "adaptive"}}, True),
        ({"kind": "horizontal", "parts": [SMALL, {"kind": "max_gram", "by_cost": True}]}, True),
        ({"kind": "calm", "threshold": 0.9}, False),
    ],
)
def test_arms_say_whether_they_go_by_passes(arm: dict[str, object], asks: bool) -> None:
    assert recipe(name="arm", **arm).uses_cost_model is asks


def test_loading_an_engine_learns_them_once(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decoders.engine.cache_dir", lambda: tmp_path)
    monkeypatch.setattr("decoders.models.targets.load_tokenizer", lambda folder: None)
    folder = str(tiny(vocab_size=128, max_position_embeddings=256))
    plain = recipe(name="autoregressive", kind="autoregressive")
    copy = recipe(name="copy", kind="max_gram", by_cost=True)

    def load(*recipes: ArmRecipe) -> Engine:
        return Engine.load(folder, {r.name: r for r in recipes}, dtype="float32")

    assert known(load(plain).target) is None and not (tmp_path / "costs").exists()
    costs = known(load(plain, copy).target)
    assert costs is not None and len(list((tmp_path / "costs").iterdir())) == 1
    again = load(plain, copy)
    assert known(again.target) == costs
    assert Batch(again).cost_table.repeats[0].verify_s == costs.verify_s


def test_what_an_exit_spares_is_taken_off_its_tree_too(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the draft itself: siblings are not prepared."""
    target, widths = native(tiny(max_position_embeddings=512, vocab_size=100)), list[int]()

    def seconds(target: LlamaBackend, ids: torch.Tensor) -> float:
        widths.append(len(ids))
        target.extend(ids)
        return 0.0

    monkeypatch.setattr("collect.replay.costs.seconds_of", seconds)
    tree = WidenedDrafter(random_exit(target, 2, seed=1), (4, 4), 512)
    assert measure_costs(target, {"tree": tree}).draft_s["tree"] > 0
    assert set(widths) == {1 + DRAFTED}


# -- a drafted token ------------------------------------------------------------------------------


def test_a_draft_model_s_token_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second a pass, where the target's takes four beside no other answer."""
    clock = TickingClock()
    monkeypatch.setattr("time.perf_counter", clock)
    target = ToyBackend.random(3, seed=1)
    model = SlowToy(ToyBackend.random(3, seed=2).table, clock)
    model.context = HELD
    drafter = NeuralDrafter(model)
    shared = SharedCosts((1, 8), (1, 2), ((4.0, 4.0), (16.0, 16.0)), narrow=8)
    assume(target, UnderLoad((4.0, 4.0), 1.0, shared, lambda: 8))
    assert draft_cost(drafter, target) == pytest.approx(0.25, rel=1e-3)
    clock.tick = 9.0  # it is timed once
    assert draft_cost(WidenedDrafter(drafter, (2,), 99), target) == pytest.approx(0.25, rel=1e-3)


def test_what_runs_on_the_target_s_states_has_a_fixed_cost() -> None:
    target = ToyBackend.random(3, seed=1)
    assert draft_cost(recurrent(target, seed=7), target) == 0.06
    assert draft_cost(neural(3, seed=2), target) == 1.0  # by parameters, where no pass was timed
