"""The policy that ships for a known model, or prompt lookup until one does."""

from pathlib import Path

import pytest
from commands import Draftpick
from gguf_toys import LARGE, SAID, SMALL, saying
from router_fakes import FakePolicy
from tiny_models import target_model

import policies
from collect.features import RequestContext, feature_vector
from decoders.arms import load_arms
from decoders.arms.file import fingerprint, own_arms
from decoders.options import EngineOptions
from decoders.testing.fake_engine import FakeEngine
from router.routing import loading
from router.routing.loading import MODEL_POLICIES, shipped_for, shipped_policy
from router.routing.router import Router


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return str(saying(tmp_path / "mine.gguf", **SAID))


def test_until_a_policy_ships_prompt_lookup_answers(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "MODEL_POLICIES", tmp_path)
    options, policy = shipped_for(EngineOptions(mine))
    assert options.made_for == LARGE
    assert policy.arms == list(load_arms(own_arms()[LARGE])) and policy.name == "fixed"
    said = capsys.readouterr().err
    assert f"no policy ships for {LARGE}" in said and f"draftpick collect --target {mine}" in said


def test_a_policy_that_ships_for_the_model_is_taken(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MODEL_POLICIES", tmp_path)
    policies.uniform_policy(list(load_arms(own_arms()[LARGE]))).save(tmp_path / LARGE)
    for target in (mine, LARGE):
        assert shipped_policy(EngineOptions(target)) == tmp_path / LARGE
        assert shipped_for(EngineOptions(target))[1].name == "uniform"
    assert shipped_policy(EngineOptions()) == loading.DEFAULT_POLICY
    assert shipped_policy(EngineOptions(mine, tmp_path)) == loading.DEFAULT_POLICY


def test_a_policy_of_ones_own_wins(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    own = FakePolicy(FakeEngine().arm_names)
    assert Router.from_pretrained(mine, own).policy is own


def test_where_the_model_s_policy_does_not_fit_prompt_lookup_answers(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = FakeEngine().arm_names
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    monkeypatch.setattr("router.routing.router.UNTRAINED", arms[1])
    monkeypatch.setattr(loading, "MODEL_POLICIES", tmp_path)
    (tmp_path / LARGE).mkdir()
    (tmp_path / LARGE / "policy.json").touch()
    monkeypatch.setattr(policies, "load", lambda *_: FakePolicy(arms, embedder="target:other"))
    assert Router.from_pretrained(mine).generate("abcd").arm == arms[1]
    assert f"Every query goes to {arms[1]}" in capsys.readouterr().err


def test_policies_that_ship_are_of_the_arms_that_ship() -> None:
    for manifest in MODEL_POLICIES.glob("*/policy.json"):
        policy = policies.load(manifest.parent)
        arms = load_arms(own_arms()[manifest.parent.name])
        assert set(policy.arms) <= set(arms)
        assert policy.origin.arms_fingerprint == fingerprint({n: arms[n] for n in policy.arms})


@pytest.mark.parametrize(("temperature", "answers"), [(0.0, 15), (1.0, 32)])
def test_it_takes_what_the_page_on_arms_says(temperature: float, answers: int) -> None:
    policy = policies.load(MODEL_POLICIES / LARGE)
    context = RequestContext([1, 2], 64, temperature, answers - 1)
    x = feature_vector(policy.origin.features, context)
    assert policy.arms[int(policy.scores(x[None])[0].argmax())] == "hybrid"


def test_arms_lists_them(mine: str, draftpick: Draftpick) -> None:
    listed = draftpick("arms", "--target", mine, "--json").json
    assert [arm["name"] for arm in listed] == list(load_arms(own_arms()[LARGE]))
    said = draftpick("arms", "--target", "models/other", code=2).err
    assert "no arms ship for it; give a model for which some do (smollm2" in said and LARGE in said


def test_a_collection_asks_for_every_drafter_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    """Also for those that were not named: all arms are used."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("the target was loaded")

    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("decoders.models.targets.load_backend", load)
    target_model(tmp_path / "target")
    arms, queries = tmp_path / "arms.yaml", tmp_path / "queries.jsonl"
    arms.write_text(f"arms:\n  small: {{kind: neural, drafter: {SMALL}, fetch: false}}\n")
    queries.write_text('{"id": "1", "task": "qa", "turns": ["what is the river"]}\n')
    words = ["collect", "--target", tmp_path / "target", "--config", arms, "--queries", queries,
             "--out", tmp_path / "rewards"]  # fmt: skip
    said = draftpick(*words, code=2).err
    assert f"`draftpick models --fetch {SMALL}` fetches it (491 MB)" in said
    assert not (tmp_path / "rewards").exists()


def test_a_known_model_is_fetched_when_asked(
    monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    monkeypatch.setattr("decoders.models.targets.resolve", lambda name: Path("/at") / name)
    assert draftpick("models", "--fetch", LARGE).out.strip() == f"/at/{LARGE}"
    assert LARGE in draftpick("models", "--fetch", "nope", code=2).err
