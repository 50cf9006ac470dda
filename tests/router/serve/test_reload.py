"""Arms that come with a reload are as arms of a start."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serve_toys import native_engine, toy_engine

from decoders.continuous_batching import batch_engine
from decoders.costs import passes, under_load
from decoders.costs.pass_costs import PassCosts
from decoders.costs.under_load import SharedCosts, UnderLoad
from decoders.methods.suffix.recipe import SuffixRecipe
from decoders.models.drafter_memory import LoadFailed
from router.commands.serve.options import ServeOptions
from router.commands.serve.plan import plan
from router.commands.serve.served import Served
from router.commands.with_records import made
from router.routing.router import Router
from router.serve.scheduler import DEFAULT

ARMS = """arms:
  autoregressive: {kind: autoregressive}
  drafter: {kind: neural, drafter: %s, length: {k: 3}}
"""
MORE = "  suffix: {kind: suffix, by_cost: true, length: {k: 3}}\n"


def planned(**options: Any) -> Served:
    return plan(made(ServeOptions, options))


def test_new_arms_have_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = PassCosts((0.5, 1.0)), SharedCosts((1, 2), (1, 2), ((1.0, 2.0),) * 2, 0)
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(passes, "measure", lambda target: alone)
    monkeypatch.setattr(under_load, "measure", lambda slots: shared)
    file = tmp_path / "arms.yaml"
    file.write_text(ARMS % (tmp_path / "nothing"))
    server = planned(config=file)
    engine = native_engine(tmp_path / "target")
    engine.declare(server.asked.options.recipes())
    batch = batch_engine(engine, 2, cache=tmp_path)
    with pytest.raises(LoadFailed):
        batch.slots[1].engine.strategy("drafter")
    file.write_text(ARMS % (tmp_path / "target") + MORE)
    routers = server.again(batch, {DEFAULT: Router(engine, None)})
    assert routers[DEFAULT].engine is engine and "suffix" in engine.arm_names
    assert not engine.asleep
    for each in (engine, *(slot.engine for slot in batch.slots)):
        assert each.made("drafter") is not None, "as after a start, no request waits for it"
    assert passes.known(engine.target) is alone
    for slot in batch.slots:
        assert slot.engine.earlier is engine.earlier is not None
        assert isinstance(passes.known(slot.engine.target), UnderLoad)
    kept = engine.earlier
    server.again(batch, routers)
    assert engine.earlier is kept


def test_where_a_reload_fails_the_old_arms_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever fails before its end; an arm whose first answer fails is told of."""

    def broken(*_: Any) -> None:
        raise RuntimeError("told to fail")

    file = tmp_path / "arms.yaml"
    file.write_text("arms: {suffix: {kind: suffix, length: {k: 3}}}")
    server, engine = planned(config=file), toy_engine()
    batch, before = batch_engine(engine, 1), engine.arm_names
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(SuffixRecipe, "prepare", broken)
        server.again(batch, {DEFAULT: Router(engine, None)})
    assert engine.arm_names == before
    monkeypatch.setattr(SuffixRecipe, "build", broken)
    assert server.again(batch, {DEFAULT: Router(engine, None)})[DEFAULT].engine is engine
    assert "arm suffix cannot answer: told to fail" in capsys.readouterr().err


def test_what_needs_a_restart_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[Any] = []

    def scheduler(engine: Any) -> Any:
        return SimpleNamespace(
            routers={DEFAULT: SimpleNamespace(engine=engine)}, batch=None, exchange=begun.append
        )

    planned(learn=Path("learned")).reload(scheduler(toy_engine()))
    planned().reload(scheduler(object()))  # endpoints
    assert capsys.readouterr().err.count("need a restart") == 2 and not begun
    planned().reload(scheduler(toy_engine()))
    assert len(begun) == 1
