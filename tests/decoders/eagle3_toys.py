"""Random EAGLE-3 heads in the form of the package `speculators`, and their drafts by another road:
from scratch at every token, float64, nothing kept."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

D, HEADS, KV, HEAD, WIDE, THETA, EPS = 32, 4, 2, 8, 64, 500.0, 1e-5


def save_head(
    folder: Path,
    kind: str = "llama",
    vocab: int = 16,
    kept: list[int] | None = None,
    features: tuple[int, ...] = (1, 2),
    layers: int = 1,
    seed: int = 0,
    embedding: bool = False,
    target_hidden: int = D,
    **flags: bool,
) -> Path:
    """kept: target ids that it scores; None is all."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    scored = vocab if kept is None else len(kept)
    tensors: dict[str, Tensor] = {
        "fc.weight": torch.randn(D, len(features) * target_hidden) * 0.3,
        "norm.weight": torch.rand(D) + 0.5,
        "lm_head.weight": torch.randn(scored, D) * 0.5,
    }
    if embedding:
        tensors["embed_tokens.weight"] = torch.randn(vocab, D)
    if flags.get("norm_before_fc"):
        tensors["input_norm.weight"] = torch.rand(len(features) * target_hidden) + 0.5
    if flags.get("fc_norm"):
        for i in range(len(features)):
            tensors[f"fc_norm.{i}.weight"] = torch.rand(target_hidden) + 0.5
    for i in range(layers):
        at, inputs = f"layers.{i}.", D if i else 2 * D
        for name, rows in (("q", HEADS), ("k", KV), ("v", KV)):
            weight = torch.randn(rows * HEAD, inputs) * 0.4
            tensors[f"{at}self_attn.{name}_proj.weight"] = weight
        tensors[f"{at}self_attn.o_proj.weight"] = torch.randn(D, HEADS * HEAD) * 0.4
        for name in ("gate", "up"):
            tensors[f"{at}mlp.{name}_proj.weight"] = torch.randn(WIDE, D) * 0.4
        tensors[f"{at}mlp.down_proj.weight"] = torch.randn(D, WIDE) * 0.4
        norms = ["input_layernorm", "post_attention_layernorm", *([] if i else ["hidden_norm"])]
        for name in norms:
            tensors[f"{at}{name}.weight"] = torch.rand(D) + 0.5
        if kind == "qwen3":
            for name in "qk":
                tensors[f"{at}self_attn.{name}_norm.weight"] = torch.rand(HEAD) + 0.5
    if kept is not None:
        tensors["d2t"] = torch.tensor(kept) - torch.arange(scored)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool)
        tensors["t2d"][kept] = True
    save_file(tensors, folder / "model.safetensors")
    layer = {
        "model_type": kind,
        "hidden_size": D,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD,
        "max_position_embeddings": 64,
        "rms_norm_eps": EPS,
        "vocab_size": vocab,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }
    config: dict[str, Any] = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": scored,
        "eagle_aux_hidden_state_layer_ids": list(features),
        "transformer_layer_config": layer,
        **flags,
    }
    if target_hidden != D:
        config["target_hidden_size"] = target_hidden
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@dataclass
class Reference:
    """A head's numbers for a sequence. embed: the target's, for a head without its own."""

    folder: Path
    embed: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        from safetensors.torch import load_file

        self.t = {
            n: t.double() if t.is_floating_point() else t
            for n, t in load_file(self.folder / "model.safetensors").items()
        }
        self.config = json.loads((self.folder / "config.json").read_text())

    def draft(self, ids: list[int], features: list[Tensor], k: int) -> list[int]:
        """The k likeliest tokens in turn after `ids`, whose last token the target has not read.

        features: [n, d] the target's states after each layer, of the n = len(ids) - 1 others.
        """
        states = self._combined(features)  # [n, d]
        made: list[int] = []
        for _ in range(k):
            given, logits = self._run(torch.tensor((ids + made)[1:]), states)
            best = int(logits[-1].argmax())
            made.append(best + int(self.t["d2t"][best]) if "d2t" in self.t else best)
            states = torch.cat([states, given[-1:]])
        return made

    def _combined(self, features: list[Tensor]) -> Tensor:
        parts = [each.double() for each in features]
        if self.config.get("fc_norm"):
            parts = [norm(x, self.t[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)]
        x = torch.cat(parts, -1)
        if self.config.get("norm_before_fc"):
            x = norm(x, self.t["input_norm.weight"])
        return x @ self.t["fc.weight"].T

    def _run(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """All of a sequence's tokens [n] with the states before them; states after, and logits."""
        own = self.t.get("embed_tokens.weight")
        e = self.embed(ids).double() if own is None else own[ids]
        h, layers = states, self.config["transformer_layer_config"]["num_hidden_layers"]
        for i in range(layers):
            w = {
                n.removeprefix(f"layers.{i}."): t
                for n, t in self.t.items()
                if n.startswith(f"layers.{i}.")
            }
            x = norm(e if i == 0 else h, w["input_layernorm.weight"])
            if i == 0:
                normed = norm(h, w["hidden_norm.weight"])
                h = normed if self.config.get("norm_before_residual") else h
                x = torch.cat([x, normed], -1)
            h = h + attention(x, w)
            y = norm(h, w["post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T)
            h = h + (gate * (y @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
        read = norm(h, self.t["norm.weight"])
        logits = read @ self.t["lm_head.weight"].T
        return (read if self.config.get("norm_output") else h), logits


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def attention(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Causal, head by head; x [n, inputs]."""
    n = len(x)
    q, k, v = ((x @ w[f"self_attn.{c}_proj.weight"].T).view(n, -1, HEAD) for c in "qkv")
    if "self_attn.q_norm.weight" in w:
        q, k = norm(q, w["self_attn.q_norm.weight"]), norm(k, w["self_attn.k_norm.weight"])
    angles = torch.outer(
        torch.arange(n).double(), THETA ** (-torch.arange(0, HEAD, 2).double() / HEAD)
    )
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def turned(y: Tensor) -> Tensor:
        low, high = y.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    q, k = turned(q), turned(k)
    made = []
    for head in range(HEADS):
        other = head // (HEADS // KV)
        scores = q[:, head] @ k[:, other].T * HEAD**-0.5
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        made.append(scores.softmax(-1) @ v[:, other])
    return torch.cat(made, -1) @ w["self_attn.o_proj.weight"].T
