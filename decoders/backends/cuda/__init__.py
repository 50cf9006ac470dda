"""Models on CUDA: recorded passes and rounds, and kernels in Triton."""

from importlib.util import find_spec

import torch

from ...sampling.race import ON_CUDA


def use_kernels(device: torch.device) -> None:
    """Let tokens be picked by a kernel from now on, if this is CUDA with Triton."""
    if device.type == "cuda" and find_spec("triton") is not None:
        from .race_kernel import pick

        ON_CUDA.pick = pick
