"""`draftpick evaluate`: logs of a router whose truth is known, and tables."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from commands import Draftpick
from log_lines import decision
from policy_tables import table
from router_fakes import at_eighty

import policies
from decoders.common.errors import DraftpickError
from decoders.common.seeds import derived_seed
from decoders.records import Request
from decoders.testing.fake_engine import FakeEngine
from policies import PolicyError
from policies.fixed import ConstantPolicy, fixed_policy, uniform_policy
from policies.ope.estimators import InverseProbabilityWeighting
from policies.records import ANY, Origin
from router.commands.evaluate import judgement_lines, judgement_tables
from router.logs import rows as reasons
from router.logs.judge import MIN_EFFECTIVE_ROWS, Judgement, judge
from router.logs.reader import DecisionRows, read_log
from router.logs.record import LOG_REWARDS, Result, Vector
from router.logs.rows import usable
from router.logs.writer import DecisionLog
from router.routing.router import Router
from router.tabulated import for_terminal

TWO = ("small", "wide")
ARMS = ("autoregressive", *TWO)


def constant(*probabilities: float, arms: tuple[str, ...] = ARMS, made_for: str = "") -> Any:
    """made_for: the fingerprint of its arms' recipes."""
    origin = Origin("mixed", arms, ANY, arms_fingerprint=made_for)
    return ConstantPolicy(origin, np.array(probabilities))


class Reading(policies.BasePolicy):
    """Takes `small` where the embedding's first number is 0, else `wide`, most of the time."""

    kind = "reading"

    def __init__(self, most: float) -> None:
        super().__init__(Origin("reading", ARMS, FakeEngine.embedder, dimension=4))
        self.most = most

    def scores(self, x: Any) -> np.ndarray:
        first = np.atleast_2d(np.asarray(x))[:, 0].astype(int)
        rest = (1 - self.most) / 2
        return np.array([[rest, rest, self.most] if odd else [rest, self.most, rest]
                         for odd in first])  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        return {"most": np.array([self.most])}

    @classmethod
    def rebuild(cls, origin: Any, settings: Any, arrays: Any) -> Self:
        return cls(float(arrays["most"][0]))


PROMPTS = ["x" * (1 + n % 7) for n in range(300)]


def saved(arm: str, prompt: str) -> float:
    engine = FakeEngine()
    ids = engine.encode_chat([{"role": "user", "content": prompt}])
    result = engine.decode(arm, ids, Request(64))
    return 1 - result.rounds / (len(result.ids) - 1)


TRUTH = {arm: np.mean([saved(arm, prompt) for prompt in PROMPTS]) for arm in ARMS}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 answers drawn by a policy that reads the embedding."""
    folder = tmp_path_factory.mktemp("log")
    held = DecisionLog(folder, embeddings=True)
    router = Router(FakeEngine(), Reading(0.5), log=held)
    for number, prompt in enumerate(PROMPTS):
        router.generate(prompt, dynamic=True, seed=derived_seed(0, number), max_new_tokens=64)
    return folder


def near(estimate: Any, truth: float) -> bool:
    """By chance alone in 997 logs of 1000."""
    return bool(abs(estimate.value - truth) < 3 * estimate.standard_error)


# -- estimates ------------------------------------------------------------------------------------


def test_other_policies_are_judged_by_what_was_logged(log: Path) -> None:
    """Against the exact value, from every arm's answer to every prompt."""
    found = judge(read_log(log), constant(0.2, 0.3, 0.5), "saved-passes")
    truth = 0.3 * TRUTH["small"] + 0.5 * TRUTH["wide"]
    assert found.used == found.rows == 300 and found.excluded == {}
    dynamic, greedy = found.comparisons["dynamic"], found.comparisons["greedy"]
    for name in ("ips", "snips", "dr", "switch-dr"):
        assert near(dynamic.values[name], truth), name
        assert near(greedy.values[name], TRUTH["wide"]), name
    assert dynamic.values["dm"].value == pytest.approx(truth, abs=0.03)
    assert dynamic.values["dr"].standard_error < dynamic.values["ips"].standard_error
    assert greedy.effective < dynamic.effective < 300
    gain = TRUTH["wide"] - np.mean([
        sum(chance * saved(arm, prompt) for arm, chance in zip(
            ARMS, (0.25, 0.25, 0.5) if len(f"u:{prompt}") % 2 else (0.25, 0.5, 0.25), strict=True
        ))
        for prompt in PROMPTS
    ])  # fmt: skip
    assert near(greedy.gains["dr"], gain) and greedy.gains["dr"].low > 0


