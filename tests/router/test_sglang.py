"""Draft lengths for SGLang: its protocol, as its controller of 0.5.23 uses it, on a made-up engine
whose acceptance and seconds are known. tests/engines/test_sglang.py has SGLang's own controller."""

from __future__ import annotations

import inspect
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from decoders.common.errors import DraftpickError
from router.sglang import StepPolicy, plugin
from router.sglang.options import StepOptions, read_options
from router.sglang.plugin import MODULE, NAME
from router.sglang.steps import Acceptance

STEP_S = {1: 1.0, 8: 1.2, 64: 3.0}
LENGTHS = (0, 1, 2, 4)
OPTIONS = StepOptions({1: LENGTHS}, STEP_S, draft_s=0.1)


class Engine:
    """Steps of `size` answers, each of whose drafted tokens is accepted with a chance by position.

    late: a step's result is told after the next one has begun, as when SGLang overlaps the two.
    """

    def __init__(self, policy: StepPolicy, late: bool = True, tells: bool = False) -> None:
        self.policy, self._late, self._tells = policy, late, tells
        self._rng = random.Random(7)
        self._waiting: tuple[list[int], int, int] | None = None
        self.tokens = self.seconds = 0.0
        self.taken: list[int] = []

    def run(self, steps: int, size: int, chances: Sequence[float]) -> float:
        """Tokens a second of these steps."""
        tokens = seconds = 0.0
        for _ in range(steps):
            length = self.policy.get_steps_for_batch(size)
            assert length in self.policy.candidate_steps
            self.policy.on_state_activated(length)
            accepted = [self._accepted(chances, length) for _ in range(size)]
            tokens += size + sum(accepted)
            seconds += seconds_of(size, length)
            self.taken.append(length)
            self._tell((accepted, size, length))
        return tokens / seconds

    def _accepted(self, chances: Sequence[float], length: int) -> int:
        count = 0
        while count < length and self._rng.random() < chances[count]:
            count += 1
        return count

    def _tell(self, result: tuple[list[int], int, int]) -> None:
        told, self._waiting = (self._waiting, result) if self._late else (result, None)
        if told is not None:
            accepted, size, length = told
            told_length = {"num_steps": length} if self._tells else {}
            assert self.policy.on_verify_complete(accepted, size, **told_length) is None


def seconds_of(size: int, length: int) -> float:
    """By STEP_S, a straight line between its points and beyond."""
    at, points = size * (length + 1), sorted(STEP_S.items())
    low = max(0, min(len(points) - 2, sum(n <= at for n, _ in points) - 1))
    (n, a), (m, b) = points[low : low + 2]
    if at > points[-1][0]:
        n, a = points[0]
        m, b = points[-1]
    return a + (b - a) * (at - n) / (m - n) + length * OPTIONS.draft_s


def best_rate(size: int, chances: Sequence[float]) -> float:
    def rate(length: int) -> float:
        tokens, here = 1.0, 1.0
        for chance in chances[:length]:
            here *= chance
            tokens += here
        return size * tokens / seconds_of(size, length)

    return max(map(rate, LENGTHS))


@pytest.mark.parametrize("late", [False, True], ids=["at-once", "late"])
@pytest.mark.parametrize("size", [1, 8, 32])
@pytest.mark.parametrize("chances", [(0.95,) * 4, (0.6, 0.5, 0.4, 0.3), (0.05,) * 4])
def test_it_comes_to_the_fastest_length(chances: tuple[float, ...], size: int, late: bool) -> None:
    engine = Engine(StepPolicy(OPTIONS, 2), late)
    engine.run(200, size, chances)
    assert engine.run(600, size, chances) > 0.94 * best_rate(size, chances)


@pytest.mark.parametrize("tells", [False, True])
def test_it_follows_texts_that_change(tells: bool) -> None:
    engine = Engine(StepPolicy(OPTIONS, 2), tells=tells)
    for chances in ((0.95,) * 4, (0.02,) * 4, (0.95,) * 4):
        engine.run(1500, 4, chances)
        assert engine.run(300, 4, chances) > 0.94 * best_rate(4, chances), chances


def test_without_drafts_it_tries_seldom_but_goes_on_trying() -> None:
    engine = Engine(StepPolicy(OPTIONS, 2))
    engine.run(3000, 8, (0.0,) * 4)
    tried = [length > 0 for length in engine.taken]
    assert 0 < sum(tried[-1000:]) < 50 and sum(tried[:1000]) > sum(tried[-1000:])


def test_equal_on_all_ranks() -> None:
    """Nothing but what SGLang tells all ranks alike decides: no clock and no chance."""
    first, second = (Engine(StepPolicy(OPTIONS, 2)) for _ in range(2))
    for engine in (first, second):
        for size in (1, 8, 3, 32):
            engine.run(100, size, (0.7, 0.6, 0.5, 0.4))
    assert first.taken == second.taken and len(set(first.taken)) > 1


def test_the_chances_are_those_of_each_position() -> None:
    acceptance = Acceptance(4)
    for _ in range(2000):
        acceptance.observe([3, 1, 0, 0], 3)  # of four: 1/2, then 1/2, then all
    assert acceptance.tokens() == pytest.approx([1, 1.5, 1.75, 2.0, 2.25], abs=0.01)


