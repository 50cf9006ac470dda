"""What each rule of acceptance is worth above temperature 0: the same arm, the same queries.

    python benchmarks/coupling.py --queries FILES... --per-task 4 --out coupling.json

Rules:
    coupled    the drafter and the target draw by the same clocks; equal tokens are accepted
    in turn    speculative sampling: drawn by the drafter, accepted with min(1, p / q)
    likeliest  the drafter's most likely token, accepted where the target draws it

Rules, arms and plain decoding are interleaved query by query in seeded random order. First tokens
are those that open a draft, tokens a round those of rounds that draft. Ratios of tokens a second
are means over queries of the logarithm, with intervals over queries; prompts are excluded.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from collect.queries import first_per_task, read_queries
from decoders import Engine, Request
from decoders.arms import AUTOREGRESSIVE
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.records import DecodeResult, Sampling
from decoders.zoo import TARGET

RULES = {"coupled": "coupled", "in turn": "lossless", "likeliest": "coupled"}
ARMS = {  # as the shipped ones
    "recurrent": "kind: recurrent, drafter: {cell}, length: {{kind: adaptive, k: 8}}",
    "hybrid": "kind: hybrid, model: {{kind: recurrent, drafter: {cell}}}, length: {{k: 16}}",
}


@dataclass
class Sums:
    """Of one arm under one rule: totals, and the seconds a token of each query."""

    tokens: int = 0
    rounds: int = 0
    firsts: int = 0
    drafts: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, query: str, made: DecodeResult) -> None:
        self.tokens += len(made.ids) - 1
        self.rounds += made.rounds
        self.firsts += made.accepted_per_position[0] if made.accepted_per_position else 0
        self.drafts += made.rounds - (made.widths[0] if made.widths else 0)
        self.seconds[query] = made.decode_s / max(1, len(made.ids) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, required=True)
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--cell", default="recurrent-general", help="the drafter")
    parser.add_argument("--temperatures", nargs="+", default=["0.3", "0.7", "1", "1:0.95"],
                        help="with :TOP_P")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("coupling.json"))
    given = parser.parse_args()
    engine = loaded(given)
    queries = first_per_task(read_queries(given.queries), given.per_task)
    found: dict[str, dict[str, Sums]] = {}
    rng = random.Random(0)
    names = engine.arm_names
    for setting in given.temperatures:
        heat, _, top_p = setting.partition(":")
        sampling = Sampling(float(heat), top_p=float(top_p or 1))
        sums = found[setting] = {name: Sums() for name in names}
        for number, query in enumerate(track(queries, description=setting)):
            prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
            request = Request(given.max_new_tokens, sampling, seed=number)
            for name in rng.sample(names, len(names)):
                sums[name].add(query.id, engine.decode(name, prompt, request))
        for line in lines(sums):
            print(setting, line, flush=True)
        record = {"settings": vars(given) | {"queries": [*map(str, given.queries)]}}
        record |= {"machine": hardware(), "versions": versions()}
        record["out"] = str(given.out)
        record["figures"] = {s: [*lines(each)] for s, each in found.items()}
        write_atomically(given.out, json.dumps(record, indent=1, default=str))


def loaded(given: argparse.Namespace) -> Engine:
    """The target with every arm under every rule, and plain decoding."""
    path = given.out.with_suffix(".yaml")
    arms = [f"  {AUTOREGRESSIVE}: {{kind: {AUTOREGRESSIVE}}}"]
    for arm, body in ARMS.items():
        for rule, verifier in RULES.items():
            fields = body.format(cell=given.cell)
            arms.append(f"  {arm} {rule}: {{{fields}, verifier: {verifier}}}")
    path.write_text("arms:\n" + "\n".join(arms) + "\n", encoding="utf-8")
    engine = Engine.load(given.target, path)
    for arm in ARMS:
        drafter: Any = engine.strategy(f"{arm} likeliest").drafter  # type: ignore[attr-defined]
        drafter = getattr(drafter, "model", drafter)  # copies are judged at the answer's own heat
        propose = drafter.propose

        def likeliest(context: list[int], asked: Any, propose: Any = propose) -> Any:
            return propose(context, replace(asked, sampling=Sampling()))

        drafter.propose = likeliest
    return engine


def lines(sums: dict[str, Sums]) -> Iterator[dict[str, Any]]:
    plain = sums[AUTOREGRESSIVE].seconds
    for name, each in sums.items():
        logs = np.array([math.log(plain[query] / s) for query, s in each.seconds.items()])
        spread = 1.96 * logs.std(ddof=1) / math.sqrt(len(logs))
        yield {
            "arm": name,
            "first tokens right": round(each.firsts / max(1, each.drafts), 3),
            "tokens a round": round(each.tokens / max(1, each.rounds), 3),
            "over plain": [round(math.exp(logs.mean() + d * spread), 3) for d in (-1, 0, 1)],
        }


if __name__ == "__main__":
    main()
