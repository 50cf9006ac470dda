"""Random models of a dozen words, as their libraries lay them out on disk."""

import json
from pathlib import Path

import torch

from decoders.testing.tokenizers import save_llama, word_tokenizer

WORDS = ["sum", "add", "two", "three", "river", "sea", "lake", "city", "what", "is", "the", "of"]
WIDTH = 16


def tokenizer(folder: Path, **special: str) -> int:
    """A tokenizer of the words above; how many ids it has."""
    from tokenizers import processors

    words = [*special.values(), *WORDS]
    made = word_tokenizer(words, special["unk_token"], model_max_length=32, **special)
    if "cls_token" in special:
        made.backend_tokenizer.post_processor = processors.BertProcessing(
            *((special[name], words.index(special[name])) for name in ("sep_token", "cls_token"))
        )
    made.save_pretrained(folder)
    return len(words)


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
    words = ["<unk>", "</s>", *WORDS]
    made = word_tokenizer(words, "<unk>", model_max_length=32, unk_token="<unk>", eos_token="</s>")
    # costs are measured on a hundred different tokens
    return save_llama(folder, made, vocab_size=128)
