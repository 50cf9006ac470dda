"""In which numbers a machine trains."""

from __future__ import annotations

import torch

from decoders.backends.weights.packed import can_pack


def training_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it; a CPU without it is several times faster in
    float32."""
    half = device.type != "cpu" or can_pack(device, torch.bfloat16)
    return torch.bfloat16 if half else torch.float32


def autocast(device: torch.device) -> torch.autocast:
    """Products in `training_dtype`."""
    dtype = training_dtype(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