def test_every_arm_is_judged_as_if_always_taken(log: Path) -> None:
    found = judge(read_log(log), reward="saved-passes")
    assert [each.arm for each in found.arms] == list(ARMS)
    assert sum(each.taken for each in found.arms) == 300
    for each in found.arms:
        assert each.always.value == pytest.approx(TRUTH[each.arm], abs=0.06)
    assert found.comparisons == {} and found.policy is None


def test_a_policy_that_reads_the_embedding(log: Path) -> None:
    found = judge(read_log(log), Reading(0.9), "saved-passes")
    best = [saved("wide" if len(f"u:{p}") % 2 else "small", p) for p in PROMPTS]
    assert near(found.comparisons["greedy"].values["dr"], float(np.mean(best)))
    own = judge(read_log(log), Reading(0.5), "saved-passes")
    for name in ("ips", "snips"):  # it wrote the log: all weights are 1
        same = own.comparisons["dynamic"].values[name]
        assert same.value == pytest.approx(own.logged.value)
    assert own.comparisons["dynamic"].effective == pytest.approx(300)
    (version,) = own.versions
    assert (version.policy, version.choice) == (Reading(0.5).fingerprint, "drawn")
    assert version.value.value == own.logged.value


# -- what is left out, and said -------------------------------------------------------------------


def of(*each: Any, broken: int = 0) -> DecisionRows:
    return DecisionRows(Path("log"), list(each), broken)


def many(n: int, **named: Any) -> list[Any]:
    """Half of them `small`, each as likely as not; rewards rise."""
    found = []
    for number in range(n):
        arm = ("small", "wide")[number % 2]
        speed = 10.0 + number % 5 + 5 * (arm == "wide")
        outcome = Result(new_tokens=9, rounds=4, tokens_per_s=speed, wall_s=9 / speed)
        fields: dict[str, Any] = {"arm": arm, "propensity": 0.5, "outcome": outcome,
                                  "probabilities": {"small": 0.5, "wide": 0.5}}  # fmt: skip
        found.append(decision(str(number), **(fields | named)))
    return found


WIDE = fixed_policy(TWO, "wide")


def test_what_does_not_count_is_counted() -> None:
    forced = {"choice": "forced", "probabilities": {}, "policy": None, "propensity": 1.0}
    lines = [
        *many(2, target="older"),
        *many(3, arms_fingerprint="changed"),
        *many(100),
        *many(4, **forced),
        *many(5, outcome=Result(error="RuntimeError")),
        *many(6, outcome=Result(new_tokens=1, rounds=0)),
        *many(7, outcome=Result(error="Cancelled")),  # as of older lines
        *many(8, outcome=Result(error="Unheard", arm_failed=False)),
    ]
    found = judge(of(*lines, broken=7), WIDE)
    assert (found.rows, found.used, found.broken) == (135, 105, 7)
    assert found.excluded == {
        reasons.FORCED: 4, reasons.OTHERS: 5, reasons.NO_REWARD: 6, reasons.NO_FAULT: 15,
    }  # fmt: skip
    assert [each.failed for each in found.arms] == [3, 2]
    told = judgement_lines(found)
    assert told[0] == "105 of 135 decisions count"
    assert any("7 lines cut short" in line for line in told)
    assert len([line for line in told if "left out:" in line]) == 4


def test_an_arm_that_fails_is_worth_what_its_failures_leave() -> None:
    """Drawn evenly, `small` always earns 10 tokens a second; `wide` earns 12 and fails half the
    time. Without the failures IPS would give `small` a third more than it earns."""
    lines = many(400)
    for number, line in enumerate(lines):
        speed = 10.0 if line.arm == "small" else 12.0
        outcome = Result(new_tokens=9, rounds=4, tokens_per_s=speed, wall_s=9 / speed)
        fails = line.arm == "wide" and number % 4 == 1
        given = Result(error="RuntimeError") if fails else outcome
        lines[number] = line.model_copy(update={"outcome": given})
    held = usable(of(*lines), None, "measured", lambda outcome: outcome.tokens_per_s or math.nan)
    assert held.failures == {"wide": 100} and len(held.log.actions) == 400
    for arm, worth in (("small", 10.0), ("wide", (12.0 + 10.0) / 2)):
        always = np.tile(np.array(held.table.arms) == arm, (400, 1)).astype(float)
        estimate = InverseProbabilityWeighting().estimate(held.log, always)
        assert estimate.value == pytest.approx(worth)


