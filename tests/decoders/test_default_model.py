"""Lossless on the real default target: every shipped arm's ids equal transformers' greedy ids."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from collect.queries import TASKS, Query, first_per_task, read_queries, shipped
from collect.replay.batch import Batch
from decoders import Engine, Request
from decoders.arms import load_arms
from decoders.backends.weights.packed import can_pack
from decoders.costs.measured import Costs
from decoders.lengths import AdaptiveLength, FixedLength
from decoders.models.targets import encode_chat, load_tokenizer, resolve
from decoders.records import Sampling
from decoders.zoo import TARGET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("every_thread"),
    pytest.mark.xdist_group("default model"),  # which is loaded once then
]

BF16 = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.bfloat16), reason="this CPU does not multiply bfloat16"
)
TOKENS = 16
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
    found = first_per_task(read_queries(sorted(DEV.glob("*.jsonl"))), A_TASK)
    assert {query.task for query in found} >= set(TASKS)
    return found[::2]


@pytest.mark.parametrize("source", ["shipped", "dev"])
def test_every_arm_s_ids_equal_transformers(
    source: str, engine: Engine, transformers_ids: Any
) -> None:
    """Every other arm for a query, and the others for the next."""
    accepted, shipped_ones = Counter[str](), source == "shipped"
    for i, query in enumerate(queries(source), shipped_ones):
        prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        wanted, prefilled = transformers_ids(tuple(prompt)), engine.prefill(prompt)
        for arm in list(load_arms())[i % 2 :: 2]:
            result = engine.decode(arm, prompt, Request(TOKENS), prefilled)
            assert result.ids == wanted, (query.id, arm)
            accepted[arm] += result.accepted
    assert {arm for arm, count in accepted.items() if not count} == {"autoregressive"}


def test_batched_answers_equal_transformers(engine: Engine, transformers_ids: Any) -> None:
    prompts = [
        engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        for query in queries("shipped")
    ]
    out = Batch(engine).target(prompts, TOKENS)
    assert out.ids == [transformers_ids(tuple(prompt)) for prompt in prompts]


@BF16
@pytest.mark.parametrize(
    ("dtype", "backend"),
    [("bfloat16", "auto"), ("int8", "native"), ("int4", "native"), ("int4", "auto")],
)
def test_rounded_every_arm_writes_the_same(dtype: str, backend: str) -> None:
    """No answer here crosses position 256 + 512 n, where a last bit may change. Where drafts are
    copied, sampled answers are the same too. Every other arm for a query, the others for the next.
    """
    engine = Engine.load(dtype=dtype, device="cpu", backend=backend)
    request, sampled = Request(16), Request(16, Sampling(0.8, top_p=0.95), seed=7)
    for i, query in enumerate(queries("shipped")[backend == "auto" :: 2]):
        prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        assert (len(prompt) - 256) // 512 == (len(prompt) + 16 - 256) // 512
        prefilled = engine.prefill(prompt)
        alone = engine.decode("autoregressive", prompt, request, prefilled).ids
        for arm in engine.arm_names[i % 2 :: 2]:
            assert engine.decode(arm, prompt, request, prefilled).ids == alone, (query.id, arm)
        alone = engine.decode("autoregressive", prompt, sampled, prefilled).ids
        assert engine.decode("max-gram", prompt, sampled, prefilled).ids == alone, query.id


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampled_rounds_are_those_of_the_loop(
    engine: Engine, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch writes what plain decoding and every arm write to the same seeds, and foretells each
    one's rounds. Lengths that go by the clock are fixed."""
    chats = [[{"role": "user", "content": query.turns[0]}] for query in queries("shipped")[::2]]
    prompts = [engine.encode_chat(chat) for chat in chats]
    batch = Batch(engine, Costs((0.1,) * 33, dict.fromkeys(engine.arm_names, 0.01)))
    seeds = [*range(len(prompts))]
    answers = batch.target(prompts, TOKENS, temperature, seeds).ids
    asked = [Request(TOKENS, Sampling(temperature), seed=seed) for seed in seeds]
    for arm in engine.arm_names:
        strategy = engine.strategy(arm)
        if isinstance(strategy.length, AdaptiveLength):
            strategy = replace(strategy, length=FixedLength(3))
            monkeypatch.setitem(engine._strategies, arm, strategy)
        live = [engine.decode(arm, *each) for each in zip(prompts, asked, strict=True)]
        assert [one.ids for one in live] == answers, arm
        if arm != "autoregressive":
            made = batch.replay(arm, prompts, answers, TOKENS, temperature, seeds)
            assert [*map(counts, made)] == [*map(counts, live)], arm
            assert sum(one.accepted for one in made) > 0


def counts(made: Any) -> tuple[int, int, int]:
    return made.rounds, made.drafted, made.accepted


def test_its_tokenizer_is_auto_tokenizer_s() -> None:
    from transformers import AutoTokenizer

    folder = resolve(TARGET)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template
    assert ours.special_tokens_map == theirs.special_tokens_map
    for query in queries("shipped"):
        chat = [{"role": "user", "content": turn} for turn in query.turns]
        assert encode_chat(ours, chat) == encode_chat(theirs, chat)
        ids = ours.encode(query.turns[0])
        assert ids == theirs.encode(query.turns[0])
        assert ours.decode(ids) == theirs.decode(ids)


def test_starting_imports_no_model_code_of_transformers() -> None:
    """Nor PyTorch's compiler: each would take longer than reading the weights."""
    run = (
        "import sys; from decoders import Engine; "
        "engine = Engine.load(device='cpu', backend='native'); "
        "print(*map(engine.strategy, engine.arm_names)); "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "transformers" in loaded
    assert not loaded & {"transformers.modeling_utils", "transformers.activations", "torch._dynamo"}
