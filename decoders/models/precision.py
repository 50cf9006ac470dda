"""Which precision `--dtype auto` means for a model on this machine."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from ..backends.config import config_of
from ..backends.gguf.folder import saved_header
from ..backends.llama.loading import parts
from ..backends.llama.shape import not_int4
from ..backends.weights.int4 import GROUP
from .loaders import WORTH_COMPILING, not_native

ROUNDING_BACKENDS = ("auto", "native", "compiled")
LEVELS = 16  # of a 4-bit group
SAMPLED = 8  # rows looked at


def precision_of(asked: str, folder: Path, device: torch.device, backend: str) -> str:
    """`asked`, unless it is "auto".

    auto: on a CPU that has fast kernels for it the own one of a GGUF file that is large enough to
    pay, or int4 where the model's own weights have four bits, so that rounding them again changes
    little; else bfloat16.
    """
    if asked != "auto":
        return asked
    if device.type != "cpu" or backend not in ROUNDING_BACKENDS or not _has_kernels():
        return "bfloat16"
    header = saved_header(folder)
    if header is not None:
        return "file" if header.numbers >= WORTH_COMPILING else "bfloat16"
    fits = not_native(folder) is None and not_int4(config_of(folder)) is None
    return "int4" if fits and four_bit(folder) else "bfloat16"


def four_bit(folder: Path) -> bool:
    """Whether the model's matrices came from a 4-bit file: no group of 32 inputs that is looked at
    has more than 16 values."""
    for part in parts(folder):
        with safe_open(part, framework="pt") as file:
            name = next((name for name in file.keys() if "down_proj" in name), None)  # noqa: SIM118
            if name is not None:
                rows = file.get_slice(name)[:SAMPLED]  # [SAMPLED, in]
                groups = rows.float().unflatten(-1, (-1, GROUP)).sort(-1).values
                distinct = 1 + (groups.diff(dim=-1) != 0).sum(-1)
                return bool((distinct <= LEVELS).all())
    return False


def _has_kernels() -> bool:
    return "AVX" in torch.backends.cpu.get_cpu_capability()
