"""Triton's interpreter, so that the fused kernels run on a CPU: `interpret()` before they are used.

A few of its ways are mended here (Triton 3.6, NumPy 2.4). It multiplies bfloat16 as the integers
that it keeps them in, rounds to bfloat16 towards zero, takes loop bounds from arrays of one element
by a conversion that NumPy has given up, and knows Triton's own functions only where it was asked
for before Triton was first imported. Most of its time goes into what a compiler does once: types
are therefore made once here, and what nothing reads is not made.
"""

import importlib
import sys
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

KERNELS = ("decoders.backends.cuda.fused_kernels", "decoders.backends.cuda.fused_launch")
_patch_language = interpreter._patch_lang
_patch_tensor = interpreter._patch_lang_tensor
_dot = interpreter.InterpreterBuilder.create_dot
_fill_block_type = tl.block_type.__init__
_cast = interpreter.InterpreterBuilder.cast_impl


def interpret() -> None:
    """From now on this process interprets the fused kernels."""
    make_cheaper()
    interpreter.InterpreterBuilder.create_dot = _dot_of_wide
    interpreter.InterpreterBuilder.cast_impl = _cast_to_nearest
    interpreter.InterpreterBuilder.create_fp_to_fp = _to_nearest
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.experimental.gluon")  # wants them as they were
        for library in (tl, tl.standard):
            for name, value in list(vars(library).items()):
                if isinstance(value, JITFunction):
                    setattr(library, name, interpreter.InterpretedFunction(value.fn))
        for module in KERNELS:
            sys.modules.pop(module, None)
            importlib.import_module(module)


def make_cheaper() -> None:
    """The same numbers in less time, whatever is interpreted. Triton's language stays patched from
    one kernel to the next. Sums are not computed twice to look for an overflow that is told in
    debugging alone. A tuple's type is for compiling it, and a block's IR type is the type."""
    interpreter._patch_lang = cache(_once)
    interpreter._patch_lang_tensor = _with_index
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    tl.core._type_for_tuple_values = lambda *_: None
    for kind in (tl.block_type, tl.pointer_type):
        kind.__hash__ = tl.dtype.__hash__  # by name
    interpreter._get_np_dtype = cache(interpreter._get_np_dtype)
    tl.block_type.__new__ = _block_type
    tl.block_type.__init__ = lambda *_: None
    tl.block_type.to_ir = lambda self, builder: self
    tl.tensor.__init__ = _tensor


def _block_type(cls: Any, element: Any, shape: Any) -> Any:
    return _one_block_type(
        element, tuple(s.value if isinstance(s, tl.constexpr) else s for s in shape)
    )


@cache
def _one_block_type(element: Any, shape: tuple[int, ...]) -> Any:
    _fill_block_type(made := object.__new__(tl.block_type), element, list(shape))
    return made


@cache
def _sizes(kind: Any) -> tuple[Any, Any]:
    shape = kind.shape if kind.is_block() else ()
    return tl.tuple([tl.constexpr(s) for s in shape]), tl.constexpr(prod(shape))


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _sizes(type)


class _Stays:
    def restore(self) -> None:
        pass


def _once(fn: Any) -> _Stays:
    _patch_language(fn)
    return _Stays()


def _wide(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(wide, tl.float32)


def _with_index(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _dot_of_wide(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    return _dot(self, _wide(a), _wide(b), d, *options)


def _cast_to_nearest(self: Any, source: Any, dtype: Any) -> Any:
    if source.dtype.scalar == dtype.scalar:
        return source
    source = _wide(source)
    if dtype.scalar != tl.bfloat16:
        return source if source.dtype.scalar == dtype.scalar else _cast(self, source, dtype)
    if source.dtype.scalar != tl.float32:
        source = _cast(self, source, tl.float32)
    bits = np.ascontiguousarray(source.data).view(np.uint32).astype(np.uint64)
    even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return interpreter.TensorHandle(
        np.where(np.isnan(source.data), np.uint16(0x7FC0), even), tl.bfloat16
    )


def _to_nearest(self: Any, source: Any, dtype: Any, rounding: Any) -> Any:
    return _cast_to_nearest(self, source, dtype)
