"""The Triton kernels of a pass compiled for a GPU; run by test_row_kernels.py.

A process of its own, as other tests have Triton interpret.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoders.backends.cuda import round_kernels
from decoders.backends.cuda import row_kernels as kernels


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_the_kernels_compile_for_a_gpu(kind: str) -> None:
    """Ahead of time, with the default target's sizes; it takes no GPU."""
    heads: dict[str, Any] = {"KV": 3, "D": 64}
    of_each: list[tuple[Any, dict[str, Any]]] = [
        (kernels._add_norm, {"BLOCK": 1024, "ADD": True}),
        (kernels._place, {"HEADS": 9, "BLOCK": 16} | heads),
        (kernels._attend, {"GROUP": 3, "ROWS": 16, "BLOCK": kernels.KEYS} | heads),
        (kernels._gated, {"BLOCK": 1024}),
        (kernels._choose, {"BLOCK": kernels.TOKENS}),
    ]
    whole = {"rows": "*i64", "positions": "*i64", "lengths": "*i32", "keys": "*i32"}
    scalars = {"eps": "fp32", "scale": "fp32", "temperature": "*fp32"}
    counts = dict.fromkeys(("d", "f", "size", "capacity"), "i32")
    for kernel, fixed in of_each:
        known = whole | scalars | counts | dict.fromkeys(fixed, "constexpr")
        signature = {name: known.get(name, f"*{kind}") for name in kernel.arg_names}
        if kernel is kernels._choose:
            signature["made"] = "*i64"
        constants = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
        source = ASTSource(kernel, signature, constexprs=constants)
        assert "ptx" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm


@pytest.mark.parametrize(
    ("how", "scores"),
    [
        (round_kernels.NOTHING, "*bf16"),
        (round_kernels.TABLE, "*fp32"),
        (round_kernels.DRAFT, "*bf16"),
    ],
)
def test_the_kernels_of_rounds_compile_for_a_gpu(how: int, scores: str) -> None:
    fixed: dict[Any, dict[str, Any]] = {
        round_kernels._accept: {"BLOCK": 32},
        round_kernels._copy: {
            "ROOM": 2048, "SHORTEST": 2, "LONGEST": 12, "EARLIEST": False, "HOW": how,
            "FROM_TABLE": 4, "SEARCHED": 1024, "BLOCK": 32,
        },
    }  # fmt: skip
    for kernel, constants in fixed.items():
        known = dict.fromkeys(constants, "constexpr") | {"scores_ptr": scores}
        signature = {
            name: known.get(name, "*i64" if name.endswith("_ptr") else "i32")
            for name in kernel.arg_names
        }
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, constexprs=places)
        assert "ptx" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
