"""The Triton kernels compiled for a Hopper GPU, which needs none; run by test_row_kernels.py.

A process of its own, as other tests have Triton interpret. With `-s` it prints what each of the
fused kernels takes.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoders.backends.cuda import fused_kernels, fused_launch, race_kernel, round_kernels
from decoders.backends.cuda import row_kernels as kernels

SHARED = 227 * 1024  # bytes that one program may have
SMALL = 99 * 1024  # the same on GPUs for desktops
TOKENS = 16  # at once: the more, the more registers
SIZES = {  # hidden, heads, kv_heads, head_dim, mlp, vocab: SmolLM2's and those of a Llama of 1.2B
    "135M": (576, 9, 3, 64, 1536, 49152),
    "1.2B": (2048, 32, 8, 64, 8192, 128256),
}


def compiled(
    kernel: Any, constants: dict[str, Any], known: dict[str, str], attrs: Any = None, **options: Any
) -> Any:
    """What is not known is a pointer to int64 by its name, or a number of 32 bits."""
    known = known | dict.fromkeys(constants, "constexpr")
    signature = {
        name: known.get(name, "*i64" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_the_kernels_of_passes(kind: str) -> None:
    """With the default target's sizes."""
    heads: dict[str, Any] = {"KV": 3, "D": 64}
    of_each: list[tuple[Any, dict[str, Any]]] = [
        (kernels._add_norm, {"BLOCK": 1024, "ADD": True}),
        (kernels._place, {"HEADS": 9, "BLOCK": 16} | heads),
        (kernels._attend, {"GROUP": 3, "ROWS": 16, "BLOCK": 64} | heads),
        (kernels._gated, {"BLOCK": 1024}),
    ]
    whole = {"rows": "*i64", "positions": "*i64", "lengths": "*i32"}
    scalars = {"eps": "fp32", "scale": "fp32"} | dict.fromkeys(("d", "f", "capacity"), "i32")
    for kernel, fixed in of_each:
        known = dict.fromkeys(kernel.arg_names, f"*{kind}") | whole | scalars
        assert "ptx" in compiled(kernel, fixed, known).asm


