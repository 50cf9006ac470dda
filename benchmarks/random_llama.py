"""A Llama of any size with random weights, for timing alone: what it writes means nothing.

    python benchmarks/random_llama.py random-llama-1b

By default 1.07 billion parameters in bfloat16: the layers of Llama 3.2 1B with the vocabulary and
the tokenizer of --tokenizer-of, so that the same prompts encode. A pass costs what a trained
model's does, but answers repeat themselves or do not, as chance has it: how often drafts are
accepted, and so what they gain, says nothing about a trained model. A complete folder is left as it
is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from decoders.models import targets
from decoders.zoo import TARGET

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="folder to fill")
    parser.add_argument("--tokenizer-of", default=TARGET)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--mlp", type=int, default=8192)
    parser.add_argument("--device", default="auto", help="where the numbers are drawn")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    if (given.out / "config.json").is_file():
        print(f"{given.out} is there already")
        return
    started = time.perf_counter()
    source = targets.resolve(given.tokenizer_of)
    config = config_of(json.loads((source / "config.json").read_text(encoding="utf-8")), given)
    made = weights(config, targets.device_of(given.device), given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, given.out / name)
    save(given.out, config, made)
    count = sum(tensor.numel() for tensor in made.values())
    took = time.perf_counter() - started
    print(f"{given.out}: {count / 1e9:.2f} billion random weights in {took:.1f} s", file=sys.stderr)


def config_of(source: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """A Llama's config.json with the vocabulary and special tokens of `source`."""
    kept = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    return {
        **{name: source[name] for name in kept if name in source},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.heads,
        "num_key_value_heads": given.kv_heads,
        "head_dim": given.hidden // given.heads,
        "intermediate_size": given.mlp,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


@torch.inference_mode()
def weights(config: dict[str, Any], device: torch.device, seed: int) -> dict[str, Tensor]:
    """A transformers state dict in bfloat16, on the CPU.

    Each product keeps its input's size, and the final states that of 1 however many layers there
    are. The embedding is small beside them, or the tied head would only repeat the last token.
    """
    chance = torch.Generator(device).manual_seed(seed)
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    inner = config["num_attention_heads"] * config["head_dim"]
    keys, mlp = config["num_key_value_heads"] * config["head_dim"], config["intermediate_size"]

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(rows, columns, generator=chance, device=device, dtype=torch.float32)
        return (drawn * (scale / columns**0.5)).to(torch.bfloat16).cpu()

    def ones() -> Tensor:
        return torch.ones(hidden, dtype=torch.bfloat16)

    added = 4 * (2 * layers) ** -0.5  # a gated product is about a third of its factors' size
    made = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        made |= {
            f"{at}input_layernorm.weight": ones(),
            f"{at}self_attn.q_proj.weight": matrix(inner, hidden),
            f"{at}self_attn.k_proj.weight": matrix(keys, hidden),
            f"{at}self_attn.v_proj.weight": matrix(keys, hidden),
            f"{at}self_attn.o_proj.weight": matrix(hidden, inner, added),
            f"{at}post_attention_layernorm.weight": ones(),
            f"{at}mlp.gate_proj.weight": matrix(mlp, hidden),
            f"{at}mlp.up_proj.weight": matrix(mlp, hidden),
            f"{at}mlp.down_proj.weight": matrix(hidden, mlp, added),
        }
    return made | {"model.norm.weight": ones()}


def save(folder: Path, config: dict[str, Any], made: dict[str, Tensor]) -> None:
    """Weights first: a folder with a config.json is complete."""
    from safetensors.torch import save_file

    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    partial = folder / ".config.json.tmp"
    partial.write_text(json.dumps(config, indent=1), encoding="utf-8")
    os.replace(partial, folder / "config.json")


if __name__ == "__main__":
    main()
