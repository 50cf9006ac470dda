"""An EAGLE-3 head while it is trained (Li et al., "EAGLE-3", 2503.01840), and its files.

One layer in plain tensors over whole rows: each step runs at every position at once, as drafts from
there would (training-time test, section 3.2). Its head is the target's own rows of the draft tokens
and its embedding the target's, neither of which is trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoders.backends.llama.model import rope_tables
from decoders.backends.llama.shape import Shape
from decoders.sampling.draft_vocab import DraftVocab

WEIGHTS = "model.safetensors"
PROPOSED = 4  # tokens that an engine is told to draft, where nobody says how many


@dataclass(frozen=True)
class HeadSizes:
    """shape: of the layer, with as many positions as the target has.
    intermediate: width of its gated block.
    features: after which of the target's layers it reads states.
    """

    shape: Shape
    intermediate: int
    features: tuple[int, ...]


class Eagle3Module(nn.Module):
    """The trained weights; named as in the files, the projections of a kind joined."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes
        shape, f = sizes.shape, sizes.intermediate
        d, heads = shape.hidden, shape.heads * shape.head_dim
        self.fc = _matrix(d, len(sizes.features) * d)
        self.embed_norm, self.state_norm, self.mlp_norm, self.norm = (
            nn.Parameter(torch.ones(d)) for _ in range(4)
        )
        self.qkv = _matrix(heads + 2 * shape.kv_heads * shape.head_dim, 2 * d)
        self.out = _matrix(d, heads, 0.1)
        self.gate_up = _matrix(2 * f, d)
        self.down = _matrix(d, f, 0.1)
        ((cos, sin),) = rope_tables(shape, torch.device("cpu"), torch.float32)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, features: Tensor, embedded: Tensor, steps: int) -> Tensor:
        """Every step's states, ready for the head, at the position that they predict at.

        features: [B, T, n * d], the target's states at each position.
        embedded: [B, T, d] of the token there.

        Returns [k, B, T, d]. Step s at a position goes on from the target's state s positions
        before; the first s positions of a row count nowhere.
        """
        b, t, _ = embedded.shape
        shape = self.sizes.shape
        state = F.linear(features, self.fc)
        causal = torch.ones(t, t, dtype=torch.bool, device=state.device).tril()
        keys: list[Tensor] = []  # a step's, [B, H, T, D]
        values: list[Tensor] = []
        made = []
        for step in range(1, steps + 1):
            near = min(step, t)
            ahead = F.pad(embedded[:, near:], (0, 0, 0, near))  # the token after this step's state
            normed = self._normed(state, self.state_norm)
            both = torch.cat([self._normed(ahead, self.embed_norm), normed], -1)
            heads = F.linear(both, self.qkv).view(b, t, -1, shape.head_dim).transpose(1, 2)
            q, k, v = heads.tensor_split([shape.heads, shape.heads + shape.kv_heads], 1)
            q, k = self._turned(q, step - 1), self._turned(k, step - 1)
            group = shape.heads // shape.kv_heads
            keys.append(k.repeat_interleave(group, 1))
            values.append(v.repeat_interleave(group, 1))
            a = _attended(q, keys, values, causal).transpose(1, 2).reshape(b, t, -1)
            h = normed + F.linear(a, self.out)
            gate, up = F.linear(self._normed(h, self.mlp_norm), self.gate_up).chunk(2, -1)
            state = h + F.linear(F.silu(gate) * up, self.down)
            read = self._normed(state, self.norm)
            made.append(F.pad(read[:, : t - near], (0, 0, near, 0)))
        return torch.stack(made)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.sizes.shape.norm_eps)

    def _turned(self, x: Tensor, ahead: int) -> Tensor:
        """[B, H, T, D] turned to positions that many after their own."""
        t, half = x.shape[2], x.shape[-1] // 2
        # the last ones, of no account, would lie beyond the table
        at = torch.arange(ahead, ahead + t, device=x.device).clamp(max=len(self.cos) - 1)
        cos, sin = self.cos[at].to(x.dtype), self.sin[at].to(x.dtype)
        return x * cos + x.roll(half, -1) * sin

    def save(
        self, folder: Path, vocab: DraftVocab, head: Tensor, target: str, config: dict[str, Any]
    ) -> None:
        """Save in bfloat16, in the form of the package `speculators`, which vLLM loads: weights and
        config.json.

        head: [N, d].
        target: the name that the config is to name. config: the target's, of transformers.
        """
        from safetensors.torch import save_file

        shape = self.sizes.shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        parts = dict(zip("qkv", self.qkv.detach().tensor_split([q, q + kv]), strict=True))
        gate, up = self.gate_up.detach().chunk(2)
        first = "layers.0."
        tensors = {
            "fc.weight": self.fc,
            "norm.weight": self.norm,
            "lm_head.weight": head,
            f"{first}input_layernorm.weight": self.embed_norm,
            f"{first}hidden_norm.weight": self.state_norm,
            f"{first}post_attention_layernorm.weight": self.mlp_norm,
            f"{first}self_attn.o_proj.weight": self.out,
            f"{first}mlp.gate_proj.weight": gate,
            f"{first}mlp.up_proj.weight": up,
            f"{first}mlp.down_proj.weight": self.down,
            **{f"{first}self_attn.{name}_proj.weight": part for name, part in parts.items()},
        }
        stored = {n: t.detach().to("cpu", torch.bfloat16).contiguous() for n, t in tensors.items()}
        to_target = vocab.to_target.cpu()
        known = torch.zeros(vocab.target_vocab, dtype=torch.bool)
        known[to_target] = True
        stored |= {"d2t": to_target - torch.arange(len(to_target)), "t2d": known}
        save_file(stored, folder / WEIGHTS, {"format": "pt"})
        own = self._config(len(to_target), target, config)
        (folder / "config.json").write_text(json.dumps(own, indent=1), encoding="utf-8")

    def _config(self, draft_vocab: int, target: str, config: dict[str, Any]) -> dict[str, Any]:
        layer = {
            **{name: config[name] for name in ROTARY if name in config},
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "hidden_act": "silu",
            "hidden_size": self.sizes.shape.hidden,
            "intermediate_size": self.sizes.intermediate,
            "num_hidden_layers": 1,
            "num_attention_heads": self.sizes.shape.heads,
            "num_key_value_heads": self.sizes.shape.kv_heads,
            "head_dim": self.sizes.shape.head_dim,
            "max_position_embeddings": self.sizes.shape.context,
            "rms_norm_eps": self.sizes.shape.norm_eps,
            "vocab_size": self.sizes.shape.vocab,
            "tie_word_embeddings": False,
        }
        proposal = {
            "proposal_type": "greedy",
            "speculative_tokens": PROPOSED,
            "verifier_accept_k": 1,
            "accept_tolerance": 0.0,
        }
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "dtype": "bfloat16",
            "draft_vocab_size": draft_vocab,
            "norm_before_residual": True,
            "norm_before_fc": False,
            "fc_norm": False,
            "norm_output": False,
            "embed_requires_grad": False,
            "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": list(self.sizes.features),
            "transformer_layer_config": layer,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {
                    "name_or_path": target,
                    "architectures": config["architectures"],
                },
            },
        }


ROTARY = ("rope_parameters", "rope_theta", "rope_scaling")


def _matrix(rows: int, columns: int, size: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * size * columns**-0.5)


def _attended(q: Tensor, keys: list[Tensor], values: list[Tensor], causal: Tensor) -> Tensor:
    """q [B, H, T, D] over the first step's keys up to its own position, and over its own position's
    of the later steps: the first come from the target's states, the others are this draft's."""
    scale = q.shape[-1] ** -0.5
    scores = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(~causal, -torch.inf)
    own = [(q * k).sum(-1, keepdim=True) * scale for k in keys[1:]]
    shares = torch.cat([scores, *own], -1).softmax(-1)
    t = keys[0].shape[2]
    made = shares[..., :t] @ values[0]
    for at, v in enumerate(values[1:], t):
        made = made + shares[..., at : at + 1] * v
    return made
