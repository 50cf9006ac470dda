"""Are the ids of every arm the ids that transformers writes? On whole query files, in float32.

    python benchmarks/lossless.py --queries FILES... --max-new-tokens 64 --out lossless.jsonl

The reference is transformers' own `generate(do_sample=False)`, one prompt at a time. A line per
query is appended to --out, so that a long run may be stopped and goes on; the last lines printed
are the totals over the whole file. Where answers part, `gap` says how far apart the two tokens'
logits are in float64: below TIE they are one to float32, and transformers' own choice between them
changes with the number of tokens that it reads at once.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM

from decoders import Engine, Request, read_queries, targets

TIE = 1e-4  # float32 logits of this model are 2 to 4e-5 from float64's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, default=0, help="queries a task, 0 for all")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--arms", default="", help="comma-separated; all that ship by default")
    parser.add_argument("--out", type=Path, default=Path("lossless.jsonl"))
    given = parser.parse_args()

    names = [name for name in given.arms.split(",") if name]
    engine = Engine.load(given.target, only=names or None, dtype="float32", device="cpu")
    model = AutoModelForCausalLM.from_pretrained(
        targets.resolve(given.target), dtype=torch.float32
    ).eval()
    done = set()
    if given.out.is_file():
        done = {json.loads(line)["id"] for line in given.out.read_text().splitlines()}
    counts: Counter[str] = Counter()
    todo = []
    for query in read_queries(given.queries):
        counts[query.task] += 1
        if query.id not in done and (not given.limit or counts[query.task] <= given.limit):
            todo.append(query)
    request = Request(given.max_new_tokens)
    random.Random(0).shuffle(todo)  # a run cut short has seen every task
    with given.out.open("a") as sink:
        for query in track(todo, description="checking"):
            prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
            started = time.perf_counter()
            with torch.inference_mode():
                reference = model.generate(
                    torch.tensor([prompt]), max_new_tokens=given.max_new_tokens, do_sample=False
                )[0, len(prompt) :].tolist()
            reference_s = time.perf_counter() - started
            prefilled = engine.prefill(prompt)
            ids = {
                name: engine.decode(name, prompt, request, prefilled).ids
                for name in engine.arm_names
            }
            row = {"id": query.id, "task": query.task, "tokens": len(reference)}
            row["equal"] = {name: made == reference for name, made in ids.items()}
            row["gap"] = {
                name: _gap(given.target, prompt, reference, made)
                for name, made in ids.items()
                if made != reference
            }
            sink.write(json.dumps({**row, "reference_s": reference_s}) + "\n")
            sink.flush()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()]
    print(f"{len(rows)} queries, {sum(row['tokens'] for row in rows)} tokens")
    for name in engine.arm_names:
        judged = [row for row in rows if name in row["equal"]]
        equal = sum(row["equal"][name] for row in judged)
        ties = sum(row["gap"].get(name, 1.0) < TIE for row in judged)
        print(f"{name}: {equal} of {len(judged)} equal, {ties} part at a tie")


@cache
def _in_float64(target: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(targets.resolve(target), dtype=torch.float64).eval()


@torch.inference_mode()
def _gap(target: str, prompt: list[int], reference: list[int], made: list[int]) -> float:
    """How far apart transformers in float64 holds the two tokens at which the answers part."""
    at = next((i for i, (a, b) in enumerate(zip(reference, made, strict=False)) if a != b), None)
    if at is None:  # one is a part of the other
        return float("inf")
    logits = _in_float64(target)(torch.tensor([prompt + reference[:at]])).logits[0, -1]
    return abs(float(logits[reference[at]] - logits[made[at]]))


if __name__ == "__main__":
    main()
