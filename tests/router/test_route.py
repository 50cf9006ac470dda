from __future__ import annotations

import sys
from pathlib import Path

import pytest
from router_fakes import JSON_KEYS, FakeEngine, FakePolicy

from decoders.errors import DraftpickError, NoSuchName
from policies.errors import PolicyError
from router.route import Router


def test_the_policy_picks_the_arm_and_its_time_counts(router: Router) -> None:
    even, odd = router.generate("abcd"), router.generate("abc")
    assert (even.arm, odd.arm) == ("small", "wide")
    assert even.propensity == 1.0 and even.scores == [0.1, 0.7, 0.2]
    assert even.policy_s > 0 and even.embed_s > 0
    assert even.wall_s == pytest.approx(even.result.wall_s + even.embed_s + even.policy_s)
    assert even.tokens_per_s == pytest.approx(len(even.result.ids) / even.wall_s)


def test_json_has_exactly_the_documented_keys(router: Router) -> None:
    assert list(router.generate("hello").to_json()) == JSON_KEYS


def test_a_forced_arm_needs_no_policy(engine: FakeEngine) -> None:
    routed = Router(engine, None).generate("hello", arm="wide")
    assert (routed.arm, routed.propensity, routed.scores, routed.policy_s) == ("wide", 1.0, [], 0.0)
    with pytest.raises(DraftpickError, match="no policy"):
        Router(engine, None).generate("hello")


def test_dynamic_draws_are_repeatable_and_say_their_propensity(router: Router) -> None:
    drawn = [router.generate("abcd", dynamic=True, seed=seed) for seed in range(40)]
    again = [router.generate("abcd", dynamic=True, seed=seed) for seed in range(40)]
    assert [r.arm for r in drawn] == [r.arm for r in again]
    assert {r.arm for r in drawn} == {"autoregressive", "small", "wide"}
    assert all(r.propensity == r.scores[["autoregressive", "small", "wide"].index(r.arm)]
               for r in drawn)  # fmt: skip


def test_messages_are_a_chat(router: Router, engine: FakeEngine) -> None:
    router.generate([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])
    assert engine.calls[-1][1] == "s:be brief|u:hi"


@pytest.mark.parametrize("prompt", ["", "  \n", [], [{"role": "user"}], [{"role": "user",
                                    "content": " "}]])  # fmt: skip
def test_an_empty_prompt_is_refused(router: Router, prompt: str | list[dict[str, str]]) -> None:
    with pytest.raises(DraftpickError):
        router.generate(prompt)


def test_bad_wishes_are_refused(router: Router) -> None:
    with pytest.raises(NoSuchName, match="autoregressive, small, wide"):
        router.generate("hi", arm="huge")
    with pytest.raises(DraftpickError, match="max_new_tokens"):
        router.generate("hi", max_new_tokens=0)
    with pytest.raises(DraftpickError, match="context"):
        router.generate("x" * 3000)


def test_a_policy_for_other_arms_or_another_embedder_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(PolicyError, match="huge"):
        Router(engine, FakePolicy(arms=["small", "huge"]))  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="elsewhere"):
        Router(engine, FakePolicy(embedder="elsewhere/4"))  # type: ignore[arg-type]


def test_the_package_exports_the_router_lazily() -> None:
    import router as package

    assert package.Router is Router
    assert "router.route" in sys.modules
    with pytest.raises(AttributeError):
        _ = package.nothing


def test_arms_of_one_s_own_need_a_policy_and_the_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import policies
    from router import route

    monkeypatch.setattr(route, "load_engine", lambda *_, **__: FakeEngine())
    monkeypatch.setattr(policies, "load", lambda *_: FakePolicy(["wide", "huge"]))
    arms = tmp_path / "arms.yaml"
    arms.write_text("arms: {}")
    with pytest.raises(PolicyError, match=r"the policy that ships.*missing: huge") as refused:
        Router.from_pretrained(arms=arms)
    commands = ["draftpick collect --target", "draftpick train", "--policy policy", "--arm autoreg"]
    assert all(command in str(refused.value) for command in commands)
