"""A draft model in the proposer: the same model as target and drafter drafts what is accepted."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from policy_tables import table
from tiny_models import WORDS, target_model
from vllm_stand_in import Asked, Batch, answers, vllm_config

from collect.embedders import load_embedder
from decoders.backends.batched.slots import BatchSlots, SlotBackend
from decoders.common.errors import DraftpickError
from decoders.models import targets
from policies import fit_regression
from router.engines.vllm import Proposer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_model(tmp_path_factory.mktemp("model"))


def proposer(folder: Path, place: Path, options: dict[str, Any]) -> Proposer:
    (place / "options.json").write_text(json.dumps(options))
    config = vllm_config(str(place / "options.json"))
    config.model_config.tokenizer = str(folder)
    config.model_config.max_model_len = 256
    config.model_config.get_vocab_size = lambda: 128
    return Proposer(config)


def drafting(drafter: Path | str, **length: float | str) -> dict[str, Any]:
    arm = {"kind": "neural", "drafter": str(drafter), "length": {"k": 3, **length}}
    return {"arms": {"draft": arm}, "policy": "draft"}


def model_of(folder: Path) -> Callable[[Sequence[int]], int]:
    """The greedy next token, remembered."""
    backend = targets.load_backend(folder, torch.device("cpu"), torch.bfloat16, context=256)
    following = cache(lambda ids: int(backend.prefill(list(ids)).logits.argmax()))
    return lambda ids: following(tuple(ids))


def test_what_the_target_itself_would_say_is_accepted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(folder)
    chance = random.Random(0)
    asked = [
        Asked(str(at), [chance.randrange(3, 100) for _ in range(chance.randrange(1, 12))], 12)
        for at in range(7)
    ]
    widths = list[int]()
    read = BatchSlots.read

    def counted(self: BatchSlots, wanted: Sequence[object]) -> list[torch.Tensor]:
        widths.append(len(wanted))
        return read(self, wanted)

    monkeypatch.setattr(BatchSlots, "read", counted)
    one = proposer(folder, tmp_path, drafting(folder))
    answers(Batch(asked, 4, random.Random(1), model=model), one)
    assert one.failures == 0
    drafted = sum(each.drafted for each in asked)
    # All but where a pass of several rows rounds otherwise than one alone.
    assert sum(each.accepted for each in asked) >= 0.9 * drafted > 20
    assert max(widths) == 4 and len(widths) < sum(widths)


def test_a_draft_ends_before_a_token_that_is_doubted(folder: Path, tmp_path: Path) -> None:
    model = model_of(folder)
    one = proposer(folder, tmp_path, drafting(folder, min_confidence=0.99))
    asked = [Asked("a", [5, 6, 7], 8)]
    answers(Batch(asked, 1, random.Random(1), 0, model=model), one)
    assert one.failures == 0 and asked[0].drafted == 0


@pytest.mark.parametrize(
    ("pass_s", "agrees", "least", "most"),
    [
        (0.01, True, 0.7, 1.0),  # of the tokens that a draft of three a round would have
        (2.0, True, 0.0, 0.3),  # a pass costs two steps: but for tries, nothing
        (0.01, False, 0.0, 0.3),  # nothing is accepted
    ],
)
def test_drafts_are_as_long_as_they_pay(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pass_s: float, agrees: bool,
    least: float, most: float,
) -> None:  # fmt: skip
    """By what steps take, a second each, and what the draft model's passes do."""
    following = model_of(folder)
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr("router.engines.vllm.proposer.time", clock)
    monkeypatch.setattr("router.engines.vllm.model_drafts.time", clock)
    read = BatchSlots.read

    def slow(self: BatchSlots, wanted: Sequence[object]) -> list[torch.Tensor]:
        now[0] += pass_s
        return read(self, wanted)

    class Steps(Batch):
        def run(self) -> list[list[int]]:
            now[0] += 1.0
            return super().run()

    def model(ids: Sequence[int]) -> int:
        said = int(following(ids))
        return said if agrees else (said + 1) % 100 + 3

    monkeypatch.setattr(BatchSlots, "read", slow)
    one = proposer(folder, tmp_path, drafting(folder, kind="adaptive"))
    asked = [Asked(str(at), [5 + at, 6, 7], 60) for at in range(4)]
    answers(Steps(asked, 2, random.Random(1), 0, model=model), one)
    assert one.failures == 0
    rounds = sum(len(each.answer) - each.accepted for each in asked)
    assert least <= sum(each.drafted for each in asked) / (3 * rounds) <= most


def test_a_policy_may_read_the_text_of_the_prompt(folder: Path, tmp_path: Path) -> None:
    """By `hashing`, which needs the words and no model: prompts about the sea are copied."""
    hashing = load_embedder("hashing")
    texts = [f"{word} {other}" for word in WORDS for other in WORDS]
    sea = np.array(["sea" in text for text in texts])
    rewards = np.stack([np.ones(len(texts)), np.where(sea, 2.0, 0.5)], axis=1)
    known = table(hashing.embed(texts), rewards, ["autoregressive", "copy"])
    known = replace(known, embedder=hashing.name, arms_fingerprint="")
    fit_regression(known).policy.save(tmp_path / "policy")
    options = {"arms": {"copy": {"kind": "max_gram"}}, "policy": "policy"}
    one = proposer(folder, tmp_path, options)
    tokenizer = targets.load_tokenizer(folder)
    for text, arm in [("river sea", "copy"), ("river city", "autoregressive")]:
        ids = np.array(tokenizer(text)["input_ids"], dtype=np.int32)
        choice = one._chooser.choose(ids, 1, np.random.default_rng(0))
        assert choice.arm == arm and choice.embedding.shape == (hashing.dimension,)


def test_an_arm_that_is_chosen_again_has_read_the_text(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()
    prefill = SlotBackend.prefill

    def counted(self: SlotBackend, ids: list[int]) -> Any:
        read.append(len(ids))
        return prefill(self, ids)

    monkeypatch.setattr(SlotBackend, "prefill", counted)
    one = proposer(folder, tmp_path, drafting(folder) | {"decide_every": 3})
    asked = [Asked(str(at), [5 + at, 6, 7], 20) for at in range(3)]
    answers(Batch(asked, 2, random.Random(1), 0, model=model_of(folder)), one)
    assert one.failures == 0 and read == [3, 3, 3]


def test_what_a_proposer_does_not_do_with_a_model_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = drafting(folder)
    options["arms"]["draft"]["prompt_window"] = 9
    with pytest.raises(DraftpickError, match="leave `prompt_window` out"):
        proposer(folder, tmp_path, options)
    monkeypatch.setenv("DRAFTPICK_CACHE", str(tmp_path / "none"))
    options = drafting("qwen2.5-coder-0.5b-instruct")
    options["arms"]["draft"]["fetch"] = False
    with pytest.raises(DraftpickError, match="which is not on disk"):
        proposer(folder, tmp_path, options)


def test_a_model_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="vocabulary"):
        proposer(folder, tmp_path, drafting("draft-general"))
