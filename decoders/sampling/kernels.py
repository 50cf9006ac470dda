"""Kernels that sample on a CPU, where they are loaded; without them PyTorch's own operations do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass
class SamplingKernels:
    """Functions of the C++ kernels (backends/cpp_kernels.py); None until they are loaded.

    draw: probabilities [n, V] in float32 or float64 and heights [n] -> tokens [n].
    soften: logits [T, V] in bfloat16, V a multiple of 16, and a temperature -> probabilities
        [T, V] in float32.
    """

    draw: Callable[[Tensor, Tensor], Tensor] | None = None
    soften: Callable[[Tensor, float], Tensor] | None = None


ON_CPU = SamplingKernels()
