"""Wait for a device, so that a clock read after it means something."""

import torch


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
