"""What a Llama-shaped model's files must hold."""

from __future__ import annotations

from typing import Any

from ...common.tensor_files import Shape
from .model import Shape as Model
from .model import shape_of


def needed(config: dict[str, Any]) -> dict[str, Shape]:
    """Names, without a leading `model.`, and shapes, of a config that `unsupported` lets pass.

    Biases and the norms of heads are those of the architecture, as in transformers.
    """
    shape, (architecture, *_) = shape_of(config), config["architectures"]
    layer = of_layer(
        shape,
        int(config["intermediate_size"]),
        biased=architecture == "Qwen2ForCausalLM",
        normed_heads=architecture == "Qwen3ForCausalLM",
    )
    d = shape.hidden
    whole: dict[str, Shape] = {"embed_tokens.weight": (shape.vocab, d), "norm.weight": (d,)}
    if not config.get("tie_word_embeddings"):
        whole["lm_head.weight"] = (shape.vocab, d)
    for index in range(shape.layers):
        whole |= {f"layers.{index}.{name}": each for name, each in layer.items()}
    return whole


def of_layer(shape: Model, intermediate: int, biased: bool, normed_heads: bool) -> dict[str, Shape]:
    """Names and shapes of one layer's.

    biased: whether queries, keys and values have biases.
    normed_heads: whether queries and keys are normed.
    """
    d, f = shape.hidden, intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (d,),
        "self_attn.q_proj.weight": (q, d),
        "self_attn.k_proj.weight": (kv, d),
        "self_attn.v_proj.weight": (kv, d),
        "self_attn.o_proj.weight": (d, q),
        "post_attention_layernorm.weight": (d,),
        "mlp.gate_proj.weight": (f, d),
        "mlp.up_proj.weight": (f, d),
        "mlp.down_proj.weight": (d, f),
    }
    if biased:
        layer |= {"self_attn.q_proj.bias": (q,)}
        layer |= {f"self_attn.{name}_proj.bias": (kv,) for name in "kv"}
    if normed_heads:
        layer |= {f"self_attn.{name}_norm.weight": (shape.head_dim,) for name in "qk"}
    return layer
