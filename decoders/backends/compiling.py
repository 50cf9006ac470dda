"""Programs of layers (compiled.py, compiled_shared.py): made by a C++ compiler, and kept."""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from ..errors import DraftpickError
from ..machine import cpu_name
from . import (
    compiled,
    compiled_between,
    compiled_shared,
    int4,
    int8,
    kv,
    llama_model,
    packed,
    shared_pass,
)
from .compiled import FEW, Example, Program, Programs, stored, traced
from .compiled_between import PARTS, between, traced_parts
from .compiled_shared import traced_shared

SOURCES: tuple[ModuleType, ...] = (
    compiled,
    compiled_between,
    compiled_shared,
    llama_model,
    shared_pass,
    kv,
    packed,
    int8,
    int4,
)


def load_programs(example: Example, folder: Path, say: Callable[[str], None]) -> Programs:
    """The programs for such layers from `folder`, or made and put there, of which `say` is told.

    They belong to PyTorch's version, the processor, the threads, the sizes and this code. Raises
    DraftpickError where there is no C++ compiler.
    """
    key = _key(example)
    paths = {name: folder / f"{key}-{name}.pt2" for name in ("one", "few", *PARTS)}
    found = {name: _loaded(path) for name, path in paths.items()}
    if None in found.values():
        say("compiling the layers for this machine: once, about half a minute")
        todo = {"one": traced(example, 1), "few": traced(example, FEW)} | traced_parts(example)
        found |= {name: _compiled(todo[name], paths[name]) for name in todo if not found[name]}
    programs = {name: program for name, program in found.items() if program is not None}

    def shared() -> Program | None:
        path = folder / f"{key}-shared.pt2"
        program = _loaded(path)
        if program is not None:
            return program
        say("compiling the layers for several answers at once: once, about ten seconds")
        try:
            return _compiled(traced_shared(example), path)
        except DraftpickError as error:  # the compiler that made the others is gone
            say(f"several answers at once run ordinary passes: {error}")
            return None

    return Programs(programs["one"], programs["few"], shared, between(programs))


def _key(example: Example) -> str:
    code = [inspect.getsource(module) for module in SOURCES] + [Path(__file__).read_text()]
    sizes = (
        list(example.layer.tensors()),
        [(str(t.dtype), tuple(t.shape)) for t in stored(example.layer)],
    )
    where = (torch.__version__, cpu_name(), torch.get_num_threads())
    text = repr((code, example.shape, sizes, tuple(example.cache.all.shape), where))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _loaded(path: Path) -> Program | None:
    """None where there is no program, or one that cannot be loaded."""
    if not path.exists():
        return None
    try:  # as torch._inductor.aoti_load_package, whose import alone takes seconds
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    except RuntimeError:
        return None
    program: Program = loader.boxed_run
    return program


def _compiled(traced: torch.export.ExportedProgram, path: Path) -> Program:
    """Compile to `path`, which is whole or not there, and load."""
    try:
        _write(traced, path)
    except OSError as error:
        raise DraftpickError(
            f"compiled layers cannot be kept in {path.parent}: {error}; set DRAFTPICK_CACHE to a "
            "folder that can be written, or use --backend native"
        ) from error
    program = _loaded(path)
    assert program is not None
    return program


def _write(traced: torch.export.ExportedProgram, path: Path) -> None:
    from torch._inductor.exc import CppCompileError, InductorError, InvalidCxxCompiler

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as aside, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = os.path.join(aside, path.name)
        try:
            # with cpp.dynamic_threads a row's last bits would depend on how many rows there are
            torch._inductor.aoti_compile_and_package(traced, package_path=whole)
        except (InductorError, InvalidCxxCompiler, CppCompileError) as error:
            cause = getattr(error, "inner_exception", error)
            if not isinstance(cause, (InvalidCxxCompiler, CppCompileError)):
                raise
            said = str(cause).strip().splitlines()[0]
            raise DraftpickError(
                "--backend compiled needs a C++ compiler that PyTorch can use, g++ or clang++ "
                f"({said}); install one, name it by CXX, or use native"
            ) from error
        os.replace(whole, path)
