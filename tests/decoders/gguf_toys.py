"""Random models in GGUF files, of any kinds of blocks, as llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

HIDDEN, WIDTH, HEADS, KV, HEAD_DIM, LAYERS = 256, 512, 8, 2, 32, 2
WORDS = ["</s>", *(chr(33 + i) for i in range(94)), "ab", "cd", "ef", "gh", "ij"]
HALVES = {  # where a block holds numbers of two bytes, by kind
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
}  # fmt: skip
STEPS = {"Q8_0": 127.0, "IQ4_NL": 127.0, "Q6_K": 4000.0, "Q4_K": 1000.0, "Q5_K": 2000.0}
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_output": "Q5_0", "output": "Q8_0"}

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def random_rows(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> Bytes:
    """uint8 [outputs, bytes]: random steps, and scales such that weights are about 0.05."""
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (outputs, inputs // numbers, size), dtype=np.uint8)
    most = 0.15 / STEPS.get(kind, 15.0)
    for at in HALVES[kind]:
        scales = rng.uniform(-most, most, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def save_gguf(
    path: Path,
    architecture: str = "llama",
    kind: str = "Q4_K",
    kinds: dict[str, str] | None = None,
    tied: bool = False,
    seed: int = 0,
    without: str = "",
    metadata: dict[str, Any] | None = None,
) -> Path:
    """kinds: of some tensors by their short names; the others are of `kind`.
    without: a tensor to leave out.
    metadata: numbers and texts to write besides the usual.
    """
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    _describe(writer, metadata or {})

    def vector(name: str, values: np.ndarray[Any, Any]) -> None:
        if name != without:
            writer.add_tensor(name, values.astype(np.float32))

    def matrix(name: str, outputs: int, inputs: int) -> None:
        own = (kinds or {}).get(name.removesuffix(".weight").split(".")[-1], kind)
        if name == without:
            return
        if own in ("F32", "F16"):
            dtype = np.float32 if own == "F32" else np.float16
            writer.add_tensor(name, rng.normal(0, 0.05, (outputs, inputs)).astype(dtype))
            return
        rows = random_rows(own, outputs, inputs, rng)
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[own])

    matrix("token_embd.weight", len(WORDS), HIDDEN)
    for i in range(LAYERS):
        own = f"blk.{i}."
        vector(f"{own}attn_norm.weight", rng.uniform(0.5, 1.5, HIDDEN))
        for part, heads in (("q", HEADS), ("k", KV), ("v", KV)):
            matrix(f"{own}attn_{part}.weight", heads * HEAD_DIM, HIDDEN)
            if architecture == "qwen2":
                vector(f"{own}attn_{part}.bias", rng.normal(0, 0.5, heads * HEAD_DIM))
        if architecture == "qwen3":
            for part in "qk":
                vector(f"{own}attn_{part}_norm.weight", rng.uniform(0.5, 1.5, HEAD_DIM))
        matrix(f"{own}attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        vector(f"{own}ffn_norm.weight", rng.uniform(0.5, 1.5, HIDDEN))
        matrix(f"{own}ffn_gate.weight", WIDTH, HIDDEN)
        matrix(f"{own}ffn_up.weight", WIDTH, HIDDEN)
        matrix(f"{own}ffn_down.weight", HIDDEN, WIDTH)
    vector("output_norm.weight", rng.uniform(0.5, 1.5, HIDDEN))
    if not tied:
        matrix("output.weight", len(WORDS), HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: GGUFWriter, metadata: dict[str, Any]) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_token_merges(["a b", "c d", "e f", "g h", "i j"])
    writer.add_eos_token_id(0)
    for name, value in metadata.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)


def tiny_gguf(
    path: Path,
    slower: Sequence[float] = (),
    scaling: tuple[str, float, int] | None = None,
    changed: Mapping[str, tuple[int, ...] | None] | None = None,
) -> Path:
    """A Llama of one layer over eight tokens, in float32. slower: what each pair's frequency is
    divided by, as llama.cpp's converter writes for Llama 3. scaling: kind, factor and the context
    before. changed: by name, the size that a tensor has instead, None where it is left out."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling[0]))
        writer.add_rope_scaling_factor(scaling[1])
        writer.add_rope_scaling_orig_ctx_len(scaling[2])
    if slower:
        writer.add_tensor("rope_freqs.weight", np.array(slower, np.float32))
    writer.add_vocab_size(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*"abcdef", "ab", "<end>"])
    writer.add_token_types([1] * 7 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(7)
    sizes = {
        "token_embd": (8, 16), "output": (8, 16), "output_norm": (16,),
        "blk.0.attn_norm": (16,), "blk.0.ffn_norm": (16,), "blk.0.attn_q": (16, 16),
        "blk.0.attn_k": (8, 16), "blk.0.attn_v": (8, 16), "blk.0.attn_output": (16, 16),
        "blk.0.ffn_gate": (24, 16), "blk.0.ffn_up": (24, 16), "blk.0.ffn_down": (16, 24),
    }  # fmt: skip
    for name, size in {**sizes, **(changed or {})}.items():
        if size is None:
            continue
        writer.add_tensor(f"{name}.weight", rng.normal(size=size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LARGE, SMALL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"


SAID = {"basename": "Qwen2.5-Coder", "size_label": "1.5B", "finetune": "Instruct-GGUF"}


def saying(path: Path, **said: str) -> Path:
    """A file that says this of itself and holds nothing."""
    writer = GGUFWriter(path, "qwen2")
    for name, words in said.items():
        writer.add_string(f"general.{name}", words)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
