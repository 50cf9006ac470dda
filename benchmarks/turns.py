"""Seconds to read a long prompt, and its next turn: with a kept prefix, beside reading only what is
new and reading everything. And how much memory the process takes.

    python benchmarks/turns.py --target MODEL --tokens 8000 16000 --new 200 --out turns.json

Prompts are random tokens. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
from pathlib import Path

import torch
from rich.progress import track

from decoders import Engine, EngineOptions
from decoders.earlier.prefixes import PrefixStore

PLAIN = ("autoregressive",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default=EngineOptions.target)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--new", type=int, default=200, help="tokens of the next turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    engine = Engine.load(given.target, only=list(PLAIN), dtype=given.dtype, kv_dtype=given.kv_dtype)
    found = []
    for length in given.tokens:
        times: dict[str, list[float]] = {}
        for repeat in track(range(given.repeats), f"{length} tokens"):
            for way, seconds in turn(engine, length, given.new, repeat).items():
                times.setdefault(way, []).append(seconds)
        medians = {way: statistics.median(each) for way, each in times.items()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found.append({"tokens": length, "new": given.new, "peak_bytes": peak, **medians})
        found[-1]["kept_over_new"] = medians["kept_s"] / medians["new_s"]
        print(json.dumps(found[-1]), flush=True)
    told = {"target": engine.target_fingerprint, "lengths": found}
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def turn(engine: Engine, length: int, new: int, seed: int) -> dict[str, float]:
    """Seconds: of the prompt; of its next turn kept as a prefix, in the place of another prompt's;
    of the next turn alone, after a prompt that is still held; and of all of it."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, engine.target.vocab_size, (length + new,), generator=drawn).tolist()
    engine.keep_prefixes(PrefixStore(2 * (length + new) * engine.target.position_bytes))  # type: ignore[attr-defined]
    whole = engine.prefill(ids[:length], reuse=True)
    engine.prefill(ids[::-1][:16])
    kept = engine.prefill(ids, reuse=True)
    assert kept.cached == length
    engine.keep_prefixes(None)
    again = engine.prefill(ids)
    engine.target.truncate(length)
    held = engine.prefill(ids, reuse=True)
    assert held.cached == length
    return {
        "prompt_s": whole.prefill_s,
        "kept_s": kept.prefill_s,
        "new_s": held.prefill_s,
        "all_s": again.prefill_s,
    }


if __name__ == "__main__":
    main()
