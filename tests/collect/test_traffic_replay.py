"""Arms replayed along logged answers do what they do when they decode, without the target."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import WORDS, target_model

from collect.traffic.engine_rules.recipe import engine_rows
from collect.traffic.logged import AbsentTarget, LoggedReplay, before_each, configurations
from collect.traffic.records import KnownText
from collect.traffic.replayed import mean_running, nearest
from decoders import Engine, Request
from decoders.arms import ArmRecipe, recipe
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.costs.measured import Costs
from decoders.models import targets
from decoders.testing.tokenizers import save_llama, word_tokenizer

CPU = torch.device("cpu")
MOST = 40  # tokens of an answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_model(tmp_path_factory.mktemp("model"))


def draft_model(folder: Path) -> Path:
    """Another model of the same words."""
    words = word_tokenizer(["<unk>", "</s>", *WORDS], "<unk>", unk_token="<unk>", eos_token="</s>")
    return save_llama(
        folder, words, 3, vocab_size=128, hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip


def test_a_replay_without_the_target_is_what_decoding_does(folder: Path, tmp_path: Path) -> None:
    """Rounds, drafts and widths, of every kind and length; suffixes after the same answers."""
    arms = configurations(str(draft_model(tmp_path)), (1, 3, 8))
    words = targets.load_tokenizer(folder)
    target = LlamaBackend.load(folder, CPU, torch.float32)
    engine = Engine(target, arms, name="tiny", tokenizer=words, eos_ids=(1,))
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3, 9, 3, 4], [5, 6, 7, 8]]
    texts = [
        KnownText(p, engine.decode("autoregressive", p, Request(MOST)).ids, MOST) for p in prompts
    ]
    absent = AbsentTarget(target.vocab_size, 256, CPU, torch.float32)
    replay = LoggedReplay(absent, words, arms)
    for name in arms:
        from decoders.earlier.answers import EarlierAnswers

        engine.remember(EarlierAnswers() if arms[name].reads_earlier else None)
        for found, text in zip(replay.replay(name, texts, [0, 1, 2]), texts, strict=True):
            live = engine.decode(name, text.prompt, Request(MOST))
            assert live.ids == text.ids and found is not None
            assert (found.rounds, found.drafted, found.accepted, found.widths) == (
                live.rounds, live.drafted, live.accepted, live.widths
            ), name  # fmt: skip
        assert replay.replay(name, texts, [2]) == replay.replay(name, texts, [0, 1, 2])[2:]
    engine.remember(None)


def test_a_limit_that_is_not_near_bounds_no_draft() -> None:
    arms = configurations(None, (4,))
    text = KnownText([1, 2, 3, 1, 2, 3], [1, 2, 3])
    replay = LoggedReplay(AbsentTarget(8), None, arms)
    bounded, free = (
        replay.replay("ngram-4", [replace(text, limit=limit)], [0])[0] for limit in (3, None)
    )
    assert (bounded.drafted, free.drafted) == (1, 4)
    assert bounded.accepted == 2 - 1 and bounded.rounds == 1


def test_an_answer_draws_on_those_that_were_complete() -> None:
    spans = [(0.0, 5.0), (1.0, 2.0), (3.0, 4.0), (6.0, 7.0)]
    texts = [KnownText([1], [1], None, span) for span in spans]
    assert list(before_each(texts)) == [(0, []), (1, []), (2, [1]), (3, [2, 0])]
    assert list(before_each([replace(each, span=None) for each in texts])) == [
        (0, []), (1, [0]), (2, [1]), (3, [2])
    ]  # fmt: skip


times = st.tuples(st.integers(0, 6), st.integers(0, 4)).map(lambda t: (float(t[0]), t[0] + t[1]))


@given(st.lists(times, min_size=1, max_size=12))
@example([(5.0, 10.0), (5.0, 5.0)])
@example([(5.0, 5.0), (3.0, 5.0)])
@examples(100)
def test_answers_that_took_no_time_are_complete_before_others_begin(
    spans: list[tuple[float, float]],
) -> None:
    texts = [KnownText([1], [1], None, span) for span in spans]
    seen, given = list[int](), set[int]()
    for at, complete in before_each(texts):
        assert given.isdisjoint(complete) and set(complete) <= set(seen)
        given |= set(complete)
        begun = spans[at][0]
        before = {n for n, (_, end) in enumerate(spans) if end <= begun and n != at}
        alike = {n for n in before if spans[n] == spans[at]}  # in no order
        assert before - alike <= given <= before
        seen.append(at)
    rules = engine_rows()
    replay = LoggedReplay(AbsentTarget(8), None, rules)
    assert all(replay.replay("vllm-suffix-24", texts, range(len(texts))))


@pytest.mark.parametrize(
    ("arm", "says"),
    [
        (recipe(name="a", kind="suffix", width=2), "drafts trees"),
        (recipe(name="a", kind="recurrent", drafter="recurrent-general"), "needs the target"),
        (recipe(name="a", kind="max_gram", by_cost=True), "give --costs"),
        (
            recipe(
                name="a", kind="max_gram", verifier={"rule": "lossy", "alpha": 0.5, "beta": 2.0}
            ),
            "lossy",
        ),
    ],
)
def test_arms_that_need_more_than_a_text_are_refused(arm: ArmRecipe, says: str) -> None:
    with pytest.raises(DraftpickError, match=says):
        LoggedReplay(AbsentTarget(8), None, {"a": arm})


def test_lengths_by_cost_follow_the_engines_costs() -> None:
    """Where a token more costs a whole pass, none is drafted."""
    arms = {"a": recipe(name="a", kind="max_gram", by_cost=True, length={"k": 4})}
    text = KnownText([1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2, 3])
    drafted = []
    for verify_s in ((1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 3.0, 4.0, 5.0)):
        costs = Costs(verify_s, {})
        (found,) = LoggedReplay(AbsentTarget(8), None, arms, costs).replay("a", [text], [0])
        drafted.append(found.drafted)
    assert drafted[0] > drafted[1] == 0


def running_slowly(spans: list[tuple[float, float]]) -> list[float]:
    made = []
    for start, end in spans:
        if end == start:
            made.append(1.0 + sum(s <= start < e for s, e in spans))
            continue
        shared = sum(max(0.0, min(end, e) - max(start, s)) for s, e in spans)
        made.append(shared / (end - start))
    return made


@given(st.lists(times, min_size=1, max_size=12))
@examples(100)
def test_running_is_the_mean_over_each_answers_time(spans: list[tuple[float, float]]) -> None:
    assert np.allclose(mean_running(spans), running_slowly(spans))


def test_the_nearest_load_is_by_proportion() -> None:
    assert nearest(np.array([1.0, 2.7, 2.9, 40.0]), [1, 8, 32]) == [1, 1, 8, 32]
