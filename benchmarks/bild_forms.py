"""BiLD as Algorithm 1 prints it beside the form that keeps the target's argmax, greedy.

    python benchmarks/bild_forms.py --limit 2 --max-new-tokens 64

Both forms answer the same questions, for each drafter and each rollback. `equal`: in how many
answers their ids agree. `passes`: of the target, prompts included, over all answers. `kept`: share
of drafted tokens that were accepted. `agreement`: ROUGE-L likeness to the target's own greedy
answers, the mean over questions. No clock is read, so that a busy machine gives the same figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from collect.queries import first_per_task, read_queries, shipped
from collect.sweeps.batch import rouge_l
from decoders import Engine, Request
from decoders.arms import AUTOREGRESSIVE, recipe
from decoders.records import DecodeResult
from router.specbench.bench import rich_tables

DRAFTERS: dict[str, dict[str, Any]] = {
    "draft-general": {
        "kind": "neural",
        "drafter": "draft-general",
        "length": {"k": 10, "min_confidence": 0.5},
    },
    "max-gram": {"kind": "max_gram", "drafter": "bigram", "length": {"k": 10}, "stop_below": 0.12},
}
HEADINGS = ["drafter", "rollback", "form", "equal", "passes", "kept", "agreement"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, help="default: the test queries shipped")
    parser.add_argument("--limit", type=int, default=2, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rollback", nargs="+", type=float, default=[1.0, 2.0, 3.0])
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    drafters = given.drafters.split(",")
    arms = {
        _name(drafter, rollback, keep): recipe(
            name=_name(drafter, rollback, keep),
            **DRAFTERS[drafter],
            verifier={"rule": "bild", "rollback": rollback, "keep_argmax": keep},
        )
        for drafter in drafters
        for rollback in given.rollback
        for keep in (False, True)
    }
    arms[AUTOREGRESSIVE] = recipe(name=AUTOREGRESSIVE, kind="autoregressive")
    engine = Engine.load(given.target, arms, dtype=given.dtype, device=given.device)
    files = read_queries(given.queries) if given.queries else shipped("test")
    prompts = [
        engine.encode_chat([{"role": "user", "content": query.turns[0]}])
        for query in first_per_task(files, given.limit)
    ]
    request = Request(given.max_new_tokens)
    answers: dict[str, list[DecodeResult]] = {name: [] for name in arms}
    for prompt in track(prompts, "answering", console=Console(stderr=True)):
        for name in arms:
            answers[name].append(engine.decode(name, prompt, request))
    own = answers[AUTOREGRESSIVE]
    passes = str(sum(result.target_calls for result in own))
    rows = [["-", "-", "autoregressive", "-", passes, "-", "100.0%"]]
    for drafter in drafters:
        for rollback in given.rollback:
            pair = [answers[_name(drafter, rollback, keep)] for keep in (False, True)]
            equal = sum(a.ids == b.ids for a, b in zip(*pair, strict=True))
            for form, results in zip(("as printed", "argmax kept"), pair, strict=True):
                said = [drafter, f"{rollback:g}", form, f"{equal} of {len(prompts)}"]
                rows.append([*said, *_figures(results, own)])
    for table in rich_tables(f"BiLD over {len(prompts)} questions", HEADINGS, rows):
        Console(width=100).print(table)


def _name(drafter: str, rollback: float, keep: bool) -> str:
    return f"{drafter} {rollback:g} {'kept' if keep else 'printed'}"


def _figures(results: list[DecodeResult], own: list[DecodeResult]) -> list[str]:
    alike = [rouge_l(b.text, a.text) for a, b in zip(results, own, strict=True)]
    kept = sum(r.accepted for r in results) / max(1, sum(r.drafted for r in results))
    passes = str(sum(r.target_calls for r in results))
    return [passes, f"{kept:.1%}", f"{sum(alike) / len(alike):.1%}"]


if __name__ == "__main__":
    main()