def uncounted(share: float) -> Judgement:
    """Two arms drawn alike, worth 10 and 12; the share of the second's answers is not counted."""
    rows = []
    for at in range(2000):
        arm, worth = ("small", 10.0) if at % 2 else ("wide", 12.0)
        lost = arm == "wide" and at // 2 % 10 < 10 * share
        outcome = Result(wall_s=1.0, tokens_per_s=None if lost else worth + (at % 7 - 3) / 10)
        chances = {"small": 0.5, "wide": 0.5}
        named = {"arm": arm, "propensity": 0.5, "probabilities": chances, "outcome": outcome}
        rows.append(decision(f"r{at}", **named))
    return judge(DecisionRows("log", rows, 0), fixed_policy(["small", "wide"], "small"))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_rewards_that_one_arm_lacks_bias_nothing(share: float) -> None:
    found = uncounted(share)
    small = found.comparisons["greedy"]
    assert {name: one.value for name, one in small.values.items()} == pytest.approx(
        dict.fromkeys(("ips", "snips", "dm", "dr", "switch-dr"), 10.0), abs=0.1
    )
    words = " ".join(found.warnings)
    if share == 1:
        assert all(math.isnan(one.value) for one in small.gains.values())
        assert "no answer of wide has a value of this reward" in words
        return
    assert ("than of others" in words) == (share > 0)
    assert found.logged.value == pytest.approx(11, abs=0.1)
    assert all(one.value == pytest.approx(-1, abs=0.1) for one in small.gains.values())
    assert found.arms[1].always is not None
    assert found.arms[1].always.value == pytest.approx(12, abs=0.1)


def test_an_arm_without_rewards_is_worth_no_nothing() -> None:
    """A policy that takes it half of the time would earn half of the other by `ips`."""
    rows = [
        decision(f"r{at}", arm=arm, propensity=0.5, probabilities={"small": 0.5, "wide": 0.5},
                 outcome=Result(wall_s=1.0, tokens_per_s=10.0 if arm == "small" else None))
        for at, arm in enumerate(["small", "wide"] * 200)
    ]  # fmt: skip
    held = usable(DecisionRows("log", rows, 0), None, "tokens_per_s", LOG_REWARDS["tokens_per_s"])
    assert held.log.known is not None and set(held.log.known) == {0.5}
    found = judge(DecisionRows("log", rows, 0), uniform_policy(["small", "wide"]))
    assert "ips" not in found.comparisons["dynamic"].values
    assert found.unknown["dynamic"] == pytest.approx(0.5)
    assert "whose reward is never known" in " ".join(found.warnings)


def test_what_an_arm_does_to_other_rows_is_said() -> None:
    """Answers that share passes with others, and later turns that stayed with the arm."""
    chances = {"arm": "small", "propensity": 0.75}
    alone = [decision(f"r{at}", **chances, features={"requests-running": 0}) for at in range(30)]
    beside = [decision(f"s{at}", **chances, features={"requests-running": 1.1}) for at in range(10)]
    later = {"choice": "kept", "probabilities": {}, "policy": None, "propensity": 1.0}
    turns = [decision(f"t{at}", arm="small", **later) for at in range(5)]
    found = judge(DecisionRows("log", alone + beside + turns, 0))
    assert found.used == 40 and found.excluded[reasons.KEPT] == 5
    words = " ".join(found.warnings)
    assert "25% of the rows were answered beside others" in words
    assert "5 later turns that stayed with it is in none" in words
    words = " ".join(judge(DecisionRows("log", alone + beside, 0), reward="saved-passes").warnings)
    assert "beside others" not in words and "later turn" not in words
    assert "beside others" not in " ".join(judge(DecisionRows("log", alone, 0)).warnings)


