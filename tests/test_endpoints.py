"""Two servers as arms, from collecting to answers: each is the faster one on some queries."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Draftpick
from stored_tables import table_of

from collect.endpoints.executor import Endpoints, Turns
from collect.features import RequestContext
from collect.queries import Query
from collect.store.tables import read_table
from collect.sweeps.batch import SweepOptions
from collect.sweeps.run import sweep
from decoders.arms import load_arms, recipe
from decoders.common.errors import ArmDown, DraftpickError
from decoders.endpoints.engine import EndpointEngine
from decoders.testing.fake_server import Clock, FakeEndpoint, listening
from policies.fixed import ConstantPolicy
from policies.learners.exploring import ExploringPolicy
from policies.records import ANY, Origin
from router.logs.reader import read_log
from router.records import RouteDecision
from router.routing.fallback import redirected
from router.routing.router import Router

Servers = tuple[FakeEndpoint, FakeEndpoint]
FAST_S, SLOW_S = 0.001, 0.015
CODE = [f"write python code number {n} that sorts rows" for n in range(9)]
TALES = [f"tell the tale of {n} ships upon a stormy sea" for n in range(9)]


@pytest.fixture
def servers() -> Iterator[Servers]:
    """`copier` is fast on code, `drafter` on the rest."""
    copier = FakeEndpoint(lambda prompt: FAST_S if "code" in prompt else SLOW_S)
    drafter = FakeEndpoint(lambda prompt: SLOW_S if "code" in prompt else FAST_S)
    with listening(copier, drafter):
        yield copier, drafter


@pytest.fixture
def place(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with queries and arms, which is the working one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    queries = [("code", text) for text in CODE[1:]] + [("tale", text) for text in TALES[1:]]
    lines = [{"id": text, "task": task, "turns": [text]} for task, text in queries]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    arms = {
        name: {
            "kind": "endpoint", "url": server.url, "model": "m", "same_answers": True,
            "prompt_price": 0.0, "completion_price": price,
        }
        for name, server, price in zip(("copier", "drafter"), servers, (1.0, 4.0), strict=True)
    }  # fmt: skip
    (tmp_path / "arms.yaml").write_text(json.dumps({"arms": arms}))
    return tmp_path


def engine_of(place: Path, **named: Any) -> EndpointEngine:
    return EndpointEngine(load_arms(place / "arms.yaml"), **named)


def collect(engine: EndpointEngine, out: Path, *texts: str, **named: Any) -> Any:
    """Collect the texts' answers. named: of the executor."""
    queries = [Query(text, "tale", (text,)) for text in texts]
    options = Endpoints.adapted(SweepOptions(max_new_tokens=32, batch_size=3))
    return sweep(engine, Endpoints(engine, **named), queries, out, options)


def test_collect_train_and_generate_route_by_the_query(place: Path, draftpick: Draftpick) -> None:
    arms = ("--config", "arms.yaml")
    told = draftpick("collect", "--queries", "queries.jsonl", *arms, "--out", "rewards").out
    assert "16 queries collected" in told and "train --rewards rewards" in told
    train = ("train", "--rewards", "rewards", "--reward", "measured", "--policy", "knn")
    draftpick(*train, "--no-guard", "--set", "k=3", "--out", "policy")
    for text, arm in ((CODE[0], "copier"), (TALES[0], "drafter")):
        answer = draftpick("generate", text, *arms, "--policy", "policy", "--json").json
        assert (answer["arm"], answer["text"]) == (arm, text.upper())
        assert answer["prompt_tokens"] == len(text.split()) and answer["cost"] > 0
    shown = draftpick("generate", CODE[0], *arms, "--policy", "policy")
    assert shown.out.strip() == CODE[0].upper() and "[arm copier ·" in shown.err


def test_without_a_policy_the_first_endpoint_answers(
    place: Path, servers: Servers, draftpick: Draftpick
) -> None:
    """And the next one where it is down."""
    words = ["generate", TALES[0], "--config", "arms.yaml", "--json"]
    shown = draftpick(*words)
    assert shown.json["arm"] == "copier"
    assert "no --policy: every query goes to copier" in shown.err and "collect" in shown.err
    servers[0].status = 503
    assert draftpick(*words).json["arm"] == "drafter"
    alone = json.loads((place / "arms.yaml").read_text())
    del alone["arms"]["copier"]
    (place / "arms.yaml").write_text(json.dumps(alone))
    assert "policy" not in draftpick(*words).err


