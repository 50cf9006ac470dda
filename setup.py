"""Builds wheels. DRAFTPICK_KERNELS=all compiles the C++ kernels into one, for every instruction set
that this kind of machine has; or give sets, split at commas (AVX2,AMX). It needs what draftpick
needs to be installed: `pip wheel --no-build-isolation`."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ASKED = os.environ.get("DRAFTPICK_KERNELS", "")
FOLDER = Path("decoders", "backends", "cpp")


class BuildKernels(build_ext):
    """Compiles kernels by the command that does on first use."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        from decoders.backends.cpp_kernels import compile_kernels

        refused = compile_kernels(Path(self.get_ext_fullpath(ext.name)), ext.extra_compile_args)
        if refused is not None:
            sys.exit(f"{ext.name} cannot be compiled: {refused}")


class AnyPython(bdist_wheel):
    """The kernels call PyTorch's stable interface alone: one wheel does for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def kernels() -> list[Extension]:
    """One of each set that is asked for."""
    sys.path.insert(0, str(Path(__file__).parent))
    from decoders.backends.cpp_kernels import ARM, SETS, file_name

    arm = platform.machine() in ARM
    here = [name for name in SETS if (name == "NEON") == arm]
    names = here if ASKED == "all" else ASKED.split(",")
    if unknown := {*names} - {*here}:
        sys.exit(f"DRAFTPICK_KERNELS: {', '.join(unknown)} not among all, {', '.join(here)}")
    module = ".".join(FOLDER.parts)
    return [
        Extension(
            f"{module}.{Path(file_name(name)).stem}",
            [str(FOLDER / "kernels.cpp")],
            extra_compile_args=[*SETS[name].values()],
        )
        for name in names
    ]


setup(
    ext_modules=kernels() if ASKED else [],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