def test_rows_of_other_recipes_are_not_mixed() -> None:
    older, newer = many(60), many(60, arms_fingerprint="b")
    found = judge(of(*older, *newer), uniform_policy(["small", "wide"]))
    assert found.excluded == {reasons.OTHERS: 60} and found.used == 60
    assert judge(of(*many(2, arms_fingerprint="b"), *older)).used == 60, "where most rows are"
    trained, changed = (constant(0.0, 1.0, arms=TWO, made_for=each) for each in "ac")
    assert judge(of(*older, *newer), trained).used == 60, "the rows of its own recipes"
    fewer = constant(1.0, arms=("wide",), made_for="c")
    assert any("cannot be checked" in w for w in judge(of(*older), fewer).warnings)
    with pytest.raises(PolicyError, match=r"does not fit the policy.*fingerprint c"):
        judge(of(*older, *newer), changed)


def test_versions_of_a_policy_are_told_apart_and_pooled() -> None:
    lines = [*many(40, policy="one"), *many(60, policy="two")]
    found = judge(of(*lines), WIDE)
    assert [(v.policy, v.rows) for v in found.versions] == [("two", 60), ("one", 40)]
    assert found.used == 100


def test_too_few_effective_rows_say_how_many_more() -> None:
    found = judge(of(*many(40)), WIDE)
    (doubt,) = [w for w in found.warnings if "is worth" in w]
    assert "20.0 independent rows" in doubt and "about 60 more rows like its 40 make 50" in doubt
    assert any("only 40 rows to judge by" in w for w in found.warnings)
    lines = many(2 * MIN_EFFECTIVE_ROWS)
    assert not any("is worth" in w for w in judge(of(*lines), WIDE).warnings)
    few = [each.model_copy(update={"group": f"g{at % 5}"}) for at, each in enumerate(lines)]
    words = " ".join(judge(of(*few), WIDE).warnings)
    assert "only 5 groups to judge by" in words and "is worth 5.0 independent rows" in words


def test_small_propensities_and_heavy_rows_are_pointed_out() -> None:
    rare = many(1, arm="wide", propensity=0.004, probabilities={"small": 0.996, "wide": 0.004})
    found = judge(of(*many(400), *rare), uniform_policy(["small", "wide"]))
    assert any("1 row with a propensity below 0.01" in w for w in found.warnings)
    heavy = judge(of(*many(200), *rare), constant(0.9, 0.1, arms=TWO)).warnings
    assert any("one row or group carries" in w or "is worth" in w for w in heavy)
    assert not judge(of(*many(400)), WIDE).warnings
    cut = judge(of(*many(400)), WIDE, tau=1.5)
    assert any("100% of all weight is above --tau" in w for w in cut.warnings)
    values = cut.comparisons["greedy"].values
    assert values["switch-dr"].value == values["dm"].value
    assert [each.always for each in judge(of(*many(18))).arms] == [None, None], "nine rows each"


def test_a_difference_within_chance_says_how_many_rows_would_settle_it() -> None:
    rng = np.random.default_rng(0)
    lines = [
        each.model_copy(update={"outcome": Result(tokens_per_s=10 + rng.normal())})
        for each in many(200)
    ]
    (said,) = [w for w in judge(of(*lines), WIDE).warnings if "not settled" in w]
    assert "more rows" in said


def test_what_could_not_have_been_drawn_is_not_known() -> None:
    best = many(60, choice="best", arm="small", propensity=1.0,
                probabilities={"small": 1.0, "wide": 0.0})  # fmt: skip
    with pytest.raises(PolicyError, match="more exploration"):
        judge(of(*best), WIDE)
    found = judge(of(*best), constant(0.6, 0.4, arms=TWO))
    assert found.unknown["dynamic"] == pytest.approx(0.4)
    assert any("40% of the policy's choices" in w for w in found.warnings)
    small, wide = found.arms
    assert small.always is not None and wide.always is None
    other = many(60, choice="best", arm="wide", propensity=1.0,
                 probabilities={"small": 0.0, "wide": 1.0})  # fmt: skip
    assert [each.always for each in judge(of(*best, *other)).arms] == [None, None]


