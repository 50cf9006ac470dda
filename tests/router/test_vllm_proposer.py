"""The proposer against a stand-in for vLLM: the same answers, and decisions real and logged."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import policy_tables
import pytest
import torch
from effort import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from vllm_stand_in import EOS, Asked, Batch, answers, plain, vllm_config

from decoders.common.errors import DraftpickError
from policies import fit_binned, fit_regression
from policies.online import fit_thompson
from policies.records import ANY, RewardTable
from router.engines.vllm import Proposer
from router.engines.vllm.choosing import KNOWN
from router.engines.vllm.engine import sampling_fault
from router.engines.vllm.rows import ArmDrafter
from router.logs.judge import judge
from router.logs.reader import read_log

COPY = {"kind": "max_gram", "shortest": 2, "longest": 6, "length": {"k": 5}}
ARMS = {"copy": COPY, "short": {**COPY, "length": {"k": 2}, "by_cost": True}}
ALWAYS = {"arms": ARMS, "policy": "copy", "log": "log"}


@pytest.fixture
def made() -> Iterator[list[Proposer]]:
    """Proposers, closed at the end."""
    proposers: list[Proposer] = []
    yield proposers
    for proposer in proposers:
        proposer.close()


def written(folder: Path, options: Any) -> str:
    place = folder / "options.json"
    place.write_text(options if isinstance(options, str) else json.dumps(options))
    return str(place)


def proposer(folder: Path, options: Any, made: list[Proposer] | None = None) -> Proposer:
    one = Proposer(vllm_config(written(folder, options)))
    if made is not None:
        made.append(one)
    return one


def asked(many: int, seed: int = 0) -> list[Asked]:
    chance = random.Random(seed)
    prompts = [[chance.randrange(3, 9) for _ in range(chance.randrange(1, 30))] for _ in range(4)]
    return [
        Asked(str(at), prompts[at % 4] if at % 3 else [at % 60 + 3, *prompts[0]],
              chance.randrange(1, 40))
        for at in range(many)
    ]  # fmt: skip


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), explore=st.sampled_from([0.0, 0.6]), every=st.integers(0, 9))
def test_answers_are_plain_decodings_and_the_log_says_what_was_accepted(
    tmp_path_factory: pytest.TempPathFactory, seed: int, explore: float, every: int
) -> None:
    folder = tmp_path_factory.mktemp("vllm")
    one = proposer(folder, {**ALWAYS, "explore": explore, "decide_every": every, "seed": 1})
    requests = asked(9, seed)
    preempt = 0.1 * (seed % 2)
    answers(Batch(requests, 4, random.Random(seed), preempt), one)
    one.close()
    assert one.failures == 0
    for each in requests:
        whole = plain(each.prompt, each.most)
        assert each.answer[: len(whole)] == whole
    rows = read_log(folder / "log").decisions
    outcomes = [each.outcome for each in rows]
    drafted = sum(each.drafted or 0 for each in outcomes)
    # which of two equal requests was preempted, and so which arm's draft, cannot be seen
    assert drafted == sum(each.drafted for each in requests) or (explore and preempt)
    assert sum(each.accepted or 0 for each in outcomes) == sum(each.accepted for each in requests)
    groups = Counter(each.group for each in rows)
    assert len(groups) == len(requests)
    if not every and not preempt:
        assert set(groups.values()) == {1}
    if not explore:
        assert {(each.arm, each.propensity, each.choice) for each in rows} == {
            ("copy", 1.0, "best")
        }


def test_the_arm_that_was_drawn_drafts(tmp_path: Path, made: list[Proposer]) -> None:
    """Plain rows get no draft, `copy` up to 5 tokens and `short` up to 2, by their propensities."""
    one = proposer(tmp_path, {**ALWAYS, "explore": 0.6, "seed": 5}, made)
    requests = asked(150)
    answers(Batch(requests, 8, random.Random(3), preempt=0.02), one)
    one.close()
    rows = read_log(tmp_path / "log").decisions
    taken = Counter(each.arm for each in rows)
    assert taken["copy"] > taken["short"] > 15 and taken["autoregressive"] > 15
    for each in rows:
        assert each.probabilities == pytest.approx(
            {"autoregressive": 0.2, "copy": 0.6, "short": 0.2}
        )
        drafted, rounds = each.outcome.drafted, each.outcome.rounds
        longest = {"autoregressive": 0, "short": 2, "copy": 5}[each.arm]
        assert drafted <= longest * rounds
    by_arm = {arm: sum(each.outcome.drafted or 0 for each in rows if each.arm == arm)
              for arm in taken}  # fmt: skip
    assert by_arm["copy"] > by_arm["short"] > 0 == by_arm["autoregressive"]
    judged = judge(read_log(tmp_path / "log"), reward="saved-passes")
    assert {each.arm for each in judged.arms} == set(taken) and not judged.excluded


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("every", [0, 4])
def test_answers_of_others_are_drafted_from_only_where_they_are_shared(
    tmp_path: Path, made: list[Proposer], share: bool, every: int
) -> None:
    """The second answer is the first one's text, which nothing in its own prompt foretells. Each is
    kept once, though its arm was chosen anew."""
    options = {"arms": {"suffix": {"kind": "suffix", "by_cost": False, "length": {"k": 5}}},
               "policy": "suffix", "share_answers": share, "decide_every": every}  # fmt: skip
    one = proposer(tmp_path, options, made)
    story = [3 + at for at in range(40)]

    def model(ids: Any) -> int:
        return story[len(ids) - 2] if len(ids) < 42 else EOS

    asked = [Asked("a", [50, 51], 60), Asked("b", [50, 51], 60)]
    answers(Batch(asked, 1, random.Random(0), 0, model=model), one)
    first, second = asked
    assert first.answer == second.answer[: len(first.answer)] and one.failures == 0
    assert first.accepted == 0 and (second.accepted > 25) == share
    one._end_all()
    kept = one._drafters["suffix"]._earlier
    assert kept is None or (kept.added, kept.tokens) == (2, sum(len(each.ids) for each in asked))


def test_an_answer_that_goes_on_after_a_pause_is_kept_once(
    tmp_path: Path, made: list[Proposer]
) -> None:
    options = {"arms": {"suffix": {"kind": "suffix"}}, "policy": "suffix", "share_answers": True}
    one = proposer(tmp_path, options, made)
    ids = np.arange(130, dtype=np.int32)[None]
    for length in (101, 102, 103):
        one.propose([[length - 1]], np.array([length]), ids)
        if length > 101:
            one._end_all()
    kept = one._drafters["suffix"]._earlier
    assert one.failures == 0 and (kept.added, kept.tokens) == (2, 64 + 2 + 64 + 1)


def test_rules_read_the_length_and_the_load(tmp_path: Path, made: list[Proposer]) -> None:
    rules = [
        {"arm": "short", "context_to": 10, "running_to": 2},
        {"arm": "copy", "context_to": 20},
        {"arm": "autoregressive"},
    ]
    one = proposer(tmp_path, {"arms": ARMS, "policy": rules}, made)
    choose = one._chooser.choose
    rng = np.random.default_rng(0)
    ids = np.arange(30)
    found = [
        choose(ids[:length], running, rng).arm
        for length, running in [(10, 2), (10, 3), (11, 1), (20, 9), (21, 1)]
    ]
    assert found == ["short", "copy", "copy", "copy", "autoregressive"]


def test_an_arm_is_chosen_again_as_the_answer_grows(tmp_path: Path, made: list[Proposer]) -> None:
    rules = [{"arm": "copy", "context_to": 12}, {"arm": "autoregressive"}]
    options = {"arms": ARMS, "policy": rules, "decide_every": 4, "log": "log"}
    one = proposer(tmp_path, options, made)
    answers(Batch([Asked("a", [5] * 10, 20)], 1, random.Random(0), 0), one)
    one.close()
    rows = read_log(tmp_path / "log").decisions
    arms = [each.arm for each in rows]
    assert arms[0] == "copy" and arms[-1] == "autoregressive"
    assert all(a.request.prompt_tokens < b.request.prompt_tokens for a, b in pairwise(rows))


# -- policies that were trained --------------------------------------------------------------------


def table(features: tuple[str, ...]) -> RewardTable:
    """`copy` is best for prompts above e^3 tokens, plain decoding below."""
    chance = np.random.default_rng(0)
    inputs = chance.uniform(0, 6, (120, len(features))).astype(np.float32)
    long = inputs[:, 0] > 3
    rewards = np.stack([np.ones(120), np.where(long, 1.5, 0.5)], axis=1)
    noisy = rewards + chance.normal(0, 0.01, rewards.shape)
    plain = policy_tables.table(np.zeros((120, 1), np.float32), noisy, ["autoregressive", "copy"])
    return replace(
        policy_tables.with_features(plain, **dict(zip(features, inputs.T, strict=True))),
        reward_name="modelled@1", embedder="hashing@0123456789ab", arms_fingerprint="",
    )  # fmt: skip


def test_a_trained_policy_chooses_by_what_it_knows(tmp_path: Path, made: list[Proposer]) -> None:
    policy = fit_binned(table(KNOWN[:1]), feature=KNOWN[0]).policy
    assert policy.embedder == ANY
    policy.save(tmp_path / "policy")
    one = proposer(tmp_path, {"arms": ARMS, "policy": "policy"}, made)
    rng = np.random.default_rng(0)
    assert one._chooser.choose(np.zeros(5), 1, rng).arm == "autoregressive"
    assert one._chooser.choose(np.zeros(100), 1, rng).arm == "copy"


def test_a_policy_learns_while_it_serves(
    tmp_path: Path, made: list[Proposer], capfd: pytest.CaptureFixture[str]
) -> None:
    whole = table(KNOWN)
    bare = replace(whole, embedder=ANY, embeddings=np.zeros((120, 0), dtype=np.float32))
    policy = fit_thompson(bare).policy
    policy.save(tmp_path / "policy")
    options = {"arms": ARMS, "policy": "policy", "learn": "learned", "log": "log"}
    one = proposer(tmp_path, options, made)
    answers(Batch(asked(60), 8, random.Random(1)), one)
    one.close()
    assert one.failures == 0
    capfd.readouterr()
    again = proposer(tmp_path, options, made)
    assert again._chooser.policy.status.requests > 30  # it goes on from where it was
    told = capfd.readouterr().err
    assert f"{tmp_path / 'learned'} goes on to learn" in told and "policy is not read" in told
    rows = read_log(tmp_path / "log").decisions
    assert {each.choice for each in rows} == {"drawn"} and len({each.policy for each in rows}) == 1
    with pytest.raises(DraftpickError, match="explores on its own; leave `explore` out"):
        proposer(tmp_path, {**options, "explore": 0.1})


# -- what goes wrong -------------------------------------------------------------------------------


class Broken(ArmDrafter):
    """fails: the method that does."""

    def __init__(self, fails: str) -> None:
        def fail(*_: Any) -> Any:
            raise RuntimeError("no luck")

        setattr(self, fails, fail)


@pytest.mark.parametrize("fails", ["draft", "learn", "forget"])
def test_a_drafter_that_fails_costs_its_drafts_and_nothing_else(
    tmp_path: Path, made: list[Proposer], capfd: pytest.CaptureFixture[str], fails: str
) -> None:
    """A line for each request: the arm's own say that it failed, the others what they gave."""
    one = proposer(tmp_path, {**ALWAYS, "explore": 0.6, "seed": 3}, made)
    one._drafters["copy"] = Broken(fails)
    requests = asked(40)
    answers(Batch(requests, 6, random.Random(0), 0), one)
    one.close()
    for each in requests:
        whole = plain(each.prompt, each.most)
        assert each.answer[: len(whole)] == whole
    told = capfd.readouterr().err
    assert told.count("warning") == 1 and "(no luck)" in told
    assert 0 < one.failures <= 40
    rows = read_log(tmp_path / "log").decisions
    assert len(rows) == len({each.group for each in rows}) == 40
    short = [each.outcome for each in rows if each.arm == "short"]
    assert sum(each.drafted or 0 for each in short) == sum(each.drafted for each in requests) > 10
    for each in rows:
        failed = each.arm == "copy" and fails != "forget" and each.outcome.new_tokens is None
        assert each.outcome.failed == failed and (each.outcome.error == "RuntimeError") == failed
    assert any(each.outcome.failed for each in rows) == (fails != "forget")


