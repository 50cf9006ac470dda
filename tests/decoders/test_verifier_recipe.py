"""What `verifier:` may say in an arms file, and what an arm's JSON says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collect.replay.batch import Batch
from decoders.arms import load_arms, recipe
from decoders.common.errors import DraftpickError
from decoders.engine import Engine
from decoders.options import EngineOptions
from decoders.papers.rules.deferral import BiLD, SpeculativeCascade
from decoders.papers.rules.lossy import Lossless, Lossy
from decoders.testing.toys import ToyBackend
from decoders.verify import Coupled
from router.commands.arms import arms_json, describe


def arms_file(folder: Path, *said: str, kind: str = "neural, drafter: ./x") -> Path:
    path = folder / "arms.yaml"
    arms = [f"  a{i}: {{kind: {kind}, verifier: {text}}}" for i, text in enumerate(said)]
    path.write_text("\n".join(["arms:", *arms]))
    return path


GOOD: dict[str, tuple[type, bool]] = {
    "coupled": (Coupled, True),
    "{rule: coupled}": (Coupled, True),
    "lossless": (Lossless, True),
    "{rule: lossy, alpha: 0.3}": (Lossy, False),
    "{rule: lossy, alpha: 0.3, beta: 0.7}": (Lossy, False),
    "{rule: lossy, alpha: 0.7, beta: 0.3}": (Lossy, False),
    "{rule: lossy, alpha: 0, beta: 2}": (Lossy, False),
    "{rule: lossy, alpha: 0}": (Lossy, True),
    "{rule: lossy_star, alpha: 0.3}": (Lossy, False),
    "{rule: lossy_star, alpha: 0}": (Lossy, True),
    "{rule: lossy_star, kl_budget: 0.1}": (Lossy, False),
    "{rule: lossy_star, kl_budget: 0}": (Lossy, True),
    "{rule: chow, alpha: 0}": (SpeculativeCascade, False),
    "{rule: chow, alpha: 1}": (SpeculativeCascade, False),
    "{rule: chow, alpha: 2.5, log_loss: true}": (SpeculativeCascade, False),
    "{rule: diff, alpha: 0.1}": (SpeculativeCascade, False),
    "{rule: opt, alpha: 3, log_loss: false}": (SpeculativeCascade, False),
    "{rule: bild_star, alpha: 2}": (SpeculativeCascade, False),
    "{rule: bild, rollback: 2}": (BiLD, False),
    "{rule: bild, rollback: 0}": (BiLD, True),
    "{rule: bild, rollback: 2, keep_argmax: false}": (BiLD, False),
}


@pytest.mark.parametrize("said", GOOD)
def test_good_ones(said: str, tmp_path: Path) -> None:
    arm: Any = load_arms(arms_file(tmp_path, said))["a0"]
    kind, lossless = GOOD[said]
    built = arm.verifier.build()
    assert type(built) is kind
    assert arm.lossless == built.lossless == lossless
    assert built.needs_raw == (kind is SpeculativeCascade)
    again = recipe(**json.loads(arm.model_dump_json()))
    assert again == arm


@pytest.mark.parametrize("rule", ["chow", "diff", "opt"])
def test_a_copy_has_no_confidence_to_compare(rule: str, tmp_path: Path) -> None:
    said = f"{{rule: {rule}, alpha: 0.1}}"
    with pytest.raises(DraftpickError, match=r"a0: .*a copy has none.*use coupled, lossless"):
        load_arms(arms_file(tmp_path, said, kind="max_gram"))
    for other in ("lossy, alpha: 0.1", "bild_star, alpha: 2", "bild, rollback: 2"):
        load_arms(arms_file(tmp_path, f"{{rule: {other}}}", kind="max_gram"))


def test_the_json_view_shows_rule_and_thresholds(tmp_path: Path) -> None:
    path = arms_file(tmp_path, "lossless", "{rule: opt, alpha: 0.5, log_loss: true}")
    none, plain, optimal = arms_json(EngineOptions(arms=path))
    assert (none["verifier"], none["lossless"]) == (None, True)
    assert (plain["verifier"], plain["lossless"]) == ("lossless", True)
    assert optimal["verifier"] == {"rule": "opt", "alpha": 0.5, "log_loss": True}
    assert optimal["lossless"] is False
    assert describe(optimal["verifier"]) == "rule=opt, alpha=0.5, log_loss=yes"
    json.dumps([none, plain, optimal])


def test_the_json_view_shows_what_is_the_kind_s_own(tmp_path: Path) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text(
        "arms:\n"
        "  copy: {kind: max_gram, length: {k: 9}, stop_below: 0.25}\n"
        "  cs: {kind: cs_drafting, models: [m, {kind: max_gram}], K: [[2, 3], [0, 3]]}\n"
    )
    found = {arm["name"]: arm["settings"] for arm in arms_json(EngineOptions(arms=path))}
    assert found == {
        "autoregressive": None,
        "copy": {"stop_below": 0.25},
        "cs": {"K": [[2, 3], [0, 3]]},
    }


def test_the_name_alone_is_the_default() -> None:
    said, left_out = (recipe(kind="max_gram", **more) for more in ({"verifier": "coupled"}, {}))
    assert said == left_out
    assert "verifier" not in said.model_dump(mode="json", exclude_defaults=True)
    assert said.model_dump(mode="json")["verifier"] == "coupled"


# -- what they become -----------------------------------------------------------------------------


def test_rounds_of_a_lossy_arm_are_not_told_from_the_target_s_answer() -> None:
    arms = {
        "exact": recipe(kind="max_gram", name="exact", verifier={"rule": "bild", "rollback": 0}),
        "loose": recipe(kind="max_gram", name="loose", verifier={"rule": "bild", "rollback": 1}),
    }
    engine = Engine(ToyBackend.random(100, seed=1), arms)  # costs are measured on ids below 98
    batch = Batch(engine)
    assert batch.replay("exact", [[1, 2, 1]], [[2, 1, 2]], 3)[0].rounds > 0
    with pytest.raises(DraftpickError, match="arm 'loose' gives answers of its own"):
        batch.replay("loose", [[1, 2, 1]], [[2, 1, 2]], 3)
    for name in arms:  # writing alone is the drafter's own affair
        assert batch.arm(name, [[1, 2, 1]], 4).ids