def test_what_a_policy_reads_must_be_in_the_log() -> None:
    reading = policies.fit("regression", toy_table()).policy
    space = {"embedder": "toy@abcdef", "arms_fingerprint": "arms-1"}
    with pytest.raises(PolicyError, match="--log-embeddings"):
        judge(of(*many(60, **space)), reading)
    vector = Vector.of(np.zeros(3, np.float32))
    found = judge(of(*many(60, **space), *many(60, embedding=vector, **space)), reading)
    assert found.excluded == {reasons.NO_EMBEDDING: 60}
    with pytest.raises(PolicyError, match="embeddings toy@abcdef"):
        judge(of(*many(60, **(space | {"embedder": "elsewhere@123456"}))), reading)
    hot = ConstantPolicy(Origin("hot", TWO, ANY, features=("temperature",)), np.ones(2) / 2)
    with pytest.raises(PolicyError, match="reads the features temperature"):
        judge(of(*many(60)), hot)
    failed = many(4, outcome=Result(error="RuntimeError"))
    some = judge(of(*many(60), *failed, *many(50, features={"temperature": 1.0})), hot)
    assert some.excluded == {reasons.NO_FEATURE: 64}
    assert [each.failed for each in some.arms] == [0, 0]


def toy_table() -> policies.RewardTable:
    rng = np.random.default_rng(0)
    made = table(rng.normal(size=(30, 3)).astype(np.float32), rng.random((30, 2)), [*TWO])
    return replace(made, reward_name="saved-passes@1", embedder="toy@abcdef")


def test_embeddings_of_two_widths_are_refused() -> None:
    short, long = (Vector.of(np.zeros(d, np.float32)) for d in (2, 3))
    with pytest.raises(PolicyError, match="widths 2, 3"):
        judge(of(*many(5, embedding=short), *many(5, embedding=long)))


@pytest.mark.parametrize("count", [0, 3])
def test_a_log_without_a_choice_is_refused(count: int) -> None:
    with pytest.raises(PolicyError, match=rf"in any of the {count} lines.*--explore"):
        judge(of(*many(count, choice="forced", probabilities={}, propensity=1.0)))
    with pytest.raises(PolicyError, match="no line of log can be used: 2 the arm failed"):
        judge(of(*many(2, outcome=Result(error="RuntimeError"))))
    with pytest.raises(DraftpickError, match="unknown reward of a log 'paper'"):
        judge(of(*many(3)), reward="paper")


@pytest.mark.parametrize(
    ("reward", "value"),
    [("tokens_per_s", 18.0), ("log_tokens_per_s", np.log(18.0)), ("saved-passes", 0.5),
     ("acceptance", 4 / 6)],
)  # fmt: skip
def test_rewards_of_a_logged_answer(reward: str, value: float) -> None:
    lines = [decision(str(number)) for number in range(3)]
    assert judge(of(*lines), reward=reward).logged.value == pytest.approx(value)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:

    from router.routing import loading

    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    monkeypatch.setattr(policies, "load", lambda *_: constant(0.2, 0.3, 0.5))


@pytest.mark.usefixtures("no_models")
def test_generate_then_evaluate(tmp_path: Path, draftpick: Draftpick) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": n, "turns": ["one", "and two"]} for n in range(30)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    log = tmp_path / "log"
    draftpick("generate", "--prompts", prompts, "--dynamic", "--seed", 1, "--json", "--log", log)
    found = read_log(log).decisions
    named = [(each.id, each.group) for each in found[:3]]
    assert named == [("0/0", "0"), ("0/1", "0"), ("1/0", "1")]
    words = ["evaluate", "--logs", log, "--policy", "p", "--reward", "saved-passes"]
    told = draftpick(*words, "--json").json
    assert told["used"] == 60 and told["policy"] == "mixed"
    value = told["comparisons"]["dynamic"]["values"]["snips"]
    assert value["value"] == pytest.approx(told["logged"]["value"])
    assert told["comparisons"]["dynamic"]["values"]["dm"]["low"] is None
    said = draftpick(*words)
    assert "Policy mixed (greedy)" in said.out and "switch-dr" in said.out
    assert "60 of 60 decisions count" in said.err
    assert "Who chose: tokens_per_s" in draftpick("evaluate", "--logs", log).out


