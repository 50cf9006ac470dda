"""A GGUF file's tokenizer: as transformers makes it, with what transformers passes over.

That is how a text is split before it is merged (`tokenizer.ggml.pre`), whether a word is begun at
the text's start, and all tokens that end an answer. Names, and what they stand for, are those of
llama.cpp's vocabularies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..backends.gguf.header import Header, token_texts
from ..common.errors import DraftpickError
from ..common.files import write_atomically

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_POINTS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_ALONE = (r"\p{N}", _GPT2)  # every digit
SPLITS: dict[str, tuple[str, ...]] = {  # besides those of transformers; one after the other
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
         "gigachat", "a.x-4.0", "mellum"),
        (_GPT2,),
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _ALONE
    ),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2"), (_QWEN2,)),
    **dict.fromkeys(("chatglm-bpe", "glm4"), (_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), (_POINTS,)),
    "viking": (_POINTS, r"\p{N}"),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    ),
    "seed-coder": (_QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}  # fmt: skip
BEGUN = ("llama3", "llama-v3", "llama-bpe", "tekken", "chameleon")  # by a token, unless it is said

ENDS = {  # tokens of these texts end an answer
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
}  # fmt: skip
FILE_ENDS = {  # and these, with which models that fill in the middle go on to another file
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<REPO>", "<reponame>", "<|file_sep|>",
}  # fmt: skip
NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")  # by their ids


def ends_of(header: Header) -> list[int]:
    """Ids of the tokens that end an answer, the file's end-of-sequence token first."""
    found = [header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in NAMED]
    return _ends([each for each in found if isinstance(each, int)], token_texts(header))


def _ends(named: Sequence[int], texts: Sequence[str]) -> list[int]:
    """named: ids. texts: of all tokens."""
    ids = [each for each in named if 0 <= each < len(texts)]
    spelled = [at for at, text in enumerate(texts) if text in ENDS or text in FILE_ENDS]
    every = dict.fromkeys([*ids, *spelled])
    said = {texts[each]: each for each in every}
    if "<|return|>" in said and "<|call|>" in said:  # of harmony, where this one ends a message
        every.pop(said.get("<|end|>", -1), None)
    return list(every)


def split_of(metadata: Mapping[str, Any], file: Path) -> tuple[str, ...] | None:
    """How texts are split; None where transformers does as the file says. Raises DraftpickError for
    a kind that is not known."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        return None
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    kind = str(metadata.get("tokenizer.ggml.pre", "default"))
    if kind in GGUF_PRE_TOKENIZER_SPLITS:
        return None
    if kind not in SPLITS:
        raise DraftpickError(
            f"{file} has texts split as {kind!r} (tokenizer.ggml.pre), which is not known here and "
            "would give other tokens; name the model's own transformers folder"
        )
    return SPLITS[kind]


def put_right(tokenizer: Any, header: Header) -> None:
    """Let a tokenizer that transformers made of the file split texts as the file says, and begin
    them. Raises DraftpickError as `split_of`."""
    from tokenizers import decoders, pre_tokenizers

    metadata, made = header.metadata, tokenizer.backend_tokenizer
    splits = split_of(metadata, header.files[0])
    if splits is not None:
        made.pre_tokenizer = _splitting(splits)
    joined = metadata.get("tokenizer.ggml.model") == "llama"
    if joined and metadata.get("tokenizer.ggml.add_space_prefix") is False:
        made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=False)
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )


def _splitting(splits: Sequence[str]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    each_in_turn = [pre_tokenizers.Split(Regex(each), "isolated") for each in splits]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*each_in_turn, as_bytes])


def mend(folder: Path, kind: str) -> None:
    """Put a folder right that was converted when `tokenizer.ggml.pre` and most ends were passed
    over; nothing happens to others. kind: of its file."""
    from tokenizers import Tokenizer

    path = folder / "generation_config.json"
    if not path.is_file():
        return
    generation = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(generation.get("eos_token_id"), int):
        return
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.pre_tokenizer = _splitting(SPLITS[kind])
    texts = [made.id_to_token(at) or "" for at in range(made.get_vocab_size())]
    generation["eos_token_id"] = _ends([generation["eos_token_id"]], texts)
    write_atomically(folder / "tokenizer.json", made.to_str(pretty=True))
    write_atomically(path, json.dumps(generation, indent=2) + "\n")


def tokenizer_of(header: Header) -> Any:
    """The tokenizer of a file whose model runs natively. Raises DraftpickError as `split_of`."""
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    split_of(header.metadata, header.files[0])  # refuses before much is read
    architecture, found, config = get_gguf_tokenizer(str(header.files[0]))
    if header.metadata.get("tokenizer.ggml.pre") in BEGUN:
        config.setdefault("add_bos_token", True)
    tokenizer, more = convert_gguf_tokenizer(architecture, found)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **config, **more)
    put_right(made, header)
    return made
