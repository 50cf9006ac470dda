"""Random models in GGUF files, of any kinds of blocks, as llama.cpp's converter lays them out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

WORDS = ["</s>", *(chr(33 + i) for i in range(94)), "ab", "cd", "ef", "gh", "ij"]
HALVES = {  # where a block holds numbers of two bytes, by kind
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "MXFP4": (),
}  # fmt: skip
STEPS = {"Q8_0": 127.0, "IQ4_NL": 127.0, "Q6_K": 4000.0, "Q4_K": 1000.0, "Q5_K": 2000.0}
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_output": "Q5_0", "output": "Q8_0"}

WINDOWS = {
    "gemma2": 100,
    "gemma3": 100,
    "phi3": 512,
    "gpt-oss": 100,
}  # llama.cpp passes over those of Phi-3


@dataclass(frozen=True)
class Sizes:
    """experts: of a layer, of which a token takes `taken`; 0 for one MLP. width: of an MLP."""

    hidden: int = 256
    width: int = 512
    heads: int = 8
    kv: int = 2
    head_dim: int = 32
    layers: int = 2
    experts: int = 0
    taken: int = 3
    context: int = 512


SIZES = {
    "qwen3moe": Sizes(experts=8),
    "olmoe": Sizes(kv=8, experts=6),  # llama.cpp's has no groups
    "llama-experts": Sizes(experts=6),
    "gpt-oss": Sizes(experts=6),
}
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def random_rows(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> Bytes:
    """uint8 [outputs, bytes]: random steps, and scales such that weights are about 0.05."""
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (outputs, inputs // numbers, size), dtype=np.uint8)
    most = 0.15 / STEPS.get(kind, 15.0)
    for at in HALVES[kind]:
        scales = rng.uniform(-most, most, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if kind == "MXFP4":  # an exponent: steps of an eighth of the most, or less
        blocks[:, :, 0] = rng.integers(119, 122, blocks.shape[:2])
    return blocks.reshape(outputs, -1)


def apart(architecture: str) -> tuple[str, str]:
    """The name in files, and what sets this one apart."""
    if architecture == "gpt-oss":
        return architecture, ""
    name, _, kept = architecture.partition("-")
    return name, kept


def save_gguf(
    path: Path,
    architecture: str = "llama",
    kind: str = "Q4_K",
    kinds: dict[str, str] | None = None,
    tied: bool = False,
    seed: int = 0,
    sizes: Sizes | None = None,
    metadata: dict[str, Any] | None = None,
    slower: Sequence[float] = (),
    changed: Mapping[str, tuple[int, ...] | None] | None = None,
) -> Path:
    """architecture: with `-long` behind it half of every head turns, by `longrope`; others with
        more behind them have SIZES of their own.
    kinds: of some tensors by their short names; the others are of `kind`.
    metadata: numbers and texts to write besides the usual.
    slower: what each pair's frequency is divided by, as llama.cpp's converter writes for Llama 3.
    changed: by name, the size that a tensor has instead, None where it is left out.
    """
    rng = np.random.default_rng(seed)
    sizes = sizes or SIZES.get(architecture, Sizes())
    architecture, kept = apart(architecture)
    writer = GGUFWriter(path, architecture)
    describe(writer, sizes, metadata or {})
    if kept == "long":
        writer.add_rope_dimension_count(sizes.head_dim // 2)
        writer.add_rope_scaling_orig_ctx_len(sizes.context)
        writer.add_rope_scaling_attn_factors(1.1)
        for which, most in (("long", 9.0), ("short", 2.5)):
            factors = np.linspace(1, most, sizes.head_dim // 4, dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)

    other = {f"{name}.weight": size for name, size in (changed or {}).items()}

    def vector(name: str, values: np.ndarray[Any, Any]) -> None:
        if name not in other:
            writer.add_tensor(name, values.astype(np.float32))

    def matrix(name: str, outputs: int, inputs: int, several: int = 0) -> None:
        own = (kinds or {}).get(name.removesuffix(".weight").split(".")[-1], kind)
        if name in other:
            return
        if own in ("F32", "F16"):
            dtype = np.float32 if own == "F32" else np.float16
            size = (several, outputs, inputs) if several else (outputs, inputs)
            writer.add_tensor(name, rng.normal(0, 0.05, size).astype(dtype))
            return
        rows = random_rows(own, max(1, several) * outputs, inputs, rng)
        if several:
            rows = rows.reshape(several, outputs, -1)
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[own])

    matrix("token_embd.weight", len(WORDS), sizes.hidden)
    for i in range(sizes.layers):
        own = f"blk.{i}."
        if architecture != "olmo2":
            vector(f"{own}attn_norm.weight", rng.uniform(0.5, 1.5, sizes.hidden))
            name = "post_attention_norm" if architecture == "gpt-oss" else "ffn_norm"
            vector(f"{own}{name}.weight", rng.uniform(0.5, 1.5, sizes.hidden))
        parts = [("q", sizes.heads), ("k", sizes.kv), ("v", sizes.kv)]
        if architecture == "phi3":
            parts = [("qkv", sizes.heads + 2 * sizes.kv)]
        for part, heads in parts:
            matrix(f"{own}attn_{part}.weight", heads * sizes.head_dim, sizes.hidden)
            if architecture in ("qwen2", "gpt-oss"):
                vector(f"{own}attn_{part}.bias", rng.normal(0, 0.5, heads * sizes.head_dim))
        if architecture in ("qwen3", "gemma3", "olmo2", "qwen3moe", "olmoe"):
            for part, heads in (("q", sizes.heads), ("k", sizes.kv)):
                size = (
                    heads * sizes.head_dim if architecture in ("olmo2", "olmoe") else sizes.head_dim
                )
                vector(f"{own}attn_{part}_norm.weight", rng.uniform(0.5, 1.5, size))
        if architecture in ("gemma2", "gemma3", "olmo2"):
            for name in ("post_attention_norm", "post_ffw_norm"):
                vector(f"{own}{name}.weight", rng.uniform(0.5, 1.5, sizes.hidden))
        matrix(f"{own}attn_output.weight", sizes.hidden, sizes.heads * sizes.head_dim)
        if architecture == "gpt-oss":
            vector(f"{own}attn_output.bias", rng.normal(0, 0.5, sizes.hidden))
            vector(f"{own}attn_sinks.weight", rng.normal(0, 2, sizes.heads))
            vector(f"{own}ffn_gate_inp.bias", rng.normal(0, 1, sizes.experts))
            for part in ("gate", "up", "down"):
                outputs = sizes.hidden if part == "down" else sizes.width
                biases = rng.normal(0, 3 if part != "down" else 0.3, (sizes.experts, outputs))
                vector(f"{own}ffn_{part}_exps.bias", biases)
        if sizes.experts:
            vectors = rng.normal(0, 0.2, (sizes.experts, sizes.hidden))
            vector(f"{own}ffn_gate_inp.weight", vectors)
            for part in ("gate", "up", "down"):
                of = (sizes.width, sizes.hidden)[:: -1 if part == "down" else 1]
                matrix(f"{own}ffn_{part}_exps.weight", *of, sizes.experts)
            continue
        if architecture != "phi3":
            matrix(f"{own}ffn_gate.weight", sizes.width, sizes.hidden)
        matrix(
            f"{own}ffn_up.weight", (2 if architecture == "phi3" else 1) * sizes.width, sizes.hidden
        )
        matrix(f"{own}ffn_down.weight", sizes.hidden, sizes.width)
    vector("output_norm.weight", rng.uniform(0.5, 1.5, sizes.hidden))
    if not tied:
        matrix("output.weight", len(WORDS), sizes.hidden)
    if slower:
        vector("rope_freqs.weight", np.array(slower))
    for name, size in other.items():
        if size is not None:
            writer.add_tensor(name, rng.normal(size=size).astype(np.float32))
    return written(writer)


def written(writer: GGUFWriter) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(writer.path)


def describe(writer: GGUFWriter, sizes: Sizes, metadata: dict[str, Any]) -> None:
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.width)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    if sizes.experts:
        writer.add_expert_count(sizes.experts)
        writer.add_expert_used_count(sizes.taken)
    if writer.arch in ("qwen3moe", "gpt-oss"):
        writer.add_expert_feed_forward_length(sizes.width)
    if writer.arch == "gemma2":
        writer.add_attn_logit_softcapping(0.5)
        writer.add_final_logit_softcapping(3.0)
    if writer.arch in WINDOWS:
        writer.add_sliding_window(WINDOWS[writer.arch])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_token_merges(["a b", "c d", "e f", "g h", "i j"])
    writer.add_eos_token_id(0)
    for name, value in metadata.items():
        writers = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        writers[type(value)](name, value)


def slower_by_llama3(pairs: int, factor: float, base: float) -> list[float]:
    """What each pair's frequency is divided by: 1 for quick pairs, the factor for slow ones."""
    turns = [8192 * base ** (-i / pairs) / (2 * math.pi) for i in range(pairs)]
    least = 1 / factor
    return [1 / min(max((turn - 1) / 3 * (1 - least) + least, least), 1) for turn in turns]