@pytest.mark.parametrize(
    "call",
    [
        ([[3]], [1], None),
        ([[3]], np.array([99]), np.zeros((1, 0), dtype=np.int32)),
        ([[3], [4]], np.array([1]), np.zeros((1, 8), dtype=np.int32)),
        ([["x"]], np.array([1]), np.zeros((1, 8), dtype=np.int32)),
    ],
)
def test_no_call_of_a_changed_engine_raises(
    tmp_path: Path, made: list[Proposer], call: tuple[Any, Any, Any]
) -> None:
    one = proposer(tmp_path, ALWAYS, made)
    assert one.propose(*call, added_by_a_later_version=1) == [[] for _ in call[0]]


def test_drafts_leave_room_for_the_answers_next_token(tmp_path: Path, made: list[Proposer]) -> None:
    one = proposer(tmp_path, ALWAYS, made)
    ids = np.full((1, 4096), 7, dtype=np.int32)
    for length, room in [(4000, 5), (4092, 3), (4094, 1), (4095, 0), (4096, 0)]:
        assert len(one.propose([[7]], np.array([length]), ids)[0]) == room
    bounded = {"arms": {"copy": {**COPY, "context_to": 4001}}, "policy": "copy"}
    one = proposer(tmp_path, bounded, made)
    for length, room in [(3990, 5), (4000, 1), (4001, 0), (4092, 0)]:
        assert len(one.propose([[7]], np.array([length]), ids)[0]) == room


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{", "JSON"),
        ({"arms": ARMS, "polcy": "copy"}, "polcy: there is no such field"),
        ({"arms": {"x": {"kind": "max_gram", "shortest": 0}}}, "arms.x.shortest"),
        ({"arms": ARMS, "policy": "nowhere"}, "neither an arm (there are autoregressive, copy"),
        ({"arms": ARMS, "policy": [{"arm": "copy", "context_to": 9}]}, "last rule must hold"),
        ({"arms": ARMS, "policy": [{"arm": "other"}]}, "names the arm 'other'"),
        ({"arms": {"x": {"kind": "early_exit", "drafter": "exit-2"}}}, "kind 'early_exit'"),
        ({"arms": {"x": {**COPY, "drafter": "bigram"}}}, "leave `drafter` out"),
        ({"arms": {"x": {**COPY, "length": {"kind": "adaptive", "k": 4}}}}, "a draft model may"),
        ({"arms": {"x": {"kind": "suffix", "width": 2}}}, "drafts trees"),
        ({"arms": {"x": {**COPY, "verifier": {"rule": "lenient"}}}}, "lossy"),
        ({"arms": ARMS, "policy": "copy", "learn": "l"}, "--policy thompson"),
        ({"arms": "none.yaml"}, "cannot read the arms file"),
    ],
)
def test_wrong_options_are_refused_before_the_model_loads(
    tmp_path: Path, options: Any, words: str
) -> None:
    with pytest.raises(DraftpickError) as refused:
        proposer(tmp_path, options)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("features", "made", "words"),
    [
        (("log-prompt-length", "temperature"), {}, "temperature, which vLLM does not tell"),
        (KNOWN[:1], {"embedder": "target@123456"}, "embeddings of target@123456"),
        (KNOWN[:1], {"arms_fingerprint": "00000000"}, "fingerprint 00000000"),
    ],
)
def test_a_policy_for_what_a_proposer_cannot_know_or_for_other_arms_is_refused(
    tmp_path: Path, features: tuple[str, ...], made: dict[str, str], words: str
) -> None:
    held = replace(table(features), **{"embedder": ANY} | made)
    fit_regression(held).policy.save(tmp_path / "policy")
    with pytest.raises(DraftpickError, match=words):
        proposer(tmp_path, {"arms": ARMS, "policy": "policy"})


