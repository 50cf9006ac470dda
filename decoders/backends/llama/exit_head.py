"""What lies above an early exit: from the states there to scores of draft tokens.

On an encoder-decoder it is a lens alone, a norm and a linear map in front of the target's own head
(`seq2seq_exit.py`). On the native backend there are trained layers below it (`exit_adapter.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.errors import DraftpickError
from ...common.tensor_files import header_of, own_config, require
from ...protocols import LayeredBackend
from ...sampling.draft_vocab import DraftVocab
from .model import rms_norm

ADAPTER = "adapter.safetensors"


@dataclass(frozen=True)
class AdapterConfig:
    """exit_layer: target layers below the exit.
    blocks: trained layers above it.
    """

    exit_layer: int
    blocks: int = 1


def check_exit(exit_layer: int, layers: int) -> None:
    """layers: the target's, or its decoder's. Raises DraftpickError where it has no such exit."""
    if not 0 < exit_layer < layers:
        raise DraftpickError(f"an exit must lie after layer 1 to {layers - 1}, not {exit_layer}")


class ReadOutHead:
    """The target's own reading of the states at an exit, on any backend that has one: untrained,
    without layers."""

    vocab: DraftVocab | None = None
    adapter_parameters = 0

    def __init__(self, target: LayeredBackend, exit_layer: int, state_size: int) -> None:
        self.target, self.exit_layer = target, exit_layer
        self.parameters = target.vocab_size * state_size  # the head's

    def read(self, states: Tensor, start: int) -> Tensor:
        return states[-1]

    def score(self, state: Tensor) -> Tensor:
        return self.target.read_out(state)


class Lens(nn.Module):
    """Maps states at an exit [..., d] to the space of the target's final ones, where its head
    reads. With the target's final norm and the identity it is the target's own reading of them."""

    def __init__(self, config: AdapterConfig, norm: Tensor, lens: Tensor, eps: float) -> None:
        super().__init__()
        self.config, self.eps = config, eps
        self.norm = nn.Parameter(norm)
        self.lens = nn.Parameter(lens)

    @torch.no_grad()
    def fit_lens(self, states: Tensor, final: Tensor) -> None:
        """Ridge regression from states at the exit [B, T, d] to the target's final ones [B, T, d]
        (after its norm): a start from which training takes minutes instead of hours."""
        self.lens.copy_(torch.eye(len(self.lens)))
        x, y = self(states).flatten(0, -2).float(), final.flatten(0, -2).float()
        gram = x.T @ x
        gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
        self.lens.copy_(torch.linalg.solve(gram, x.T @ y).T)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, d] states at the exit -> [B, T, d] ready for the head; causal, no cache."""
        return self.read(states)

    def read(self, states: Tensor) -> Tensor:
        """What the head sees: normalised, then through the lens."""
        return F.linear(rms_norm(states, self.norm, self.eps), self.lens)

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        state = {k: v.detach().to(torch.bfloat16) for k, v in self.named_parameters()}
        save_file(state, folder / ADAPTER, metadata={"format": "pt"})
        (folder / "config.json").write_text(
            json.dumps(asdict(self.config), indent=1), encoding="utf-8"
        )


def load_parts(
    folder: Path, hidden: int, device: torch.device, dtype: torch.dtype
) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """What `Lens.save` wrote. Raises ValueError where the target's states have another width, and
    Damaged where a number or a tensor is not there, or a tensor has another shape."""
    from safetensors.torch import load_file

    held = header_of(folder / ADAPTER)
    trained = held.get("norm", (hidden,))
    if trained != (hidden,):
        raise ValueError(
            f"{folder.name} was trained for hidden states of {trained[0]}, this target's have "
            f"{hidden}; train one with `draftpick align --kind exit`"
        )
    require(folder, held, {"norm": (hidden,), "lens": (hidden, hidden)})
    state = load_file(folder / ADAPTER, device=str(device))
    return own_config(folder, AdapterConfig), {k: v.to(dtype) for k, v in state.items()}