def test_speeds_are_not_compared_where_tokens_were_not_counted(
    place: Path, servers: Servers, draftpick: Draftpick
) -> None:
    servers[1].counts = False
    words = ("--queries", "queries.jsonl", "--config", "arms.yaml", "--out", "rewards")
    told = draftpick("collect", *words).out
    assert "arm drafter did not count the tokens of 16 answers" in told and "arm copier" not in told
    found = table_of(place / "rewards", "measured")
    assert np.isnan(found.rewards[:, found.arms.index("drafter")]).all()
    assert np.isfinite(found.rewards[:, found.arms.index("copier")]).all()


def test_a_dead_endpoint_is_skipped_told_of_and_healed(place: Path, servers: Servers) -> None:
    clock = Clock()
    router = Router(engine_of(place, clock=clock), prefers("copier", "drafter"))
    copier, drafter = servers
    copier.status = 503
    first = router.generate(CODE[0])
    assert (first.arm, first.skipped) == ("drafter", {"copier": "HTTP 503 (told to say 503)"})
    assert first.to_json()["skipped"] == first.skipped
    asked = len(copier.asked)
    again = router.generate(CODE[0])
    assert (again.arm, again.skipped, len(copier.asked)) == ("drafter", first.skipped, asked)
    copier.status, clock.now = 200, 1.5
    healed = router.generate(CODE[0])
    assert (healed.arm, healed.skipped) == ("copier", None)
    with pytest.raises(DraftpickError, match="unknown arm"):
        router.generate(CODE[0], arm="none")
    copier.status = drafter.status = 503
    with pytest.raises(ArmDown, match=r"'copier' does not answer"):
        router.generate(CODE[0], arm="copier")  # who names an arm gets that one or nothing
    with pytest.raises(ArmDown, match=r"copier: HTTP 503 .*drafter: HTTP 503|drafter.*copier"):
        router.generate(CODE[0])


def test_chances_while_an_arm_is_down_are_those_of_the_draw() -> None:
    policy = prefers("a", "b", "c")
    down = {"a": ArmDown("a", "dead", 1.0)}
    context, scores = RequestContext([1], 1), {"a": 3.0, "b": 2.0, "c": 1.0}
    drawn = {arm: RouteDecision(arm, context, 0.5, scores, drawn=True, x=np.zeros(1))
             for arm in "abc"}  # fmt: skip
    made = {arm: redirected(each, policy, down) for arm, each in drawn.items()}
    assert {arm: each.arm for arm, each in made.items()} == {"a": "b", "b": "b", "c": "c"}
    assert all(each.probabilities == pytest.approx([0.0, 0.8, 0.2]) for each in made.values())
    assert made["a"].propensity == made["b"].propensity == pytest.approx(0.8)
    exploring = ExploringPolicy(prefers(*"abcd"), 0.2)  # rounded, its chances sum to more
    alone = redirected(drawn["a"], exploring, dict.fromkeys("bcd", down["a"]))
    assert alone.propensity == 1.0


def test_only_lossless_arms_take_a_place_where_losses_are_bounded() -> None:
    bounded: Any = prefers("a", "b", "c")
    bounded.lossless = ["a", "c"]
    dead = ArmDown("a", "dead", 1.0)
    context, scores = RequestContext([1], 1), {"a": 3.0, "b": 2.0, "c": 1.0}
    chosen = RouteDecision("a", context, 1.0, scores, x=np.zeros(1))
    for policy in (bounded, ExploringPolicy(bounded, 0.2)):
        assert redirected(chosen, policy, {"a": dead}).arm == "c"
        own = policy.distribution(chosen.x)[0]
        drawn = redirected(replace(chosen, drawn=True), policy, {"a": dead})
        assert drawn.probabilities == pytest.approx([0.0, own[1], own[0] + own[2]])
        none_left = {"a": dead, "c": dead}
        with pytest.raises(ArmDown, match="'a, c' does not answer"):
            redirected(chosen, policy, none_left)
        allowed = replace(chosen, arm="b", drawn=True)
        assert redirected(allowed, policy, none_left) is allowed  # the policy's own choice


