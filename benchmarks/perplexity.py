"""What rounding the weights costs: perplexity and the likeliest token, dtype beside dtype.

    python benchmarks/perplexity.py --queries FILES... --limit 10

The first 256 tokens of each prompt, read 16 at a time as drafts are (a longer reading would use the
bfloat16 weights under int8 and int4 too); the first 8 are given.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.queries import first_per_task, read_queries, shipped
from decoders import Engine
from decoders.zoo import TARGET

DTYPES = ("float32", "bfloat16", "int8", "int4")
GIVEN, READ, AT_ONCE = 8, 256, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=10, help="queries a task")
    parser.add_argument("--target", default=TARGET)
    given = parser.parse_args()

    engines = {
        dtype: Engine.load(given.target, only=["autoregressive"], dtype=dtype, device="cpu")
        for dtype in DTYPES
    }
    lost, same, tokens = dict.fromkeys(DTYPES, 0.0), dict.fromkeys(DTYPES, 0), 0
    queries = read_queries(given.queries) if given.queries else shipped("test")
    for query in track(list(first_per_task(queries, given.limit)), description="reading"):
        chat = [{"role": "user", "content": query.turns[0]}]
        ids = engines[DTYPES[0]].encode_chat(chat)[:READ]
        following = torch.tensor(ids[GIVEN + 1 :])
        best = None
        for dtype, engine in engines.items():
            logits = read(engine, ids)  # [T, V]
            best = logits.argmax(-1) if best is None else best
            chances = logits.log_softmax(-1).gather(1, following.unsqueeze(1))
            lost[dtype] -= float(chances.sum())
            same[dtype] += int((logits.argmax(-1) == best).sum())
        tokens += len(following)
    table = Table("dtype", "perplexity", f"likeliest token as in {DTYPES[0]}")
    for dtype in DTYPES:
        perplexity = math.exp(lost[dtype] / tokens)
        table.add_row(dtype, f"{perplexity:.2f}", f"{same[dtype] / tokens:.1%}")
    Console().print(f"{tokens} tokens", table)


def read(engine: Engine, ids: list[int]) -> torch.Tensor:
    """[len(ids) - GIVEN - 1, V] logits for the tokens after the first GIVEN + 1."""
    engine.prefill(ids[:GIVEN])
    parts = torch.tensor(ids[GIVEN:-1]).split(AT_ONCE)
    return torch.cat([engine.target.extend(part) for part in parts]).float()


if __name__ == "__main__":
    main()
