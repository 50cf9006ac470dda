"""A GGUF file with random weights and the sizes of a large model's layers, to time engines on.

    python benchmarks/random_gguf.py moe.gguf --layers 6
    python benchmarks/decode.py --target moe.gguf --gguf moe.gguf --dtype file --peers gguf

Its layers are those of Qwen3-30B-A3B (128 experts, of which a token takes 8) in Q4_K, some matrices
in Q6_K as in Q4_K_M files; its vocabulary has 100 tokens, so that nearly all time is the layers'.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "decoders"))
from gguf_toys import Sizes, save_gguf

KINDS = {"ffn_down_exps": "Q6_K", "attn_v": "Q6_K", "output": "Q6_K"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=6, help="of 48; one takes 0.4 GB")
    given = parser.parse_args()
    sizes = Sizes(2048, 768, 32, 4, 128, given.layers, 128, 8, 4096)
    save_gguf(given.out, "qwen3moe", "Q4_K", KINDS, sizes=sizes)


if __name__ == "__main__":
    main()
