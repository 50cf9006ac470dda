"""Small tokenizers of every kind; tokens hold parts of characters where the kind has those."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
from gguf_toys import written
from split_toys import empty_writer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIALS = ["<s>", "</s>", "<|im_end|>"]
THINK = "<think>"
HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
WORDS = ["the", "cat", "is", "n't", "a", ".", ",", "é", "日本", "<|", "im_end", "end"]
LETTERS = list(map(chr, range(97, 123)))
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PARTS = [b" ", b"\xe6", b"\x97\xa5", b" \xf0\x9f", b"\x8e\x89", b"\xe2\x80\x8d", "👩‍👩".encode()]


def _fast(raw: Tokenizer, added: tuple[str, ...] = ()) -> Any:
    raw.add_special_tokens([AddedToken(each, special=True) for each in SPECIALS])
    raw.add_tokens([AddedToken(each, special=False) for each in (THINK, *added)])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    made.clean_up_tokenization_spaces = False
    return made


def byte_level() -> Any:
    spelled = bytes_to_unicode()
    words = [b" " + word.encode() for word in WORDS] + [word.encode() for word in WORDS] + PARTS
    tokens = [*spelled.values(), *("".join(spelled[byte] for byte in word) for word in words)]
    raw = Tokenizer(models.BPE({token: at for at, token in enumerate(dict.fromkeys(tokens))}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return _fast(raw, ("ひ",))


def letters(tokenizer: Any, text: str) -> list[int]:
    """A byte-level token for each byte."""
    return list(
        tokenizer.convert_tokens_to_ids([bytes_to_unicode()[byte] for byte in text.encode()])
    )


def _sentencepiece(strips: bool, added: tuple[str, ...]) -> Any:
    letters = ["▁", "▁▁", "▁▁▁", *map(chr, range(33, 127)), "\n", "日", "\ufffd", "👩‍👩"]
    tokens = ["<unk>", *BYTES, *letters, *("▁" + word for word in WORDS), *WORDS]
    vocabulary = {token: at for at, token in enumerate(dict.fromkeys(tokens))}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if strips else "never")
    raw.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if strips else [])])
    return _fast(raw, added)


def llama() -> Any:
    return _sentencepiece(True, ())


def gemma() -> Any:
    """Its spaces in a row are added tokens."""
    return _sentencepiece(False, ("▁▁▁▁", "\n\n"))


def unigram() -> Any:
    """T5's."""
    tokens = [
        "<unk>",
        "▁",
        "▁▁",
        *("▁" + word for word in WORDS),
        *WORDS,
        *map(chr, range(97, 123)),
    ]
    raw = Tokenizer(models.Unigram([(token, -1.0) for token in dict.fromkeys(tokens)], 0))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _fast(raw)


def wordpiece() -> Any:
    tokens = ["[UNK]", *WORDS, *("##" + word for word in WORDS), *LETTERS]
    vocabulary = {token: at for at, token in enumerate(dict.fromkeys(tokens))}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return _fast(raw)


def words() -> Any:
    """Put together with spaces."""
    raw = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[0]))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _fast(raw)


def word_ends() -> Any:
    """Marks the ends of words, as the first GPT."""
    tokens = ["<unk>", *(word + "</w>" for word in WORDS), *WORDS, *LETTERS]
    vocabulary = {token: at for at, token in enumerate(dict.fromkeys(tokens))}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder()
    return _fast(raw)


GOLDEN = Path(__file__).with_name("llama_cpp_texts.json")  # of FILES, by tests/engines
FILES = {"byte-level": byte_level, "Llama": llama, "Gemma": gemma}


def save_gguf(path: Path, kind: str, context: int = 64) -> Path:
    """The vocabulary of FILES[kind], beside a model to which all tokens are as likely."""
    made = FILES[kind]()
    tokens = made.convert_ids_to_tokens(list(range(len(made))))
    types = [gguf.TokenType.BYTE if each in BYTES else gguf.TokenType.NORMAL for each in tokens]
    for id_, token in made.added_tokens_decoder.items():
        types[id_] = gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED
        tokens[id_] = token.content.replace("▁", " ")  # as llama.cpp's converter writes them
    writer = empty_writer(path, tokens, context)
    writer.add_tokenizer_model("gpt2" if kind == "byte-level" else "llama")
    writer.add_token_types(types)
    if kind == "byte-level":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(["Ġ a"])
    else:
        types[0] = gguf.TokenType.UNKNOWN
        writer.add_token_scores([-float(at) for at in range(len(tokens))])
        writer.add_add_space_prefix(kind == "Llama")
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    return written(writer)


KINDS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_level,
    "Llama": llama,
    "Gemma": gemma,
    "T5": unigram,
    "WordPiece": wordpiece,
    "words": words,
    "ends of words": word_ends,
    "ByT5": ByT5Tokenizer,
}
