"""Tokens a second of every arm beside what transformers offers, same model, same prompts, one run.

    python benchmarks/decode.py --limit 2 --max-new-tokens 128 --out decode.json

Methods are interleaved prompt by prompt in seeded random order, each prompt `--repeats` times; the
figures are medians over repeats, summed over prompts, the prefill included. Tokens are counted from
ids, end-of-sequence included, for every method alike. transformers' assisted decoding takes the
first neural drafter that scores the whole vocabulary (--assistant); those that ship score a part of
it, which transformers cannot use, so that without --assistant it drafts with an early exit of the
target itself (`assistant_early_exit`). flashspec and economize run on the same model, if they are
installed, and --gguf adds engines that read that file (peers.py). --out is written after every
prompt; with --resume a run that was stopped goes on, or takes more repeats.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch
from peers import (
    Run,
    economize_runs,
    flashspec_runs,
    llama_cpp_runs,
    openvino_runs,
    transformers_model,
    transformers_runs,
)
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.provenance import hardware, versions
from collect.queries import first_per_task, shipped
from decoders import Engine, Request, read_queries, targets
from router.specbench.journal import write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=2, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--dtype",
        nargs="+",
        default=["bfloat16"],
        help="the first is also transformers'; int4:compiled is int4 with --backend compiled",
    )
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument(
        "--assistant", help="draft model folder for transformers' assisted decoding"
    )
    parser.add_argument(
        "--gguf", type=Path, help="the same model's GGUF file: adds OpenVINO GenAI and llama.cpp"
    )
    parser.add_argument(
        "--exit-layer", type=int, default=6, help="of transformers' early exit; 0 leaves it out"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="transformers with a static cache and torch.compile too; default: on CUDA",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("decode.json"))
    parser.add_argument("--resume", action="store_true", help="go on with what --out holds")
    given = parser.parse_args()

    only = ["autoregressive", *filter(None, given.arms.split(","))] if given.arms else None
    request = Request(given.max_new_tokens)
    methods: dict[str, Run] = {}
    for dtype in reversed(given.dtype):  # the first stays in `engine`
        precision, _, backend = dtype.partition(":")
        engine = Engine.load(
            given.target,
            given.config,
            only=only,
            dtype=precision,
            device=given.device,
            backend=backend or "auto",
        )
        for name in engine.arm_names:
            label = name if dtype == given.dtype[0] else f"{name}, {dtype.replace(':', ', ')}"
            methods[label] = _answering(engine, name, request)
    like = engine.prefill([1]).logits
    folder = targets.resolve(given.target)
    most = given.max_new_tokens
    compiled = like.device.type == "cuda" if given.compile is None else given.compile
    model = transformers_model(folder, like)
    assistant = transformers_model(given.assistant, like) if given.assistant else None
    methods |= transformers_runs(model, most, assistant, given.exit_layer, compiled)
    methods |= flashspec_runs(model, most, engine.eos_ids, assistant)
    methods |= economize_runs(model, most, engine.eos_ids, given.assistant)
    if given.gguf:
        methods |= openvino_runs(given.gguf, engine.eos_ids, most)
        methods |= llama_cpp_runs(given.gguf, engine.eos_ids, most, torch.get_num_threads())

    queries = read_queries(given.queries) if given.queries else shipped("test")
    asked = first_per_task(queries, given.limit)
    prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in asked]
    for run in methods.values():  # warm-up; the longest, for which static caches are made
        run(max(prompts, key=len))
    order = random.Random(given.seed)
    settings = {
        "queries": [q.id for q in asked],
        "max_new_tokens": given.max_new_tokens,
        "dtype": given.dtype,
        "hardware": hardware(),
        "versions": versions(),
    }
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in methods}
    tokens: dict[str, list[int]] = {name: [0] * len(prompts) for name in methods}
    if given.resume and given.out.exists():
        held = json.loads(given.out.read_text())
        if {name: held[name] for name in settings} != settings or set(held["tokens"]) != {*methods}:
            parser.error(f"{given.out} holds another run; leave --resume out or name another --out")
        seconds, tokens = held["seconds"], held["tokens"]
    done = [len(times) for times in seconds["autoregressive"]]
    jobs = [(at, turn) for turn in range(given.repeats) for at in range(len(prompts))]
    for at, turn in track(jobs, description="decoding"):
        if turn < done[at]:
            continue
        took: dict[str, float] = {}
        for name in order.sample(list(methods), len(methods)):
            started = time.perf_counter()
            tokens[name][at] = methods[name](prompts[at])
            took[name] = time.perf_counter() - started
        for name, spent in took.items():
            seconds[name][at].append(spent)
        record = {**settings, "tokens": tokens, "seconds": seconds}
        write_atomically(given.out, json.dumps(record, indent=1))

    def speed_of(name: str, task: str | None = None) -> float:
        """Tokens a second over all prompts, or those of one task."""
        chosen = [at for at, query in enumerate(asked) if task in (None, query.task)]
        spent = sum(statistics.median(seconds[name][at]) for at in chosen)
        return sum(tokens[name][at] for at in chosen) / spent

    speed = {name: speed_of(name) for name in methods}
    base = speed["transformers"]
    table = Table(
        title=f"{len(prompts)} prompts, {given.max_new_tokens} new tokens, {given.dtype[0]}"
    )
    tasks = list(dict.fromkeys(query.task for query in asked))
    for column in ("method", "tokens/s", "x transformers", "x our autoregressive", *tasks):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in sorted(speed, key=lambda n: -speed[n]):
        own = speed[name] / speed["autoregressive"]
        cells = [f"{speed[name]:.1f}", f"{speed[name] / base:.2f}", f"{own:.2f}"]
        table.add_row(name, *cells, *[f"{speed_of(name, task):.0f}" for task in tasks])
    Console().print(table)
    by_task = {name: {task: speed_of(name, task) for task in tasks} for name in methods}
    finished = {
        **settings,
        "tokens_per_s": speed,
        "tokens_per_s_by_task": by_task,
        "tokens": tokens,
        "seconds": seconds,
    }
    write_atomically(given.out, json.dumps(finished, indent=1))


def _answering(engine: Engine, arm: str, request: Request) -> Run:
    return lambda ids: len(engine.decode(arm, ids, request).ids)


if __name__ == "__main__":
    main()
