"""Kernels that sample, by the type of device; without them PyTorch's own operations do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass
class SamplingKernels:
    """Functions of the kernels in C++ and in Triton (backends/cpp_kernels.py, and race_kernel.py in
    backends/cuda); None until they are loaded.

    pick, pick_chain: as `race.pick` of tensors, and of numbers. On CUDA of one token a row.
    """

    pick: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], Tensor] | None = None
    pick_chain: Callable[[Tensor, float, int, int, Tensor | None, int], Tensor] | None = None


ON_CPU, ON_CUDA = SamplingKernels(), SamplingKernels()
