"""Lossless on the real default target: every shipped arm's ids equal transformers' greedy ids."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from collect.queries import first_per_task, read_queries, shipped
from decoders import Engine, Query, Request
from decoders.arms import load_arms
from decoders.targets import resolve
from decoders.zoo import TARGET

pytestmark = pytest.mark.slow

TOKENS = 32
A_TASK = 1
DEV = Path(__file__).resolve().parents[3] / "shared" / "data" / "dev"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def transformers_ids() -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve(TARGET), dtype=torch.float32).eval()

    @cache
    def answer(prompt: tuple[int, ...]) -> list[int]:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS
        )
        return made[0, len(prompt) :].tolist()  # type: ignore[no-any-return]

    return answer


def queries(source: str) -> list[Query]:
    if source == "shipped":
        return first_per_task(shipped("test"), A_TASK)
    if not DEV.is_dir():
        pytest.skip("no development queries beside the repository")
    return first_per_task(read_queries(sorted(DEV.glob("*.jsonl"))), A_TASK)


@pytest.mark.parametrize("source", ["shipped", "dev"])
@pytest.mark.parametrize("arm", list(load_arms()))
def test_ids_equal_transformers(
    arm: str, source: str, engine: Engine, transformers_ids: Any
) -> None:
    asked = queries(source)
    assert len(asked) == 6 * A_TASK
    accepted = 0
    for query in asked:
        prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        result = engine.decode(arm, prompt, Request(TOKENS))
        assert result.ids == transformers_ids(tuple(prompt)), query.id
        accepted += result.accepted
    assert accepted > 0 or arm == "autoregressive"


def test_batched_answers_equal_transformers(engine: Engine, transformers_ids: Any) -> None:
    prompts = [
        engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        for query in queries("shipped")
    ]
    out = engine.batch.target(prompts, TOKENS)
    assert out.ids == [transformers_ids(tuple(prompt)) for prompt in prompts]
