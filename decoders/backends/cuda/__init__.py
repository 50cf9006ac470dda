"""Models on CUDA: recorded passes and rounds, and kernels in Triton."""

from importlib.util import find_spec

import torch

from ...sampling.race import ON_CUDA


def runs_triton(device: torch.device) -> bool:
    """Whether this is CUDA with a Triton whose kernels run."""
    from . import fused

    installed = device.type == "cuda" and find_spec("triton") is not None
    return installed and fused.broken(device) is None


def use_kernels(device: torch.device) -> None:
    """Let tokens be picked by a kernel from now on, where kernels run."""
    if runs_triton(device):
        from .race_kernel import pick

        ON_CUDA.pick = pick