def test_a_full_table_gives_the_exact_value(
    monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    from collect import table as collected
    from collect.store.collection import Collection
    from collect.table_options import TableOptions

    known = toy_table()
    asked: list[object] = []

    def stored(folder: Any, options: TableOptions) -> policies.RewardTable:
        asked.append((options.reward, options.alpha, options.features))
        return known

    monkeypatch.setattr(Collection, "open", lambda folder: folder)
    monkeypatch.setattr(collected, "reward_table", stored)
    fitted = policies.fit("regression", known).policy
    monkeypatch.setattr(policies, "load", lambda *_: fitted)
    words = ["evaluate", "--rewards", "r", "--policy", "p"]
    told = draftpick(*words, "--json").json
    best = fitted.distribution(known.embeddings).argmax(axis=1)
    exact = known.rewards[np.arange(30), best].mean()
    assert told["values"]["greedy"]["mean"] == pytest.approx(exact)
    assert asked == [("saved-passes", 0.5, ())], "what it was trained on, and what it reads"
    said = draftpick(*words)
    assert f"{exact:.4f}" in said.out and "these very queries" in said.err
    assert "optimistic" not in said.out
    paper = replace(fitted.origin, reward_name="paper@2 alpha=0.7")
    monkeypatch.setattr(policies, "load", lambda *_: ConstantPolicy(paper, np.ones(2) / 2))
    for more in ([], ["--alpha", "0.2"], ["--reward", "paper"]):
        draftpick(*words, *more)
    assert [alpha for _, alpha, _ in asked[2:]] == [0.7, 0.2, 0.5]
    monkeypatch.setattr(policies, "load", lambda *_: fitted)
    drawn = replace(known, drawn=known.rewards[None])
    monkeypatch.setattr(collected, "reward_table", lambda *_: drawn)
    said = draftpick(*words)
    assert "oracle (optimistic)" in said.out
    assert "drawn at a temperature above 0, that it is judged by" in said.err
    other = replace(fitted.origin, embedder="target:other@123456")
    monkeypatch.setattr(policies, "load", lambda *_: ConstantPolicy(other, np.ones(2) / 2))
    assert "embeddings target:other@123456" in draftpick(*words, code=2).err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --logs FOLDER or --rewards DIR"),
        (["--logs", "a", "--rewards", "b"], "either --logs FOLDER or --rewards DIR"),
        (["--rewards", "b"], "needs --policy"),
    ],
)
def test_a_users_mistake_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    draftpick: Draftpick,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert words in draftpick("evaluate", *arguments, code=2).error


@pytest.mark.usefixtures("no_models")
def test_exploring_gives_every_arm_a_chance(tmp_path: Path, draftpick: Draftpick) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(['"ab"'] * 300))
    log = tmp_path / "log"
    words = ["generate", "--prompts", prompts, "--seed", 1, "--json", "--log", log]
    draftpick(*words, "--explore", 0.3)
    found = read_log(log).decisions
    chances = dict(zip(ARMS, (0.1, 0.1, 0.8), strict=True))
    assert all(each.probabilities == pytest.approx(chances) for each in found)
    assert {each.choice for each in found} == {"drawn"}
    taken = np.array([sum(each.arm == arm for each in found) for arm in ARMS])
    assert np.abs(taken - 300 * np.array([0.1, 0.1, 0.8])).max() < 3 * np.sqrt(300 * 0.8 * 0.2)
    assert found[0].policy == constant(0.2, 0.3, 0.5).fingerprint + "+0.3"
    prompts.write_text('"ab"')
    draftpick(*words, "--explore", 0.3, "--dynamic")
    drawn = read_log(log).decisions[-1].probabilities
    assert drawn == pytest.approx(dict(zip(ARMS, (0.24, 0.31, 0.45), strict=True)))
    judged = judge(read_log(log), reward="saved-passes")
    assert all(each.always is not None for each in judged.arms)


def test_exploring_wrongly() -> None:
    with pytest.raises(DraftpickError, match="no policy to explore"):
        Router(FakeEngine(), None).exploring(0.1)
    with pytest.raises(PolicyError, match=r"must be in \(0, 1\]"):
        Router(FakeEngine(), constant(0.2, 0.3, 0.5)).exploring(0)


def test_tables_fit_eighty_columns(log: Path) -> None:
    found = judge(read_log(log), constant(0.2, 0.3, 0.5))
    assert "…" not in at_eighty(for_terminal(judgement_tables(found), 80))