TINY = Sizes(hidden=16, width=24, heads=2, kv=1, head_dim=8, layers=1, context=64)


def tiny_gguf(path: Path, **how: Any) -> Path:
    """A Llama of one layer in float32. how: as of `save_gguf`."""
    return save_gguf(path, kind="F32", sizes=TINY, **how)


LARGE, SMALL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
SAID = {"basename": "Qwen2.5-Coder", "size_label": "1.5B", "finetune": "Instruct-GGUF"}


def saying(path: Path, **said: str) -> Path:
    """A file that says this of itself and holds nothing."""
    writer = GGUFWriter(path, "qwen2")
    for name, words in said.items():
        writer.add_string(f"general.{name}", words)
    return written(writer)


ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2", "phi3", "qwen3moe", "olmoe"),
    *(
        "gpt-oss",
        "phi3-long",
        "llama-experts",
        "llama-linear",
        "llama-yarn",
        "qwen2-yarn",
        "llama-llama3",
    ),
)
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
SCALED: dict[str, dict[str, Any]] = {
    "llama-linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "llama-yarn": {**YARN, "rope.scaling.original_context_length": 128},
    "qwen2-yarn": {**YARN, "rope.scaling.original_context_length": 64},
}
SLOWER = {"llama-llama3": slower_by_llama3(16, 32.0, 10_000.0)}
LONGER = [(7 * i * i + 3 * i) % 99 + 1 for i in range(150)]  # than the windows here
GOLDEN_SIZES = {"gemma3": Sizes(layers=7)}
GOLDEN = Path(__file__).with_name("llama_cpp_logits.json")  # of LONGER, by tests/engines


def save_golden_gguf(path: Path, architecture: str) -> Path:
    """In float32, with layers of every kind; of which GOLDEN has llama.cpp's chances."""
    sizes, tied = GOLDEN_SIZES.get(architecture), architecture == "gemma2"  # it has no other head
    family, _ = apart(architecture)
    said = {f"{family}.{key}": value for key, value in SCALED.get(architecture, {}).items()}
    slower = SLOWER.get(architecture, ())
    return save_gguf(
        path, architecture, "F32", tied=tied, sizes=sizes, metadata=said, slower=slower
    )