def test_logged_chances_of_a_drawn_answer_fit_together(place: Path, servers: Servers) -> None:
    servers[0].stop()
    router = Router(engine_of(place), prefers("copier", "drafter"), log=place / "log")
    with pytest.raises(ArmDown):
        router.generate(CODE[0], arm="copier")  # from now on it is known to be dead
    for seed in range(4):
        assert router.generate(CODE[0], dynamic=True, seed=seed).arm == "drafter"
    _, *lines = read_log(place / "log").decisions
    assert [line.propensity for line in lines] == [1.0] * 4
    assert lines[0].probabilities == {"copier": 0.0, "drafter": 1.0}


def test_a_collection_stops_where_an_endpoint_stays_dead_and_goes_on(
    place: Path, servers: Servers
) -> None:
    servers[1].dies_after = 5
    waits, patient = list[float](), {"patience_s": 2.0}
    with pytest.raises(DraftpickError, match="start it and run the same command again"):
        collect(engine_of(place), place / "out", *CODE, **patient, sleep=waits.append)
    assert waits and sum(waits) <= 2.0
    stored = read_table(place / "out", "queries", ("query_id",)).num_rows
    assert 0 < stored < len(CODE)
    servers[1].dies_after = None
    report = collect(engine_of(place), place / "out", *CODE)
    assert (report.already, report.collected, report.errors) == (stored, 9 - stored, 0)


def kept_waiting(
    place: Path, server: FakeEndpoint, heals_after: int | None = None
) -> tuple[list[float], Any]:
    """How long `drafter` was waited for each time; it answers again after so many waits."""
    clock, waits = Clock(), list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now += seconds
        if len(waits) == heals_after:
            server.status = 200

    return waits, lambda: collect(engine_of(place, clock=clock), place / "o", CODE[0], sleep=sleep)


def test_a_dead_endpoint_is_waited_for_a_whole_minute(place: Path, servers: Servers) -> None:
    servers[1].status = 503
    waits, asked = kept_waiting(place, servers[1])
    with pytest.raises(DraftpickError, match="not even after 60 s"):
        asked()
    assert waits == [1, 2, 4, 8, 16, 29] and len(servers[1].asked) == 7


def test_a_long_pause_that_an_endpoint_asks_for_is_cut_to_the_minute(
    place: Path, servers: Servers
) -> None:
    servers[1].status, servers[1].headers = 429, {"Retry-After": "3600"}
    waits, asked = kept_waiting(place, servers[1], heals_after=1)
    assert (asked().errors, waits) == (0, [60])


def test_a_collection_stops_where_an_endpoint_refuses_whoever_asks(
    place: Path, servers: Servers
) -> None:
    servers[1].status = 401
    with pytest.raises(DraftpickError, match=r"HTTP 401.*check the arm's key"):
        collect(engine_of(place), place / "out", CODE[0])


def test_a_refused_query_is_an_error_row_of_that_arm(place: Path, servers: Servers) -> None:
    servers[1].status = 400
    collect(engine_of(place), place / "out", CODE[0])
    good, bad = read_table(place / "out", "outcomes").to_pylist()
    assert good["error"] is None and good["new_tokens"] == 8 and good["prompt_tokens"] == 8
    assert "HTTP 400" in bad["error"] and bad["new_tokens"] is None


def test_money_counts_as_far_as_alpha_says(place: Path) -> None:
    collect(engine_of(place), place / "out", TALES[0])
    copier, drafter = table_of(place / "out", "speed-price", alpha=0.0).rewards[0]
    assert copier - drafter == pytest.approx(np.log(4.0))  # four times as cheap
    copier, drafter = table_of(place / "out", "speed-price", alpha=1.0).rewards[0]
    assert drafter > copier
    with pytest.raises(DraftpickError, match="take the reward 'measured' or 'speed-price'"):
        table_of(place / "out", "modelled")


def test_prices_are_asked_for_where_they_are_needed(place: Path) -> None:
    arms = json.loads((place / "arms.yaml").read_text())["arms"]
    bodies = {name: {**body, "completion_price": None} for name, body in arms.items()}
    engine = EndpointEngine({name: recipe(name=name, **body) for name, body in bodies.items()})
    collect(engine, place / "out", TALES[0])
    with pytest.raises(DraftpickError, match=r"copier, drafter of .* has no price"):
        table_of(place / "out", "speed-price")


