"""A tiny target with a real tokenizer, queries, and answers that follow a simple rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Llama over forty words, `</s>` ending an answer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("target")
    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(queries, outputs): each answer counts up from its prompt's word, then ends."""
    folder = tmp_path_factory.mktemp("written")
    queries, outputs = [], []
    for i in range(160):
        task = ("qa", "math")[i % 2]
        first = (7 * i) % 20
        queries.append({"id": f"q{i}", "task": task, "turns": [WORDS[first]]})
        answer = " ".join(WORDS[first + 1 : first + 13])
        outputs.append({"id": f"q{i}", "task": task, "output": answer, "ended": True})
    for name, rows in (("queries.jsonl", queries), ("outputs.jsonl", outputs)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "queries.jsonl", folder / "outputs.jsonl"
