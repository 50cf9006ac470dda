"""Random models of a dozen words, as their libraries lay them out on disk."""

from __future__ import annotations

import json
from pathlib import Path

import torch

WORDS = ["sum", "add", "two", "three", "river", "sea", "lake", "city", "what", "is", "the", "of"]
WIDTH = 16


def tokenizer(folder: Path, **special: str) -> int:
    """A tokenizer of the words above; how many ids it has."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate([*special.values(), *WORDS])}
    plain = Tokenizer(models.WordLevel(vocab, unk_token=special["unk_token"]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if "cls_token" in special:
        plain.post_processor = processors.BertProcessing(
            (special["sep_token"], vocab[special["sep_token"]]),
            (special["cls_token"], vocab[special["cls_token"]]),
        )
    made = PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=32, **special)
    made.save_pretrained(folder)
    return len(vocab)


def sentence_model(folder: Path, seed: int = 0) -> Path:
    """A random BERT of one layer with mean pooling, as sentence-transformers lays it out."""
    from transformers import BertConfig, BertModel

    size = tokenizer(
        folder, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=size, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=40, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def target_model(folder: Path) -> Path:
    """A random Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = tokenizer(folder, unk_token="<unk>", eos_token="</s>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(size, 128),  # costs are measured on a hundred different tokens
        hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        eos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