def test_endpoints_are_collected_at_loads_and_temperatures(
    place: Path,
    servers: Servers,
    draftpick: Draftpick,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each query once at each, and no answer that counts is timed under less load."""
    decode, under_way, most = EndpointEngine.decode, set[int](), [0]

    def watched(self: EndpointEngine, *given: Any, **named: Any) -> Any:
        under_way.add(threading.get_ident())
        most[0] = max(most[0], len(under_way))
        try:
            return decode(self, *given, **named)
        finally:
            under_way.discard(threading.get_ident())

    monkeypatch.setattr(EndpointEngine, "decode", watched)
    for server in servers:
        server.step_s = lambda prompt: 0.001
        server.more = {"timings": {"draft_n": 4, "draft_n_accepted": 3}}
    arms = ("--config", "arms.yaml", "--out", "rewards")
    places = ("--temperatures", "0,0.7", "--at-once", "1,3", "--batch-size", "8")
    draftpick("collect", "--queries", "queries.jsonl", *arms, *places)
    assert most == [3]
    asked = [(body["temperature"], body.get("seed")) for body in servers[0].asked]
    greedy = [at for at, seed in asked if at == 0 and seed is None]
    drawn = [seed for at, seed in asked if at == 0.7]
    # 16 queries alone and 16 among others, in two groups at whose ends some are asked again
    assert 32 <= len(greedy) < 48 and 32 <= len(drawn) < 48
    assert None not in drawn and len(set(drawn)) == 16
    for at_once in (1, 3):
        for temperature in (0.0, 0.7):
            only = {"temperatures": [temperature], "at_once": [at_once]}
            found = table_of(place / "rewards", "measured", **only)
            assert len(found.query_ids) == 16 and np.isfinite(found.rewards).all()
    accepted = table_of(place / "rewards", "acceptance", temperatures=[0.0], at_once=[3])
    assert (accepted.rewards == 0.75).all()
    both = table_of(place / "rewards", "measured", features=["requests-running", "temperature"])
    assert len(both.query_ids) == 64 and len(np.unique(both.features, axis=0)) == 4


def test_clients_without_a_query_ask_again_until_the_last_answer_has_come() -> None:
    turns = Turns([2, 0, 1])
    assert [turns.next() for _ in range(5)] == [
        (2, True), (0, True), (1, True), (2, False), (0, False),
    ]  # fmt: skip
    for _ in range(3):
        assert turns.next() is not None
        turns.answered()
    assert turns.next() is None
    stopped = Turns([0, 1])
    stopped.stop()
    assert stopped.next() is None


def test_a_loop_is_found_in_what_endpoints_write(place: Path, servers: Servers) -> None:
    for server in servers:
        server.words = lambda prompt: [" again"] * 20 if "again" in prompt else ["no", " loop"]
        server.step_s = lambda prompt: 0.0
    collect(engine_of(place), place / "out", "again", "once")
    kept = table_of(place / "out", "measured", repetitive="without")
    assert kept.query_ids == ["once"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--target", "models/mine"), "leave --target out"),
        (("--engine", "ray"), "one after the other from this process"),
    ],
)
def test_what_endpoints_cannot_do_is_refused_at_once(
    place: Path, draftpick: Draftpick, more: tuple[str, ...], words: str
) -> None:
    arms = ("--config", "arms.yaml", "--out", "rewards")
    assert words in draftpick("collect", "--queries", "queries.jsonl", *arms, *more, code=2).err
    assert not (place / "rewards").exists()


def test_the_benchmark_needs_a_target(place: Path, draftpick: Draftpick) -> None:
    words = ["specbench", "--config", "arms.yaml", "--no-routed", "--limit", "1", "--out", "bench"]
    told = draftpick(*words, code=2).err
    assert "plain decoding by a target, which endpoints lack" in told
    assert not (place / "bench").exists()


def prefers(*arms: str) -> ConstantPolicy:
    """The first of the arms; drawn, each has its chance."""
    chances = {2: [0.5, 0.5], 3: [0.5, 0.3, 0.2], 4: [0.4, 0.2, 0.2, 0.2]}[len(arms)]
    return ConstantPolicy(Origin("prefers", arms, ANY), np.array(chances))
