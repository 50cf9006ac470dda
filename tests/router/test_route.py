from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from policy_tables import table, with_features
from router_fakes import FakePolicy

from collect.features import RequestContext, feature_vector
from collect.queries import shipped
from decoders.common.errors import DraftpickError
from decoders.records import Request, Sampling
from decoders.testing.fake_engine import FakeEngine
from policies import PolicyError, fit
from router.records import AskOptions
from router.routing.router import Router


def test_the_policy_picks_the_arm_and_its_time_counts(router: Router) -> None:
    even, odd = router.generate("abcd"), router.generate("abc")
    assert (even.arm, odd.arm) == ("small", "wide")
    assert even.propensity == 1.0 and even.scores == [0.1, 0.7, 0.2]
    assert even.policy_s > 0 and even.embed_s > 0
    assert even.wall_s == pytest.approx(even.result.wall_s + even.embed_s + even.policy_s)
    assert even.tokens_per_s == pytest.approx(len(even.result.ids) / even.wall_s)


def test_a_forced_arm_needs_no_policy(engine: FakeEngine) -> None:
    routed = Router(engine, None).generate("hello", arm="wide")
    assert (routed.arm, routed.propensity, routed.scores, routed.policy_s) == ("wide", 1.0, [], 0.0)
    with pytest.raises(DraftpickError, match="no policy"):
        Router(engine, None).generate("hello")


def test_one_seed_draws_for_every_prompt_by_itself(router: Router) -> None:
    """As often as its propensity says, and the same for the same prompt; by another seed another
    arm may come."""
    texts, arms = [f"question {number}" for number in range(300)], router.policy.arms
    drawn, again = (
        [router.generate(text, dynamic=True, seed=7) for text in some]
        for some in (texts, texts[:20])
    )
    assert [r.arm for r in drawn[:20]] == [r.arm for r in again]
    assert all(r.propensity == r.scores[arms.index(r.arm)] for r in drawn)
    assert {router.generate("abcd", dynamic=True, seed=n).arm for n in range(40)} == {*arms}
    expected = sum(np.array(one.scores) for one in drawn) / len(drawn)  # the fake's probabilities
    shares = [sum(one.arm == arm for one in drawn) / len(drawn) for arm in arms]
    assert shares == pytest.approx(expected, abs=0.1)


def test_messages_are_a_chat(router: Router, engine: FakeEngine) -> None:
    router.generate([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}])
    assert engine.calls[-1][1] == "s:be brief|u:hi"


@pytest.mark.parametrize("prompt", ["", "  \n", [], [{"role": "user"}], [{"role": "user",
                                    "content": " "}]])  # fmt: skip
def test_an_empty_prompt_is_refused(router: Router, prompt: str | list[dict[str, str]]) -> None:
    with pytest.raises(DraftpickError):
        router.generate(prompt)


def test_a_policy_for_other_arms_or_another_embedder_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(PolicyError, match="huge"):
        Router(engine, FakePolicy(arms=["small", "huge"]))
    with pytest.raises(PolicyError, match="elsewhere"):
        Router(engine, FakePolicy(embedder="elsewhere/4"))


class Reader(FakePolicy):
    """Keeps what it was given."""

    def __init__(self, features: tuple[str, ...]) -> None:
        super().__init__()
        self.origin = SimpleNamespace(arms_fingerprint="", features=features)
        self.seen: list[Any] = []

    def choose(self, x: Any, rng: Any = None) -> Any:
        self.seen.append(x)
        return super().choose([0.0], rng)


def test_a_policy_reads_features_after_the_embedding(engine: FakeEngine) -> None:
    """By the function that made its training table."""
    names = ("temperature", "repeated-bigrams", "log-max-new-tokens", "requests-running")
    policy = Reader(names)
    router = Router(engine, policy)
    request = Request(9, Sampling(0.7), seed=1)
    router.respond("abab", request, AskOptions(running=3))
    ids = engine.encode_chat([{"role": "user", "content": "abab"}])
    context = RequestContext(ids, 9, 0.7, 3)
    assert policy.seen[0][:4].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert policy.seen[0][4:].tolist() == feature_vector(names, context).tolist()
    assert policy.seen[0][4] == np.float32(0.7)


def test_a_policy_of_unknown_features_is_refused(engine: FakeEngine) -> None:
    with pytest.raises(PolicyError, match=r"reads the feature mood, .*known: temperature, greedy"):
        Router(engine, Reader(("greedy", "mood")))


def test_a_trained_policy_takes_another_arm_at_another_temperature(engine: FakeEngine) -> None:
    """The arm that is best at temperature 0 loses at 1, and embeddings do not tell."""
    hot, alike = np.arange(60) % 2, np.repeat(np.float32([[0.0, 1.0, 0.0, 0.0]]), 60, axis=0)
    made = table(alike, np.stack([hot, 1.0 - hot], axis=1), ["small", "wide"])
    made = replace(made, embedder=FakeEngine.embedder, arms_fingerprint="")
    made = replace(made, groups=[f"q{n // 2}" for n in range(60)])
    router = Router(engine, fit("regression", with_features(made, temperature=hot)).policy)
    assert router.generate("abcd").arm == "wide"
    hot_answer = router.generate("abcd", temperature=1.0, seed=1)
    assert hot_answer.arm == "small"
    took = [router.generate("abcd", temperature=1.0, seed=1).policy_s for _ in range(30)]
    assert min(took) < 0.001


def test_arms_of_one_s_own_need_a_policy_and_the_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import policies
    from router.routing import loading

    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    monkeypatch.setattr(policies, "load", lambda *_: FakePolicy(["wide", "huge"]))
    arms = tmp_path / "arms.yaml"
    arms.write_text("arms: {}")
    with pytest.raises(PolicyError, match=r"the policy that ships.*missing: huge") as refused:
        Router.from_pretrained(arms=arms)
    commands = ["draftpick collect --target", "draftpick train", "--policy policy", "--arm autoreg"]
    assert all(command in str(refused.value) for command in commands)


def test_where_the_shipped_policy_does_not_fit_its_best_arm_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another chat template, for instance, whose embeddings it does not know."""
    import policies
    from router.routing import loading
    from router.routing import router as route

    arms = FakeEngine().arm_names
    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    monkeypatch.setattr(route, "BEST_FIXED", arms[1])
    shipped = FakePolicy(arms, embedder="target:other")
    monkeypatch.setattr(policies, "load", lambda *_: shipped)
    router = Router.from_pretrained()
    assert router.generate("abcd").arm == arms[1]
    said = capsys.readouterr().err
    assert "the policy that ships does not fit" in said and f"goes to {arms[1]}" in said


# -- the policy that ships, on the default target --------------------------------------------------


@pytest.mark.slow
def test_the_shipped_policy_tells_sql_and_json_from_other_questions() -> None:
    """By the prompt alone: of the test's queries, with schemas and shapes of their own."""
    router = Router.from_pretrained()
    taken: dict[str, list[str]] = {}
    for query in shipped("test"):
        answer = router.generate(query.turns[0], max_new_tokens=1)
        taken.setdefault(query.task, []).append(answer.arm)
    for task, arms in taken.items():
        share = arms.count("hybrid-data") / len(arms)
        assert share >= 0.8 if task in ("sql", "json") else share <= 0.2, (task, arms)
    assert Request().sampling.greedy
