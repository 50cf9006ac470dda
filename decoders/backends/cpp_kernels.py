"""The kernels in C++ (folder cpp): brought by a wheel, or compiled and kept; loaded once."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from ..common.loggers import quiet
from ..common.wording import in_words
from ..sampling.race import ON_CPU
from .weights.blocked import NARROW

FOLDER = Path(__file__).with_name("cpp")
SOURCE = FOLDER / "kernels.cpp"
AVX2 = {
    "avx2": "-mavx2",
    "fma3": "-mfma",
    "f16c": "-mf16c",
    "bmi": "-mbmi",
    "bmi2": "-mbmi2",
    "lzcnt": "-mlzcnt",
}
AVX512 = AVX2 | {f"avx512_{part}": f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")}
VNNI = AVX512 | {"avx512_vnni": "-mavx512vnni"}
BF16 = VNNI | {"avx512_bf16": "-mavx512bf16"}
TILES = BF16 | {f"amx_{part}": f"-mamx-{part}" for part in ("tile", "bf16", "int8")}
SETS: dict[str, dict[str, str]] = {  # compiler flags by PyTorch's names, the best set first
    "AMX": TILES,
    "AVX512_BF16": BF16,
    "AVX512_VNNI": VNNI,
    "AVX512": AVX512,
    "AVX2": AVX2,
    "NEON": {},  # what every 64-bit Arm has
}
ARM = "aarch64", "arm64"
ALWAYS = ["-g0"]  # no symbols for debuggers, which are four fifths of a file
_LOADING = threading.Lock()


@lru_cache
def has_tiles() -> bool:
    """Whether this CPU multiplies bfloat16 by tiles (AMX)."""
    return bool(torch.cpu._is_amx_tile_supported())


def instructions() -> str | None:
    """The best set of instructions of SETS that this CPU has, or None."""
    return next((name for name in SETS if has(name)), None)


def has(name: str) -> bool:
    """Whether this CPU has such a set, and PyTorch is not limited to a smaller one: with
    ATEN_CPU_CAPABILITY=avx2 in the environment there is AVX2 alone."""
    if platform.machine() in ARM or name == "NEON":
        return platform.machine() in ARM and name == "NEON"
    used = torch.backends.cpu.get_cpu_capability()
    if used == "DEFAULT" or (used == "AVX2" and name != "AVX2"):
        return False
    known = torch.cpu.get_capabilities()
    if not all(known.get(each) for each in SETS[name]):
        return False
    # the system is asked for leave to use tiles, which is given once a process
    return name != "AMX" or (has_tiles() and bool(torch.cpu._init_amx()))


def loaded() -> bool:
    return hasattr(torch.ops.draftpick, "int4_blocks")


@lru_cache
def version() -> str:
    """Hash of the kernel sources and how they are used; timings are cached under it."""
    code = b"".join(each.read_bytes() for each in sorted(FOLDER.glob("*.[hc]*")))
    return hashlib.sha256(code + str(NARROW).encode()).hexdigest()[:8]


def file_name(best: str) -> str:
    """Name of the kernels' file for a set of instructions, in a wheel and where it is kept. Other
    sources and flags have other names."""
    key = hashlib.sha256(repr((version(), SETS[best])).encode()).hexdigest()[:8]
    return f"kernels_{best.lower()}_{key}.so"


def load_kernel(folder: Path, say: Callable[[str], None], compiling: bool = True) -> bool:
    """Whether the kernels are available: from a wheel, from `folder`, or, with `compiling`,
    compiled into it. `say` reports compiling, and a missing C++ compiler."""
    with _LOADING:
        if loaded():
            return True
        best = instructions()
        if best is None:
            return False
        path = folder / file_name(best)
        there = (each for each in (FOLDER / path.name, path) if each.exists())
        if not any(_opened(each) is None for each in there):
            if not compiling:
                return False
            say(f"compiling kernels for {best}, as none came with draftpick: once, about a minute")
            with quiet({"torch.utils.cpp_extension": logging.ERROR}):  # it misses CUDA
                refused = compile_kernels(path, [*SETS[best].values()]) or _opened(path)
            if refused is not None:
                say(f"drafts are verified by PyTorch's own products, which are slower: {refused}")
                return False
        ON_CPU.pick = torch.ops.draftpick.pick_rows
        ON_CPU.pick_chain = torch.ops.draftpick.pick_chain
        return True


def _opened(path: Path) -> str | None:
    """Load it; why that cannot be, or None."""
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        return str(error)
    return None


def compile_kernels(path: Path, flags: list[str]) -> str | None:
    """Compile to `path`, which is whole or not there; why that cannot be, or None."""
    from torch._inductor import config
    from torch._inductor.cpp_builder import CppBuilder, CppTorchOptions
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        only = config.patch({"cpp.march": ""})  # no instructions but those asked for
        with only, tempfile.TemporaryDirectory(dir=path.parent.absolute()) as aside:
            options = CppTorchOptions(extra_flags=[*ALWAYS, *flags])
            libraries = options.get_libraries_dirs()
            libraries[:] = map(shlex.quote, libraries)
            # The builder's own run splits the command at spaces of folders' names.
            source, there = shlex.quote(str(SOURCE)), shlex.quote(aside)
            builder = CppBuilder("kernels", source, BuildOption=options, output_dir=there)
            command = shlex.split(builder.get_command_line())
            done = subprocess.run(command, cwd=aside, capture_output=True)
            if done.returncode:
                said = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
                lines = [line for line in said if "rror: " in line] or said
                return lines[0] if lines else f"{command[0]} ended with {done.returncode}"
            os.replace(Path(aside) / Path(builder.get_target_file_path()).name, path)
    except (InvalidCxxCompiler, OSError) as error:
        return in_words(error)
    return None
