"""Tiny random models of many families, as transformers builds them from a config."""

from typing import Any

import torch
from decoder_toys import CPU
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

WINDOW = 6
VOCAB = 24
CONTEXT = 96
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
GATED: dict[str, Any] = {"intermediate_size": 48, "num_key_value_heads": 2}
APART: dict[str, Any] = {"head_dim": 8, **GATED}  # heads that the hidden size does not give
SLIDES: dict[str, Any] = {"sliding_window": WINDOW}
MIXED: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 1, **SLIDES}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
EVERY_OTHER = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0],
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # the model type, and sizes beside SIZES
    "Llama": ("llama", GATED),
    "Llama 4": ("llama4_text", {
        **APART, **EXPERTS, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 1, 0],
        "intermediate_size_mlp": 48,
    }),
    "Mistral": ("mistral", {**GATED, **SLIDES}),
    "Mixtral": ("mixtral", {**GATED, **EXPERTS, **SLIDES}),
    "Qwen2": ("qwen2", {**GATED, **MIXED}),
    "Qwen3": ("qwen3", {**APART, **MIXED}),
    "Qwen3-MoE": ("qwen3_moe", {
        **APART, **MIXED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    }),
    "OLMoE": ("olmoe", {**GATED, "num_experts": 4, "num_experts_per_tok": 2}),
    "Gemma 2": ("gemma2", {**APART, **SLIDES, **EVERY_OTHER}),
    "Gemma 3": ("gemma3_text", {**APART, **SLIDES, **EVERY_OTHER}),
    "Gemma 3n": ("gemma3n_text", {
        **APART, **SLIDES, **EVERY_OTHER, "num_kv_shared_layers": 1, "laurel_rank": 4,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB,
        "activation_sparsity_pattern": [0.0] * 3,
    }),
    "Phi-3": ("phi3", {**GATED, **SLIDES}),
    "Phi-4-mini": ("phi3", {
        **GATED, "rope_parameters": LONG_ROPE, "original_max_position_embeddings": 72,
    }),
    "gpt-oss": ("gpt_oss", {**APART, **EXPERTS, **SLIDES}),
    "Cohere2": ("cohere2", {**GATED, **SLIDES, **EVERY_OTHER}),
    "OLMo2": ("olmo2", GATED),
    "OLMo3": ("olmo3", {**GATED, **SLIDES, **EVERY_OTHER}),
    "StarCoder2": ("starcoder2", {**GATED, **SLIDES}),
    "GPT-2": ("gpt2", {}),
    "OPT": ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "Falcon": ("falcon", {}),
    "GPT-NeoX": ("gpt_neox", {"intermediate_size": 48}),
    "BLOOM": ("bloom", {}),
    "T5": ("t5", {"d_kv": 8, "d_ff": 48, "num_decoder_layers": 3, "decoder_start_token_id": 0}),
}  # fmt: skip
SEEDS = {"gpt-oss": 1, "GPT-2": 0, "GPT-NeoX": 0, "BLOOM": 0, "T5": 3}  # others: few tokens


def family_model(family: str, noise: float = 0.0, **changed: Any) -> PreTrainedModel:
    """Random, and sharp enough that no two logits are nearly equal.

    noise: pushes every weight a little: of two such models the one drafts well for the other.
    changed: sizes other than the family's here.
    """
    kind, sizes = FAMILIES[family]
    config = AutoConfig.for_model(kind, **{**SIZES, **sizes, **changed})
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(SEEDS.get(family, 5))
    model = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 and not name.endswith("bias"):
                weight.uniform_(0.5, 1.5)  # of a norm
            else:
                weight.normal_(0, 1.0 if "emb" in name or "wte" in name else 0.3)
        for weight in model.parameters():
            weight += noise * torch.randn(weight.shape)
    return model.to(CPU).eval()
