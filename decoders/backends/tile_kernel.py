"""The kernel of tiles.cpp: made by a C++ compiler for this machine, kept, and loaded once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .tiles import OUTS

SOURCE = Path(__file__).with_name("tiles.cpp")
FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512bf16", "amx-tile", "amx-bf16")


@lru_cache
def has_tiles() -> bool:
    """Whether this CPU multiplies bfloat16 by tiles (AMX)."""
    return bool(torch.cpu._is_amx_tile_supported())


def loaded() -> bool:
    return hasattr(torch.ops.draftpick, "int4_tiles")


def load_kernel(folder: Path, say: Callable[[str], None]) -> bool:
    """Whether products by tiles can be had; from `folder`, or made and put there, of which `say` is
    told, as it is where there is no C++ compiler that can."""
    if loaded():
        return True
    if not has_tiles() or not torch.cpu._init_amx():
        return False
    key = hashlib.sha256(repr((SOURCE.read_text(), torch.__version__, FLAGS)).encode()).hexdigest()
    path = folder / f"{key[:16]}-tiles.so"
    if not (_opened(path) or _made(path, say)):
        return False
    torch.library.register_fake("draftpick::int4_tiles", _shape)
    torch.library.register_fake("draftpick::int8_tiles", _shape)
    return True


def _shape(x: Tensor, values: Tensor, grid: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], values.shape[0] * OUTS)


def _opened(path: Path) -> bool:
    """False where there is none, or one that cannot be loaded."""
    if not path.exists():
        return False
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


def _made(path: Path, say: Callable[[str], None]) -> bool:
    """Compile to `path`, which is whole or not there, and load."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    say("compiling the products of int4 and int8 weights for this machine: once, ten seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        try:
            options = CppTorchOptions(extra_flags=[f"-m{flag}" for flag in FLAGS])
            builder = CppBuilder("tiles", [str(SOURCE)], BuildOption=options, output_dir=aside)
            builder.build()
            os.replace(builder.get_target_file_path(), path)
        except (CppCompileError, InvalidCxxCompiler, OSError) as error:
            lines = [line for line in str(error).splitlines() if "rror: " in line] or [str(error)]
            said = lines[0] or type(error).__name__
            say(f"drafts are verified by PyTorch's own products, which are slower: {said}")
            return False
    return _opened(path)