def test_an_engine_without_the_method_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path, ALWAYS)
    with pytest.raises(DraftpickError, match="custom_class"):
        Proposer(vllm_config(place, method="draft_model"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "vLLM is not installed here"),
        ({"vllm": 1}, "0.22.0 is the first that has"),
        ({"vllm": 1, "vllm.v1.spec_decode.custom_class_proposer": 1}, ""),
    ],
)
def test_options_and_engine_are_checked_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, int], words: str
) -> None:
    from router.engines.vllm import __main__ as check

    monkeypatch.setattr(check, "find_spec", found.get)
    place = Path(written(tmp_path, ALWAYS))
    if words:
        with pytest.raises(DraftpickError, match=words):
            check.check(place)
    else:
        assert "autoregressive, copy, short by rules" in check.check(place)
        assert check.check().startswith("without options: autoregressive, copy by rules")
        (tmp_path / "a file").touch()
        for wrong, told in (
            ({"learn": "l"}, "--policy thompson"),
            ({"log": "a file"}, "is a file"),
        ):
            with pytest.raises(DraftpickError, match=told):
                check.check(Path(written(tmp_path, {**ALWAYS, **wrong})))
        neural = {"draft": {"kind": "neural", "drafter": "draft-general"}}
        with pytest.raises(DraftpickError, match="name it after the file"):
            check.check(Path(written(tmp_path, {"arms": neural})))


