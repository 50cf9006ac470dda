"""Models whose tokens are all bytes and all pairs of bytes, so that ids tell where a text is split
before it is merged; and texts that are split differently."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf_toys import written
from transformers.convert_slow_tokenizer import bytes_to_unicode

GOLDEN = Path(__file__).with_name("llama_splits.json")
TEXTS = [
    "  1. a list\n  2. of things",
    "in 2024, 12345678 and 1.5e-10",
    "def f(x):\n    return x+1\n\n\n\tpass  ",
    "I'M here, WE'LL see; it's y'all'd've",
    "a\r\nb\r\r\n \n c",
    "Ünïcode naïve ΑΒΓ где 中文字 日本語かな 한국어 ไทย",
    "x²+y³=½ ٣٤٥ ④",
    "https://a.b/c?d=e&f=g#h <|x|> {\"k\": [1,2]}",
    "   \t  spaces   everywhere \u00a0 \u3000 end   ",
    "CamelCaseHTTPServer snake_case99x ...!!! ?? -- e\u0301 🎉🎉",
]  # fmt: skip


def save_split(path: Path, split: str) -> Path:
    """split: as `tokenizer.ggml.pre` has it."""
    spelled = list(bytes_to_unicode()[byte] for byte in range(256))
    pairs = [(a, b) for a in spelled for b in spelled]
    tokens = [*spelled, *(a + b for a, b in pairs)]
    writer = empty_writer(path, tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([f"{a} {b}" for a, b in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    return written(writer)


def empty_writer(path: Path, tokens: list[str], context: int = 64) -> GGUFWriter:
    """Of a model of zeros, to which every token is as likely, without what reads texts."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_token_list(tokens)
    for name, size in {
        "token_embd": (len(tokens), 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,), **{f"blk.0.attn_{part}": (32, 32) for part in ("q", "k", "v")},
        "blk.0.attn_output": (32, 32),
        **{f"blk.0.ffn_{part}": (32, 32) for part in ("gate", "up", "down")},
    }.items():  # fmt: skip
        writer.add_tensor(
            f"{name}.weight", np.zeros(size, np.float32 if len(size) == 1 else np.float16)
        )
    return writer


def golden() -> dict[str, list[str]]:
    """Kind -> for each text the bytes of each token by llama.cpp, "1" or "2"."""
    stored: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return {kind: each["tokens"] for each in stored for kind in each["kinds"]}
