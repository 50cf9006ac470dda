"""Arms that ship for a known model: found by its name or by its file, whose drafters are never
fetched unasked."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from decoder_toys import Tiny, native
from gguf_toys import LARGE, SAID, SMALL, save_gguf, saying

from decoders import Engine
from decoders.arms import UNTRAINED_ARMS, load_arms, recipe
from decoders.arms.file import own_arms
from decoders.common.errors import Damaged, DraftpickError
from decoders.models.drafter_memory import LoadFailed
from decoders.options import EngineOptions
from decoders.records import Request
from decoders.testing.toys import ToyBackend
from decoders.zoo.catalogue import KNOWN_FILES, TARGET, WHEELS, known_as, shipped_folders

ELSEWHERE = {"basename": "qwen2.5_coder", "size_label": "1.5b", "finetune": "instruct"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, and nothing can be fetched."""

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched unasked")

    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", run)
    return tmp_path / "cache"


# -- which model it is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (SAID, LARGE),
        (ELSEWHERE, LARGE),
        (SAID | {"name": "Something else"}, LARGE),
        (SAID | {"size_label": "0.5B", "finetune": "Instruct-AWQ"}, SMALL),
        ({"name": "Qwen2.5 Coder 1.5B Instruct"}, LARGE),  # as older converters have it
        (SAID | {"finetune": ""}, None),  # the base model
        (SAID | {"size_label": "7B"}, None),
        (SAID | {"basename": "Qwen2.5"}, None),
        ({}, None),
    ],
)
def test_a_file_is_known_by_what_it_says(
    said: dict[str, str], known: str | None, tmp_path: Path
) -> None:
    assert known_as(str(saying(tmp_path / "mine.gguf", **said))) == known


def test_another_file_in_its_place_is_read_anew(tmp_path: Path) -> None:
    path = saying(tmp_path / "mine.gguf", **SAID)
    assert known_as(str(path)) == LARGE
    saying(path, basename="Other")
    assert known_as(str(path)) is None


@pytest.mark.parametrize("name", ["", "nope", "nowhere/mine.gguf", "~nobody/x.gguf", "x" * 5000])
def test_what_is_no_file_is_not_known(name: str) -> None:
    assert known_as(name) is None and known_as(f"{name}.gguf") is None


def test_a_file_that_is_cut_short_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "mine.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(Damaged, match=r"mine\.gguf is cut short: it has [\d,]+ bytes of"):
        EngineOptions(target=str(path)).recipes()


# -- its arms -------------------------------------------------------------------------------------


def test_arms_follow_the_target_and_a_file_of_ones_own_wins(tmp_path: Path) -> None:
    mine = str(saying(tmp_path / "mine.gguf", **SAID))
    own = load_arms(own_arms()[LARGE])
    for target in (LARGE, mine):
        assert EngineOptions(target).recipes() == own
        assert EngineOptions(target).made_for == LARGE
    for target in (TARGET, SMALL, "models/other"):
        assert EngineOptions(target).recipes() == load_arms()
        assert EngineOptions(target).made_for is None
    chosen = EngineOptions(mine, UNTRAINED_ARMS)
    assert chosen.recipes() == load_arms(UNTRAINED_ARMS) and chosen.made_for is None


@pytest.mark.parametrize("name", own_arms())
def test_arms_that_ship_for_a_model(name: str, cache: Path) -> None:
    """At most eight, all lossless, whose drafters ship, or are known and are not fetched."""
    arms = load_arms(own_arms()[name])
    assert name in KNOWN_FILES and len(arms) <= 8 and all(arm.lossless for arm in arms.values())
    for arm in arms.values():
        model: Any = getattr(arm, "model", arm)
        if getattr(model, "drafter", None) not in {None, *shipped_folders()}:
            assert model.drafter in {*KNOWN_FILES, *WHEELS}
            with pytest.raises(DraftpickError, match=rf"arm '{arm.name}' drafts with .* not on d"):
                arm.build(ToyBackend.random(4, 0), None)


def test_a_drafter_may_be_fetched_unless_the_recipe_says_otherwise(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(name: str) -> Path:
        asked.append(name)
        raise DraftpickError("no network")

    monkeypatch.setattr("decoders.models.targets.resolve", resolve)
    for fetch, why in ((True, "no network"), (False, "models --fetch")):
        arm = recipe(name="a", kind="neural", drafter=SMALL, fetch=fetch)
        with pytest.raises(DraftpickError, match=why):
            arm.build(ToyBackend.random(4, 0), None)
    assert asked == [SMALL]


def test_a_drafter_that_is_on_disk_is_found(cache: Path) -> None:
    known = KNOWN_FILES[SMALL]
    cache.mkdir()
    with known.path.open("wb") as file:
        file.truncate(known.size_bytes)
    arm: Any = recipe(name="a", kind="neural", drafter=SMALL, fetch=False)
    assert arm.found == SMALL
    local: Any = recipe(name="a", kind="neural", drafter="drafts/mine", fetch=False)
    assert local.found == "drafts/mine"  # not known by name, so nothing would be fetched


def test_arms_that_need_no_drafter_answer_where_one_is_missing(cache: Path, tiny: Tiny) -> None:
    engine = Engine(native(tiny()), load_arms(own_arms()[LARGE]))
    request = Request(max_new_tokens=4)
    plain = engine.decode("autoregressive", [1, 2, 3, 1, 2], request).ids
    assert engine.decode("max-gram", [1, 2, 3, 1, 2], request).ids == plain
    with pytest.raises(LoadFailed, match=f"`draftpick models --fetch {SMALL}`"):
        engine.decode("hybrid-0.5b", [1, 2, 3, 1, 2], request)
    assert "hybrid-0.5b" in engine.asleep
    assert engine.decode("autoregressive", [1, 2, 3, 1, 2], request).ids == plain
