"""Tokens a second inside vLLM: draftpick's proposer beside vLLM's own drafts and plain decoding.

    ENGINES/vllm/bin/python benchmarks/vllm_speed.py MODEL [--clients 1,4,16] [--queries 48]
        [--new-tokens 64] [--rounds 2] [--only plain,copy] [--out FILE]

Run by vLLM's Python, in the environment that `make engines` makes, from the checkout. MODEL is a
transformers folder. `vllm-suffix` needs the package arctic-inference there. Each configuration is
an engine of its own, started anew for each number of clients and each round; rounds take turns, and
the fastest counts. Answers are greedy, in float32, to evenly spaced queries of those that ship, and
must be the same for all configurations: how many differ from plain decoding's is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOST = 8  # tokens of a draft
COPY = {"kind": "max_gram", "shortest": 2, "longest": 12, "length": {"k": MOST}, "by_cost": True}
SUFFIX = {"kind": "suffix", "length": {"k": MOST}}
DRAFT = {"kind": "neural", "drafter": "draft-general", "length": {"k": 4}}
OURS = {"model": "router.engines.vllm.Proposer", "num_speculative_tokens": MOST}


def ngram(shortest: int) -> dict[str, Any]:
    bounds = {"prompt_lookup_min": shortest, "prompt_lookup_max": 12}
    return {"method": "ngram", "num_speculative_tokens": MOST, **bounds}


# Name -> vLLM's speculative configuration, and the proposer's options; None for none.
CONFIGURATIONS: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]] = {
    "plain": (None, None),
    "ngram-2": (ngram(2), None),
    "ngram-8": (ngram(8), None),
    "vllm-suffix": ({"method": "suffix", "num_speculative_tokens": MOST}, None),
    "copy": (OURS, {"arms": {"copy": COPY}, "policy": "copy"}),
    "suffix": (OURS, {"arms": {"suffix": SUFFIX}, "policy": "suffix"}),
    "suffix-shared": (
        OURS,
        {"arms": {"suffix": SUFFIX}, "policy": "suffix", "share_answers": True},
    ),
    "draft": (OURS, {"arms": {"draft": DRAFT}, "policy": "draft"}),
    "none": (OURS, {"arms": {}, "policy": "autoregressive"}),
}


def prompts(model: str, many: int) -> list[dict[str, list[int]]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    files = sorted((ROOT / "collect" / "shipped" / "test").glob("*.jsonl"))
    asked = [json.loads(line)["turns"][0] for file in files for line in file.open(encoding="utf-8")]
    made = []
    for text in asked[:: max(1, len(asked) // many)][:many]:
        chat = [{"role": "user", "content": text}]
        words = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        made.append({"prompt_token_ids": tokenizer(words)["input_ids"]})
    return made


def one(options: argparse.Namespace) -> None:
    """One engine; prints a line of JSON."""
    from vllm import LLM, SamplingParams

    speculative, ours = CONFIGURATIONS[options.one]
    more: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if ours is not None:
            place = Path(folder) / "options.json"
            place.write_text(json.dumps(ours), encoding="utf-8")
            more["additional_config"] = {"draftpick": str(place)}
        *asked, first, second = prompts(options.model, options.queries + 2)
        longest = max(len(each["prompt_token_ids"]) for each in asked)
        engine = LLM(
            options.model,
            enforce_eager=True,
            dtype="float32",
            max_model_len=longest + options.new_tokens + 2 * MOST,
            max_num_seqs=int(options.clients),
            enable_prefix_caching=False,
            speculative_config=speculative,
            disable_log_stats=False,
            **more,
        )
        params = SamplingParams(temperature=0, max_tokens=options.new_tokens)
        engine.generate([first, second], params, use_tqdm=False)  # which are not asked again
        started = time.perf_counter()
        answers = engine.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        ids = [list(each.outputs[0].token_ids) for each in answers]
        counted = {each.name: getattr(each, "value", 0) for each in engine.get_metrics()}
        told = {"seconds": seconds, "tokens": sum(map(len, ids)), "ids": ids}
        for name in ("draft", "accepted"):
            told[name] = counted.get(f"vllm:spec_decode_num_{name}_tokens", 0)
        print("\nRESULT " + json.dumps(told), flush=True)


def run(options: argparse.Namespace, name: str, clients: str) -> dict[str, Any]:
    """One engine, in a process of its own."""
    words = [sys.executable, __file__, options.model, "--one", name, "--clients", clients]
    words += ["--queries", str(options.queries), "--new-tokens", str(options.new_tokens)]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", **os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        sys.exit(f"{name} at {clients} clients: {done.stderr[-3000:]}")
    told: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--queries", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(CONFIGURATIONS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    names = options.only.split(",")
    found = []
    print(f"{'clients':>7} {'':10} {'tokens/s':>8} {'drafted':>8} {'accepted':>8} {'differ':>6}")
    for clients in options.clients.split(","):
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                runs[name].append(run(options, name, clients))
        base = runs[names[0]][0]["ids"]
        for name in names:
            best = min(runs[name], key=lambda each: each["seconds"])
            differ = sum(ids != other for ids, other in zip(best["ids"], base, strict=True))
            rate = best["tokens"] / best["seconds"]
            row = {"clients": int(clients), "name": name, "tokens_per_s": rate, "differ": differ}
            row |= {key: best[key] for key in ("draft", "accepted")}
            row["all_seconds"] = [each["seconds"] for each in runs[name]]
            found.append(row)
            numbers = f"{rate:8.1f} {best['draft']:8} {best['accepted']:8} {differ:6}"
            print(f"{clients:>7} {name:10} {numbers}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
