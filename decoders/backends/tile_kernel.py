"""The kernels in C++: made by a compiler for this machine, kept, and loaded once."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .. import chance
from ..machine import cpu_name
from .tiles import NARROW, OUTS

NAMES = ("tiles.cpp", "row_attention.cpp", "draws.cpp", "norms.cpp")
SOURCES = [Path(__file__).with_name(name) for name in NAMES]
FLAGS = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"]
NEEDED = ("amx_tile", "amx_bf16", "avx512_bf16")  # of PyTorch's names
_LOADING = threading.Lock()


@lru_cache
def has_tiles() -> bool:
    """Whether this CPU multiplies bfloat16 by tiles (AMX)."""
    return bool(torch.cpu._is_amx_tile_supported())


def loaded() -> bool:
    return hasattr(torch.ops.draftpick, "int4_tiles")


def version() -> str:
    """Of the kernels and their use: figures measured with others are not their own."""
    code = b"".join(each.read_bytes() for each in SOURCES)
    return hashlib.sha256(code + str(NARROW).encode()).hexdigest()[:8]


def load_kernel(folder: Path, say: Callable[[str], None]) -> bool:
    """Whether the kernels can be had; from `folder`, or made and put there, of which `say` is
    told, as it is where there is no C++ compiler that can."""
    with _LOADING:
        if loaded():
            return True
        known = torch.cpu.get_capabilities() if has_tiles() else {}
        if not all(known.get(name) for name in NEEDED) or not torch.cpu._init_amx():
            return False
        where = (torch.__version__, cpu_name(), sorted(known.items()))
        key = hashlib.sha256(repr((version(), FLAGS, where)).encode()).hexdigest()[:16]
        path = folder / f"{key}-tiles.so"
        if not (path.exists() and _opened(path) is None):
            refused = _made(path, say) or _opened(path)
            if refused is not None:
                say(f"drafts are verified by PyTorch's own products, which are slower: {refused}")
                return False
        torch.library.register_fake("draftpick::int4_tiles", _shape)
        torch.library.register_fake("draftpick::int8_tiles", _shape)
        torch.library.register_fake("draftpick::attend_rows", _joined)
        chance.draw_by(torch.ops.draftpick.draw_rows)
        return True


def _shape(x: Tensor, values: Tensor, grid: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], values.shape[0] * OUTS)


def _joined(q: Tensor, room: Tensor, rows: Tensor, begins: Tensor, bits: Tensor) -> Tensor:
    return q.new_empty(q.shape[1], q.shape[0] * q.shape[2])


def _opened(path: Path) -> str | None:
    """Load it; why that cannot be, or None."""
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        return str(error)
    return None


def _made(path: Path, say: Callable[[str], None]) -> str | None:
    """Compile to `path`, which is whole or not there; why that cannot be, or None."""
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    say("compiling the products of int4 and int8 weights for this machine: once, ten seconds")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as aside:
            options = CppTorchOptions(extra_flags=FLAGS)
            code = [str(each) for each in SOURCES]
            builder = CppBuilder("tiles", code, BuildOption=options, output_dir=aside)
            builder.build()
            os.replace(builder.get_target_file_path(), path)
    except (CppCompileError, InvalidCxxCompiler, OSError) as error:
        lines = [line for line in str(error).splitlines() if "rror: " in line] or [str(error)]
        return lines[0] or type(error).__name__
    return None
