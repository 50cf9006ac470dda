"""Tokenizers of letters and of words, and a random Llama over such words on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Letters:
    """A tokenizer without a vocabulary file: token i is the i-th letter, and reads back as it.

    The id after the last ends answers and has no text; unknown letters are read as the first.
    """

    chat_template = None

    def __init__(self, letters: str = ascii_lowercase) -> None:
        self.letters, self.eos_token_id = letters, len(letters)

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=self.encode(text))

    def encode(self, text: str, **_: Any) -> list[int]:
        return [max(self.letters.find(letter), 0) for letter in text.lower()]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        end = "" if skip_special_tokens else "<end>"
        return "".join(self.letters[i] if i < len(self.letters) else end for i in ids)


def word_tokenizer(
    words: Sequence[str], unknown: str, template: str | None = None, **named: Any
) -> PreTrainedTokenizerFast:
    """Makes a tokenizer of words between spaces, whose ids are their places in the list.

    unknown: the word that others are read as. named: `eos_token` and its like, among the words.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate(words)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, **named)
    made.chat_template = template
    return made


def save_llama(
    folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, seed: int = 0, **config: Any
) -> Path:
    """Saves a random Llama of two layers, with its tokenizer where there is one.

    config: fields of transformers' LlamaConfig in place of the small ones here.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 16 if tokenizer is None else len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None if tokenizer is None else tokenizer.eos_token_id,
    }
    torch.manual_seed(seed)
    LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder
