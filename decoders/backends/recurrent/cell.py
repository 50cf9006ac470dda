"""One step of a recurrent drafter over the target's final states: gated blocks, no attention,
no cache. Zhang et al., "Recurrent Drafter for Fast Speculative Decoding" (2403.09919); Ankner et
al., "Hydra" (2402.05109); Li et al., "EAGLE" (2401.15077).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.tensor_files import header_of, own_config, require
from ..weights.int8 import to_int8

CELL = "recurrent.safetensors"
STEP = ".step"


@dataclass(frozen=True)
class CellConfig:
    """hidden: the target's state size d.
    width: of each gated block.
    blocks: at least 1; the first reads the state next to the token's embedding, the others the
        state alone.
    eps: of the norms.
    """

    hidden: int
    width: int
    blocks: int = 2
    eps: float = 1e-5


class RecurrentCell(nn.Module):
    """s, e(x) -> the next s; shapes [..., d]. s_0 is the target's final state (after its last norm)
    at the newest position it has read; e(x) the target's embedding of the token that follows."""

    def __init__(self, config: CellConfig, drawn: bool = True) -> None:
        """drawn: whether its matrices are drawn at random, or left for `load` to fill."""
        super().__init__()
        self.config = config
        new = torch.randn if drawn else torch.empty
        d, w = config.hidden, config.width
        self.embed_norm = nn.Parameter(torch.ones(d))
        self.norm = nn.Parameter(torch.ones(d))  # in front of the head
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(d)) for _ in range(config.blocks))
        self.gate_up = nn.ParameterList()  # [2 w, 2 d], then [2 w, d]
        self.down = nn.ParameterList()  # [d, w]
        for block in range(config.blocks):
            inputs = d if block else 2 * d
            gate_up, down = new(2 * w, inputs), new(d, w)
            if drawn:  # scaling what holds nothing would import PyTorch's compiler, a second
                gate_up, down = gate_up * inputs**-0.5, down * 0.1 * w**-0.5
            self.gate_up.append(nn.Parameter(gate_up))
            self.down.append(nn.Parameter(down))

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:
        """The next state [..., d], of a state and the embedding of the token that follows it."""
        d, eps = self.config.hidden, self.config.eps
        for block, (norm, gate_up, down) in enumerate(
            zip(self.norms, self.gate_up, self.down, strict=True)
        ):
            x = F.rms_norm(state, (d,), norm, eps)
            if block == 0:
                x = torch.cat([x, F.rms_norm(embedded, (d,), self.embed_norm, eps)], -1)
            gate, up = F.linear(x, gate_up).chunk(2, -1)
            state = state + F.linear(F.silu(gate) * up, down)
        return state

    def read(self, state: Tensor) -> Tensor:
        """What the head's rows are multiplied by; [..., d]."""
        return F.rms_norm(state, (self.config.hidden,), self.norm, self.config.eps)

    def save(self, folder: Path, int8: bool = False) -> None:
        """Save in bfloat16, with `config.json` next to it. int8: its matrices in that, half as
        large, the step of each row under the matrix's name and STEP."""
        from safetensors.torch import save_file

        state = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in self.named_parameters()}
        for name in [name for name, value in state.items() if int8 and value.ndim == 2]:
            kept = to_int8(state[name])
            state[name], state[name + STEP] = kept.values, kept.scale
        save_file(state, folder / CELL, metadata={"format": "pt"})
        record = {"kind": "recurrent", **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(record, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> RecurrentCell:
        """Raises Damaged where a number or a tensor is not there, or a tensor has another shape."""
        from safetensors.torch import load_file

        with torch.device("meta"):
            cell = cls(own_config(folder, CellConfig), drawn=False)
        needed = {name: tuple(p.shape) for name, p in cell.named_parameters()}
        header = header_of(folder / CELL)
        require(folder, header, needed)
        held = load_file(folder / CELL, device=str(device))
        in_int8 = [name for name in needed if held[name].dtype == torch.int8]
        require(folder, header, {name + STEP: needed[name][:1] for name in in_int8})
        state = {name: held[name].to(dtype) for name in needed}
        for name in in_int8:
            state[name] *= held[name + STEP].to(dtype).unsqueeze(1)
        cell.load_state_dict(state, assign=True)
        return cell.requires_grad_(False)
