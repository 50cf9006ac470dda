"""The scaling of a GGUF file's rotary positions, which transformers' loader leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..backends.llama.rope import rotation_of
from ..common.errors import DraftpickError

LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # the values of every Llama from 3.1 on; a file holds only what they come to


def scaling_of(gguf: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the config that the loader made lacks in its `rope_parameters`; nothing where positions
    are not scaled. Raises DraftpickError for a scaling that has no name there."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    fields = {name.partition(".")[2]: field for name, field in reader.fields.items()}

    def stored(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    kind = stored("rope.scaling.type") or "none"
    if kind in ("linear", "yarn"):
        original = stored("rope.scaling.original_context_length")
        known = {} if original is None else {"original_max_position_embeddings": original}
        return {"rope_type": kind, "factor": stored("rope.scaling.factor"), **known}
    if kind != "none":
        raise DraftpickError(f"positions scaled by {kind!r} are not supported")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    if "rope_freqs.weight" not in tensors:
        return {}
    slower = torch.from_numpy(tensors["rope_freqs.weight"].copy()).float()
    plain = config["rope_parameters"]
    scaling = {**LLAMA3, "factor": float(slower.max())}
    one, other = (
        torch.tensor(rotation_of({**config, "rope_parameters": rope}).frequencies)
        for rope in (plain, {**plain, **scaling})
    )
    if one.shape != slower.shape or not torch.allclose(other * slower, one, rtol=1e-3):
        raise DraftpickError("its position scaling differs from Llama 3's")
    return scaling
