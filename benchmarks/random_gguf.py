"""A GGUF file with random weights and the sizes of a large model's layers, to time engines on.

    python benchmarks/random_gguf.py moe.gguf --layers 6
    python benchmarks/decode.py --target moe.gguf --gguf moe.gguf --dtype file --peers gguf

Its layers are those of Qwen3-30B-A3B (128 experts, of which a token takes 8), or with --like of
another model, in Q4_K, some matrices in Q6_K as in Q4_K_M files (of gpt-oss MXFP4 and Q8_0); its
vocabulary has 100 tokens, so that nearly all time is the layers'.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "decoders"))
from gguf_toys import Sizes, save_gguf

MIXED = {"ffn_down_exps": "Q6_K", "ffn_down": "Q6_K", "attn_v": "Q6_K", "output": "Q6_K"}
OF_GPT_OSS = ("attn_q", "attn_k", "attn_v", "attn_output", "token_embd", "output")
LIKE = {  # architecture; hidden, width, heads, kv, head_dim, layers, experts, taken, context
    "qwen3-30b-a3b": ("qwen3moe", (2048, 768, 32, 4, 128, 48, 128, 8, 4096)),
    "mixtral-8x7b": ("llama-experts", (4096, 14336, 32, 8, 128, 32, 8, 2, 4096)),
    "gpt-oss-20b": ("gpt-oss", (2880, 2880, 64, 8, 64, 24, 32, 4, 4096)),
    "phi-4-mini": ("phi3-long", (3072, 8192, 24, 8, 128, 32, 0, 0, 4096)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", choices=LIKE, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=6, help="one takes 0.1 to 0.9 GB")
    given = parser.parse_args()
    architecture, numbers = LIKE[given.like]
    sizes = replace(Sizes(*numbers), layers=given.layers)
    if architecture == "gpt-oss":
        kind, others = "MXFP4", dict.fromkeys(OF_GPT_OSS, "Q8_0")
    else:
        kind, others = "Q4_K", MIXED
    save_gguf(given.out, architecture, kind, others, sizes=sizes)


if __name__ == "__main__":
    main()
