"""Products with a model's rounded weights, by the number of rows: PyTorch's kernels and our own.

    python benchmarks/products.py --out products.json

Each figure is the time of one product, in microseconds, the weights of --layers layers in turns, so
that they come from where they do in a pass; the first quartile of --repeats. `unrounded` multiplies
by the packed bfloat16 weights, as passes over more than 32 tokens do. On an idle machine only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from decoders.backends.cpp_kernels import load_kernel
from decoders.backends.weights.packed import Matrix, Rounding, linear, pack, rounded
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.zoo.catalogue import cache_dir

ROWS = (1, 2, 4, 8, 16, 32, 33, 64, 128, 300)
SHAPES: tuple[tuple[int, int, Rounding], ...] = (  # of the default target
    (960, 576, "int4"),
    (576, 576, "int4"),
    (3072, 576, "int4"),
    (576, 1536, "int4"),
    (49152, 576, "int8"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("products.json"))
    given = parser.parse_args()
    in_blocks = load_kernel(cache_dir() / "compiled", lambda said: print(said, file=sys.stderr))
    ways = ["PyTorch", *(["blocks"] if in_blocks else []), "unrounded"]
    found = []
    for out, inputs, rounding in SHAPES:
        layers = 1 if rounding == "int8" else given.layers
        dense = [torch.randn(out, inputs).mul(0.02).bfloat16() for _ in range(layers)]
        made: dict[str, Sequence[Matrix]] = {
            "PyTorch": [rounded(rounding, one, None) for one in dense],
            "blocks": [rounded(rounding, one, None, in_blocks) for one in dense],
            "unrounded": [pack(one) for one in dense],
        }
        for way in ways:
            for rows in given.rows:
                x = torch.randn(rows, inputs).bfloat16()
                took = quartile(made[way], x, given.repeats) / layers
                found.append({"shape": f"{out} x {inputs}, {rounding}", "way": way,
                              "rows": rows, "us": 1e6 * took})  # fmt: skip
    record = {"hardware": hardware(), "versions": versions(), "products": found}
    write_atomically(given.out, json.dumps(record, indent=1))
    table = Table("product", "", *map(str, given.rows), title="Microseconds by number of rows")
    for shape in dict.fromkeys(one["shape"] for one in found):
        for way in ways:
            of = [one["us"] for one in found if (one["shape"], one["way"]) == (shape, way)]
            table.add_row(str(shape), way, *(f"{us:.0f}" for us in of))
    Console(width=140).print(table)


@torch.inference_mode()
def quartile(matrices: Sequence[Matrix], x: Tensor, repeats: int) -> float:
    """Seconds that products with all of them take; the first time does not count."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        for matrix in matrices:
            linear(x, matrix)
        times.append(time.perf_counter() - started)
    return statistics.quantiles(times[1:], n=4, method="inclusive")[0]


if __name__ == "__main__":
    main()
