"""State of a training run in one safetensors file: nothing that could hold code.

The tensors are the file's; lists, dicts and numbers around them are JSON in its metadata, in which
a tensor is its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from decoders.common.errors import Damaged
from decoders.common.files import write_atomically

STATE = "state"  # of the metadata


def keep(path: Path, state: dict[str, Any]) -> None:
    """Write a state: tensors, numbers, texts and None, in any depth of dicts and lists. A kill
    leaves the old file or the new one. Raises TypeError for anything else."""
    tensors: dict[str, Tensor] = {}

    def encoded(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = str(len(tensors))
            tensors[name] = value.detach().cpu().clone().contiguous()  # each with memory of its own
            return {"tensor": name}
        if isinstance(value, dict):  # as pairs: JSON's keys are texts alone, optimizers' are not
            return {"dict": [[key, encoded(each)] for key, each in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [encoded(each) for each in value]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"a checkpoint cannot keep a {type(value).__name__}")

    words = json.dumps(encoded(state))
    write_atomically(path, save(tensors, metadata={STATE: words}))


def kept(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What `keep` wrote, its tensors on the device, its tuples as lists; None where there is none.

    Raises Damaged for another file.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt", str(device)) as file:
            words = (file.metadata() or {})[STATE]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state: dict[str, Any] = _made(json.loads(words), tensors)
        return state
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Damaged(
            f"{path} is no checkpoint of a training run, or a damaged one; delete it to start over"
        ) from error


def _made(encoded: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(encoded, dict):
        return encoded
    ((kind, value),) = encoded.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _made(each, tensors) for key, each in value}
    return [_made(each, tensors) for each in value]
