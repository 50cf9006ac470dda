"""State of a training run in one file, which PyTorch opens as tensors and plain values alone."""

from __future__ import annotations

import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from decoders.common.errors import Damaged
from decoders.common.files import write_atomically


def keep(path: Path, state: dict[str, Any]) -> None:
    """Write a state: tensors, numbers, texts and None, in any depth of dicts and lists. A kill
    leaves the old file or the new one."""
    made = io.BytesIO()
    torch.save(state, made)
    write_atomically(path, made.getvalue())


def kept(path: Path, device: torch.device) -> dict[str, Any] | None:
    """What `keep` wrote, its tensors on the device; None where there is none.

    Raises Damaged for another file, one that holds code among them.
    """
    if not path.is_file():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise Damaged(
            f"{path} is no checkpoint of a training run, or a damaged one; delete it to start over"
        ) from error
    if not isinstance(state, dict):
        raise Damaged(f"{path} holds something else than a training run; delete it to start over")
    return state
