"""The Triton kernels of a pass compiled for a GPU; run by test_row_kernels.py.

A process of its own, as other tests have Triton interpret.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoders.backends.cuda import race_kernel, round_kernels
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
    ]
    whole = {"rows": "*i64", "positions": "*i64", "lengths": "*i32"}
    scalars = {"eps": "fp32", "scale": "fp32"}
    counts = dict.fromkeys(("d", "f", "capacity"), "i32")
    for kernel, fixed in of_each:
        known = dict.fromkeys(kernel.arg_names, f"*{kind}") | whole | scalars | counts
        compiles(kernel, fixed, known)


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
        compiles(kernel, constants, {"scores_ptr": scores})


def compiles(kernel: Any, constants: dict[str, Any], known: dict[str, str]) -> None:
    """What is not known is a pointer to int64 by its name, or a number of 32 bits."""
    known = known | dict.fromkeys(constants, "constexpr")
    signature = {
        name: known.get(name, "*i64" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=places)
    assert "ptx" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("scores", ["*bf16", "*fp32"])
def test_the_kernels_that_pick_compile_for_a_gpu(scores: str, named: bool) -> None:
    fixed: dict[Any, dict[str, Any]] = {
        race_kernel._part: {
            "NAMED": named, "TILES": race_kernel.TILES, "TILE": race_kernel.TILE,
        },
        race_kernel._soonest: {"BLOCK": 64},
    }  # fmt: skip
    wide = dict.fromkeys(("heat_ptr", "rates_ptr"), "*fp64")
    for kernel, constants in fixed.items():
        compiles(kernel, constants, {"logits_ptr": scores} | wide)