def test_without_options_copies_that_pay_are_drafted(made: list[Proposer]) -> None:
    made.append(Proposer(vllm_config(None)))
    requests = [Asked("a", [*range(3, 20), *range(3, 20)], 30)]
    answers(Batch(requests, 1, random.Random(0), 0, model=circle), made[0])
    assert made[0].failures == 0 and requests[0].answer[:3] == [3, 4, 5]
    assert requests[0].accepted == requests[0].drafted > 15
    others = asked(6)
    answers(Batch(others, 3, random.Random(0)), made[0])
    for each in others:
        whole = plain(each.prompt, each.most)
        assert each.answer[: len(whole)] == whole


def circle(ids: Any) -> int:
    return (int(ids[-1]) - 2) % 17 + 3


def test_options_come_in_a_file_in_the_command_line_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[Proposer]
) -> None:
    monkeypatch.chdir(tmp_path)
    made.append(Proposer(vllm_config({"log": "here"})))  # the other options are the usual ones
    answers(Batch(asked(3), 3, random.Random(0)), made[-1])
    made[-1].close()
    assert {each.arm for each in read_log(tmp_path / "here").decisions} == {"copy"}
    monkeypatch.setenv("DRAFTPICK_VLLM", written(tmp_path, ALWAYS))
    made.append(Proposer(vllm_config(None)))
    assert list(made[-1]._drafters) == ["autoregressive", "copy", "short"]
    for wrong, words in (
        ({"polcy": "copy"}, "--additional-config: 1 mistake(s): polcy: there is no such field"),
        (3, "a JSON object or the name of its file"),
    ):
        with pytest.raises(DraftpickError) as refused:
            Proposer(vllm_config(wrong))
        assert words in str(refused.value)


@pytest.mark.parametrize(
    "device, spread, told",
    [
        ("cpu", [0.5, 2.0, 2.0], False),
        ("cpu", [2e16, 5e-41, 0.0], True),  # as vLLM 0.32.0 gives it
        ("cuda", [2e16, 5e-41, 0.0], False),  # where it is not asked
        ("cpu", None, False),  # a version without this function
    ],
)
def test_a_vllm_that_draws_wrong_tokens_is_told_of(
    device: str, spread: list[float] | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "vllm.v1.sample.rejection_sampler"
    module = ModuleType(name)
    if spread is not None:
        module.expand_batch_to_tokens = lambda *_: torch.tensor(spread)
    for parent in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    config = SimpleNamespace(device_config=SimpleNamespace(device_type=device))
    fault = sampling_fault(config)
    assert (fault is not None) == told
    assert fault is None or "only greedy answers are right" in fault
    assert sampling_fault(SimpleNamespace()) is None