def test_graphs_bound_what_a_batch_may_take() -> None:
    """As SGLang's controller asks: graphs are captured for the lengths that a size may take, and
    smaller batches run on the graph of the next size."""
    policy = StepPolicy(StepOptions({1: (2, 4), 8: (0, 1)}, STEP_S, 0.1), 2)
    assert policy.candidate_steps == [0, 1, 2, 4] and policy.cuda_graph_bs_for_step(2) is None
    policy.set_cuda_graph_bs([8, 1, 4, 16])
    assert policy.cuda_graph_bs_for_step(2) == [1, 4]
    assert policy.cuda_graph_bs_for_step(0) == [8, 16]
    engine = Engine(policy)
    for size in range(1, 20):
        engine.run(20, size, (0.8,) * 4)
        captured = next((graph for graph in (1, 4, 8, 16) if graph >= size), size)
        assert set(engine.taken[-20:]) <= ({2, 4} if captured < 8 else {0, 1})


def test_a_start_that_is_no_candidate() -> None:
    policy = StepPolicy(StepOptions({1: (2, 4)}, STEP_S, 0.1), 7)
    assert policy.get_steps_for_batch(1) in (2, 4)
    only = StepPolicy(StepOptions({1: (0,)}, STEP_S, 0.1), 7)
    assert only.get_steps_for_batch(1) == 0


def test_the_methods_are_the_protocols() -> None:
    """Those of SGLang 0.5.23, and of later versions, which tell the length of a step."""
    asked = {
        "set_cuda_graph_bs": ["cuda_graph_bs"],
        "get_steps_for_batch": ["batch_size"],
        "on_verify_complete": ["num_correct_drafts_per_req", "batch_size", "num_steps"],
        "cuda_graph_bs_for_step": ["step"],
        "on_state_activated": ["steps"],
    }
    for name, parameters in asked.items():
        assert list(inspect.signature(getattr(StepPolicy, name)).parameters)[1:] == parameters
    assert isinstance(StepPolicy.candidate_steps, property)


# -- the file -------------------------------------------------------------------------------------


def written(folder: Path, part: Any = None, **entries: Any) -> Path:
    (folder / "costs.json").write_text(
        json.dumps({"step_s": [{"1": 0.02, "4": 0.03}, {"1": 0.04, "4": 0.02}, {"1": 0.03}]})
    )
    record = entries or {"1": {"candidate_steps": [4, 0, 2]}, "8": {"candidate_steps": [0]}}
    if part is not None:
        record["draftpick"] = part
    path = folder / "adaptive.json"
    path.write_text(json.dumps(record))
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    found = read_options(written(tmp_path, {"costs": "costs.json", "draft_cost": 0.2}))
    assert found == StepOptions(
        {1: (0, 2, 4), 8: (0,)}, {1: 0.025, 4: 0.025}, pytest.approx(0.005), 0.03
    )
    assert read_options(written(tmp_path)) is None


@pytest.mark.parametrize(
    "part, entries, named",
    [
        ({"costs": "costs.json"}, {}, "draft_cost"),
        ({"costs": "costs.json", "draft_cost": -1}, {}, "draft_cost"),
        ({"costs": "costs.json", "draft_cost": 0.1, "explore": 1}, {}, "explore"),
        ({"costs": "none.json", "draft_cost": 0.1}, {}, "none.json"),
        ({"costs": "adaptive.json", "draft_cost": 0.1}, {}, "draftpick costs URL"),
        ({"costs": "costs.json", "draft_cost": 0.1}, {"note": 1}, "names no draft lengths"),
        ({"costs": "costs.json", "draft_cost": 0.1}, {"1": {}}, "1.candidate_steps"),
        (
            {"costs": "costs.json", "draft_cost": 0.1},
            {"1": {"candidate_steps": [-1]}},
            "1.candidate_steps",
        ),
    ],
)
def test_a_wrong_file_is_refused(
    tmp_path: Path, part: Any, entries: dict[str, Any], named: str
) -> None:
    with pytest.raises(DraftpickError, match=named):
        read_options(written(tmp_path, part, **entries))


# -- SGLang's hooks -------------------------------------------------------------------------------


class Own:
    """In the place of SGLang's policy."""

    def __init__(self, initial_steps: int, cfg_path: str | None = None) -> None:
        self.given = initial_steps, cfg_path


def test_the_plugin_stands_in_for_sglangs_own_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[tuple[Any, ...]] = []
    params = ModuleType(MODULE)
    setattr(params, NAME, Own)
    hooks = ModuleType("sglang.srt.plugins.hook_registry")
    hooks.__dict__["HookType"] = SimpleNamespace(REPLACE="replace")
    hooks.__dict__["HookRegistry"] = SimpleNamespace(register=lambda *a: registered.append(a))
    for module in (params, hooks):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    plugin()
    ((target, made, kind),) = registered
    assert (target, kind) == (f"{MODULE}.{NAME}", "replace")
    assert isinstance(made, type)  # SGLang puts classes in the place of classes alone
    mine = written(tmp_path, {"costs": "costs.json", "draft_cost": 0.2})
    assert isinstance(made(initial_steps=2, cfg_path=str(mine)), StepPolicy)
    plain = made(initial_steps=2, cfg_path=None)
    assert isinstance(plain, Own) and plain.given == (2, None)
    theirs = written(tmp_path)
    assert made(initial_steps=3, cfg_path=str(theirs)).given == (3, str(theirs))


def test_an_sglang_without_hooks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))
    with pytest.raises(DraftpickError, match=r"0\.5\.23 has"):
        plugin()


def test_sglang_finds_it_by_its_entry_point() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    points = project["project"]["entry-points"]["sglang.srt.plugins"]
    assert points == {"draftpick": "router.sglang:plugin"}