@pytest.mark.parametrize(
    ("how", "scores"),
    [
        (round_kernels.NOTHING, "*bf16"),
        (round_kernels.TABLE, "*fp32"),
        (round_kernels.DRAFT, "*bf16"),
    ],
)
def test_the_kernels_of_rounds(how: int, scores: str) -> None:
    fixed: dict[Any, dict[str, Any]] = {
        round_kernels._accept: {"BLOCK": 32},
        round_kernels._copy: {
            "ROOM": 2048, "SHORTEST": 2, "LONGEST": 12, "EARLIEST": False, "HOW": how,
            "FROM_TABLE": 4, "SEARCHED": 1024, "BLOCK": 32,
        },
    }  # fmt: skip
    for kernel, constants in fixed.items():
        assert "ptx" in compiled(kernel, constants, {"scores_ptr": scores}).asm


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("scores", ["*bf16", "*fp32"])
def test_the_kernels_that_pick(scores: str, named: bool) -> None:
    fixed: dict[Any, dict[str, Any]] = {
        race_kernel._part: {"NAMED": named, "TILES": race_kernel.TILES, "TILE": race_kernel.TILE},
        race_kernel._soonest: {"BLOCK": 64},
    }
    wide = dict.fromkeys(("heat_ptr", "rates_ptr"), "*fp64")
    for kernel, constants in fixed.items():
        assert "ptx" in compiled(kernel, constants, {"logits_ptr": scores} | wide).asm


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_attention_of_wide_heads_fits_small_gpus(head_dim: int, kind: str) -> None:
    wide = {"KV": 2, "D": head_dim}
    aligned = ("queries", "room", "rows", "lengths", "made", "capacity")
    known = dict.fromkeys(aligned, f"*{kind}") | {"rows": "*i64", "lengths": "*i32"}
    keys = kernels.keys_of(head_dim, 2 if kind == "bf16" else 4)
    made = compiled(
        kernels._attend, {"GROUP": 6, "ROWS": 16, "BLOCK": keys, **wide},
        known | {"capacity": "i32", "scale": "fp32"},
        {(kernels._attend.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        num_warps=4, num_stages=3,
    )  # fmt: skip
    assert made.metadata.shared <= SMALL
    if kind == "bf16":
        for shared in (SMALL, fused_launch.SHARED):
            attention({"HEADS": 12, "KV_HEADS": 2, "D": head_dim}, shared)


def attention(heading: dict[str, Any], shared: int) -> None:
    """The fused kernel, on a GPU with so many bytes of shared memory."""
    span = fused_launch.span_of(heading["D"], shared)
    splits = triton.next_power_of_2(fused_launch.splits_of(8192, span))
    constants = {
        **heading, "PDL": True, "MOST": splits, "ROWS": fused_launch.ROWS, "SPAN": span,
        "AT_ONCE": fused_launch.AT_ONCE, "num_warps": fused_launch.READERS,
    }  # fmt: skip
    types = dict.fromkeys(("part_ptr", "top_ptr", "sum_ptr"), "*fp32")
    types |= {"start_ptr": "*i64", "count_ptr": "*i32"}
    fits(fused_kernels._attend, constants, types, shared)


def fits(
    kernel: Any, constants: dict[str, Any], types: dict[str, str], shared: int = SHARED
) -> None:
    """Registers that are too few go to memory, of which a few are let pass."""
    warps = constants.pop("num_warps", 4)
    pointers = [name for name in kernel.arg_names if name.endswith("_ptr")]
    known = dict.fromkeys(pointers, "*bf16") | {"eps": "fp32", "scale": "fp32"} | types
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in pointers}
    pdl = constants["PDL"]
    made = compiled(kernel, constants, known, aligned, num_warps=warps, launch_pdl=pdl)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(made.asm["cubin"])
        command = [str(tool), "--dump-resource-usage", cubin.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    registers, stack = map(int, found.groups())
    print(f"{kernel.__name__}: {registers} registers, {made.metadata.shared} B shared")
    assert stack <= 64 and made.metadata.shared <= shared, told


@pytest.mark.parametrize("how", range(3), ids=["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("model", SIZES)
def test_the_fused_kernels(model: str, how: int) -> None:
    """Where one multiplies by several matrices, those that need most registers: an MLP's second
    matrix, not attention's output; and SmolLM2-135M's gated matrix and head, of which a program
    holds two sets of rows."""
    d, heads, kv_heads, head_dim, mlp, vocab = SIZES[model]

    def product(kernel: Any, outputs: int, inputs: int, how: int = how, **named: Any) -> None:
        sets, warps = fused_launch.tile_of(outputs, inputs)
        types = dict.fromkeys(("x_ptr", "h_ptr", "norm_ptr", "w_ptr"), "*i32")
        types |= {"start_ptr": "*i64"} | ({"scale_ptr": "*i32"} if how == 2 else {})
        constants = {
            "N": outputs, "K": inputs, "KEPT": how, "PDL": True, "MMA": True, "SETS": sets,
            "WARPS": warps, "num_warps": warps, "TOKENS": TOKENS,
        }  # fmt: skip
        fits(kernel, {**constants, **named}, types)

    heading = {"HEADS": heads, "KV_HEADS": kv_heads, "D": head_dim}
    rows = (heads + 2 * kv_heads) * head_dim
    product(fused_kernels._queries_keys_values, rows, d, **heading, BIASED=True)
    attention(heading, fused_launch.SHARED)
    product(fused_kernels._added, d, mlp, NORM=False, RESIDUAL=True)
    block = triton.next_power_of_2(d)
    fits(fused_kernels._normed, {"K": d, "BLOCK": block, "PDL": True}, {})
    if model == "135M":
        product(fused_kernels._gated, 2 * mlp, d, NORM=True)
        product(fused_kernels._added, vocab, d, min(how, 1), NORM=False, RESIDUAL=False)
