"""A target that nothing was trained for answers all the same, by prompt lookup."""

from pathlib import Path

import pytest
import torch
from commands import Draftpick
from tiny_models import WORDS, tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from decoders import EngineOptions
from decoders.common.errors import DraftpickError
from decoders.engine import Engine
from decoders.testing.tokenizers import save_llama, word_tokenizer
from router.routing.router import Router


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, too few for the exit that ships."""
    words = word_tokenizer(["<unk>", "</s>", *WORDS], "<unk>", unk_token="<unk>", eos_token="</s>")
    return save_llama(
        tmp_path_factory.mktemp("other") / "model", words, intermediate_size=48,
        num_hidden_layers=1, num_key_value_heads=4, max_position_embeddings=256,
        tie_word_embeddings=False, eos_token_id=None,
    )  # fmt: skip


def test_it_answers_by_prompt_lookup_and_says_how_to_do_better(
    target: Path, draftpick: Draftpick
) -> None:
    asked = ["generate", "why is the sky blue", "--target", target, "--json"]
    asked += ["--max-new-tokens", 40, "--dtype", "float32"]
    said = draftpick(*asked)
    answer = said.json
    assert (answer["arm"], answer["propensity"]) == ("max-gram", 1.0)
    lines = [line for line in said.err.splitlines() if "prompt lookup" in line]
    assert len(lines) == 1
    for words in ("needs no training", "draftpick align", "draftpick collect", "draftpick train"):
        assert words in lines[0]
    options = EngineOptions(str(target), dtype="float32")
    alone = Engine.from_options(options, only=["autoregressive"])
    assert draftpick(*asked, "--arm", "autoregressive").json["ids"] == answer["ids"]
    assert list(alone.arms) == ["autoregressive"]


@pytest.mark.parametrize(("kind", "native"), [("cohere2", False), ("qwen3", True)])
def test_a_model_with_sliding_windows_answers_as_transformers(
    kind: str, native: bool, tmp_path: Path, draftpick: Draftpick
) -> None:
    folder = tmp_path / "windowed"
    size = tokenizer(folder, unk_token="<unk>", eos_token="</s>")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            kind, vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=4,
            use_sliding_window=True, max_window_layers=1, max_position_embeddings=128,
            initializer_range=0.5, eos_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    asked = ["generate", "why is the sky blue", "--target", folder, "--dtype", "float32"]
    said = draftpick(*asked, "--max-new-tokens", 30, "--json")
    answer = said.json
    assert ("using the transformers backend for windowed: " in said.err) != native
    prompt = AutoTokenizer.from_pretrained(folder)("why is the sky blue", return_tensors="pt")
    own = model.eval().generate(**prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert answer["arm"] == "max-gram"
    assert answer["ids"] == own[0, prompt["input_ids"].shape[1] :].tolist()


def test_every_arm_of_a_benchmark_runs(target: Path) -> None:
    router = Router.from_pretrained(str(target), dtype="float32")
    assert router.engine.arm_names == ["autoregressive", "max-gram"]


def test_an_arm_that_ships_says_why_it_does_not_fit(target: Path, draftpick: Draftpick) -> None:
    with pytest.raises(DraftpickError, match="hybrid"):
        Engine.from_options(EngineOptions(str(target)), only=["hybrid"])
    draftpick("generate", "why", "--target", target, "--arm", "hybrid", code=2)
