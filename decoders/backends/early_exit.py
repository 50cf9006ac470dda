"""Early exit: the target's first layers, a small adapter and the target's own head, as drafter.

The lower layers' KV belongs to the target and is never computed twice: what the exit runs while it
drafts, the target's own pass finds done (`LlamaBackend.lower`). Only the adapter has a cache of its
own. Kim et al. (BiLD, section 4.4) draft with an early exit; the adapter replaces their joint
fine-tuning, so that the target stays as it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .llama import LlamaBackend
from .llama_model import (
    LayerWeights,
    Shape,
    all_heads,
    layer,
    moved,
    rms_norm,
    rope_table,
)
from .packed import dense

ADAPTER = "adapter.safetensors"


@dataclass(frozen=True)
class AdapterConfig:
    """exit_layer: target layers below the exit. blocks: trained layers above it."""

    exit_layer: int
    blocks: int = 1


class Adapter(nn.Module):
    """`blocks` layers of the target's shape, a norm and a linear lens, over states [B, T, d].

    The lens maps the exit's states to the space of the target's final ones, where its head reads.
    """

    def __init__(
        self,
        shape: Shape,
        config: AdapterConfig,
        blocks: list[LayerWeights],
        norm: Tensor,
        lens: Tensor,
    ) -> None:
        super().__init__()
        self.shape, self.config = shape, config
        self.blocks = nn.ModuleList()
        for block in blocks:
            parts = {k: nn.Parameter(dense(t)) for k, t in block.tensors().items()}
            self.blocks.append(nn.ParameterDict(parts))
        self.norm = nn.Parameter(norm)
        self.lens = nn.Parameter(lens)
        self._rope = rope_table(shape, norm.device, norm.dtype)

    @classmethod
    def begin(cls, target: LlamaBackend, config: AdapterConfig) -> Adapter:
        """Untrained: the target's layers that follow the exit, no lens yet (see `fit_lens`)."""
        following = target.weights.layers[config.exit_layer : config.exit_layer + config.blocks]
        blocks = [moved(w, target.device, torch.float32) for w in following]
        norm = torch.ones(target.shape.hidden, device=target.device)
        lens = torch.eye(target.shape.hidden, device=target.device)
        return cls(target.shape, config, [_cloned(b) for b in blocks], norm, lens)

    @torch.no_grad()
    def fit_lens(self, states: Tensor, final: Tensor) -> None:
        """Ridge regression from states at the exit [B, T, d] to the target's final ones [B, T, d]
        (after its norm): a start from which training takes minutes instead of hours."""
        self.lens.copy_(torch.eye(self.shape.hidden))
        x, y = self(states).flatten(0, 1).float(), final.flatten(0, 1).float()
        gram = x.T @ x
        gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
        self.lens.copy_(torch.linalg.solve(gram, x.T @ y).T)

    @classmethod
    def load(cls, folder: Path, target: LlamaBackend) -> Adapter:
        from safetensors.torch import load_file

        state = load_file(folder / ADAPTER, device=str(target.device))
        config = AdapterConfig(**json.loads((folder / "config.json").read_text()))
        parameters = {k: v.to(target.dtype) for k, v in state.items()}
        if parameters["norm"].shape != target.weights.norm.shape:
            raise ValueError(
                f"{folder.name} was trained for hidden states of {len(parameters['norm'])}, this "
                f"target's have {target.shape.hidden}; train one with `draftpick align --kind exit`"
            )
        blocks = []
        for index in range(config.blocks):
            at = f"blocks.{index}."
            parts = {k.removeprefix(at): v for k, v in parameters.items() if k.startswith(at)}
            blocks.append(LayerWeights(**parts))
        adapter = cls(target.shape, config, blocks, parameters["norm"], parameters["lens"])
        return adapter.requires_grad_(False)

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        state = {k: v.detach().to(torch.bfloat16) for k, v in self.named_parameters()}
        save_file(state, folder / ADAPTER, metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(asdict(self.config), indent=1))

    def weights(self) -> list[LayerWeights]:
        return [LayerWeights(**dict(cast(nn.ParameterDict, b).items())) for b in self.blocks]

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, d] states at the exit -> [B, T, d] ready for the head; causal, no cache."""
        t = states.shape[1]
        rope = all_heads((self._rope[0][:t], self._rope[1][:t]), self.shape)
        for block in self.weights():
            states = layer(states, block, self.shape, rope, None)
        return self.read(states)

    def read(self, states: Tensor) -> Tensor:
        """What the head sees: normalised, then through the lens."""
        normed = rms_norm(states, self.norm, self.shape.norm_eps)
        return F.linear(normed, self.lens)


def _cloned(block: LayerWeights) -> LayerWeights:
    return LayerWeights(**{k: dense(t).clone() for k, t in block.tensors().items()})
