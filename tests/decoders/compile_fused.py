"""Compiles the fused kernels for a Hopper GPU, which needs none, and prints what each takes.

For the sizes of SmolLM2-135M and of a Llama of 1.2B, in bfloat16, int8 and int4. Fails where a
kernel keeps more than a few registers in memory or wants more shared memory than there is. Where
one kernel multiplies by several matrices, those that need most registers are compiled: an MLP's
second matrix, not attention's output; and SmolLM2-135M's gated matrix and head, of which a program
holds two sets of rows.

    python tests/decoders/compile_fused.py [CACHE [KIND]]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHARED = 227 * 1024  # bytes that one program may have
KINDS = "bfloat16", "int8", "int4"
TOKENS = 16  # at once: the more, the more registers
SIZES = {  # hidden, heads, kv_heads, head_dim, mlp, vocab
    "135M": (576, 9, 3, 64, 1536, 49152),
    "1.2B": (2048, 32, 8, 64, 8192, 128256),
}


def compiled(name: str, fn: Any, constants: dict[str, Any], types: dict[str, str]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    warps = constants.pop("num_warps", 4)
    signature, aligned = {}, {}
    for i, argument in enumerate(fn.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            signature[argument] = types.get(argument, "*bf16")
            aligned[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[argument] = "fp32" if argument in ("eps", "scale") else "i32"
    source = ASTSource(fn, signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps, "launch_pdl": constants["PDL"]}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(made.asm["cubin"])
        command = [str(tool), "--dump-resource-usage", cubin.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    registers, stack = map(int, found.groups())
    print(f"{name} {fn.__name__}: {registers} registers, {made.metadata.shared} B shared")
    assert stack <= 64 and made.metadata.shared <= SHARED, told


def main(only: str | None) -> None:
    import triton

    from decoders.backends.cuda import fused_kernels as kernels
    from decoders.backends.cuda import fused_launch as launch

    for model, (d, heads, kv_heads, head_dim, mlp, vocab) in SIZES.items():
        for how, kind in enumerate(KINDS):
            if only not in (None, kind):
                continue
            name, query = f"{model} {kind}", heads * head_dim

            def product(
                fn: Any, outputs: int, inputs: int, how: int = how, name: str = name, **named: Any
            ) -> None:
                tile = launch.tile_of(outputs, inputs, how)
                types = dict.fromkeys(("x_ptr", "h_ptr", "norm_ptr", "w_ptr"), "*i32")
                types |= {"start_ptr": "*i64"} | ({"scale_ptr": "*i32"} if how == 2 else {})
                constants = {
                    "N": outputs, "K": inputs, "KEPT": how, "PDL": True, "MMA": True,
                    "SETS": tile.sets, "WARPS": tile.warps, "num_warps": tile.warps,
                    "TOKENS": TOKENS,
                }  # fmt: skip
                compiled(f"{name} {TOKENS}", fn, {**constants, **named}, types)

            heading = {"HEADS": heads, "KV_HEADS": kv_heads, "D": head_dim, "PDL": True}
            rows = query + 2 * kv_heads * head_dim
            biased = {k: v for k, v in heading.items() if k != "PDL"} | {"BIASED": True}
            product(kernels._queries_keys_values, rows, d, **biased)
            floats = dict.fromkeys(("part_ptr", "top_ptr", "sum_ptr"), "*fp32")
            splits = launch.splits_of(8192)
            attending = {
                **heading, "MOST": triton.next_power_of_2(splits), "ROWS": launch.ROWS,
                "SPAN": launch.SPAN, "AT_ONCE": launch.AT_ONCE,
                "num_warps": launch.READERS,
            }  # fmt: skip
            types = {**floats, "start_ptr": "*i64", "count_ptr": "*i32"}
            compiled(name, kernels._attend, attending, types)
            product(kernels._added, d, mlp, NORM=False, RESIDUAL=True)
            block = triton.next_power_of_2(d)
            compiled(name, kernels._normed, {"K": d, "BLOCK": block, "PDL": True}, {})
            if model == "135M":
                product(kernels._gated, 2 * mlp, d, NORM=True)
                product(kernels._added, vocab, d, min(how, 1), NORM=False, RESIDUAL=False)


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    if len(sys.argv) > 1:
        os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(sys.argv[2] if len(sys.argv) > 2 else None)
