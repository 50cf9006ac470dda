"""What a round takes on a GPU: by the device, by the clock, and in the ordinary loop.

    python benchmarks/rounds.py --queries dev/*.jsonl --limit 2 --arms max-gram,recurrent,hybrid

Every prompt is answered by every arm in two ways, in turn: with the host a round behind
(decoders/backends/cuda/device_loop.py), and by the ordinary loop. For each way: tokens a second
without the prompt's own pass, tokens a round, and microseconds a round; beside them what the device
alone takes for the same rounds, as timed when they were recorded. The difference is what the host
adds. Below, the rounds by shape, what choosing the target's own tokens takes of one, and plain
decoding against the time in which memory gives the weights. Answers that differ from the ordinary
loop's plain ones are counted, sampled ones too.

With --likeliest models draft their most likely tokens ahead of the host, at a temperature too, in
place of those that the clocks name.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from floor import bandwidth_of, bytes_read
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from collect.queries import first_per_task, read_queries
from decoders import Engine, Request
from decoders.backends.cuda.device_loop import DeviceLoop
from decoders.backends.cuda.rounds import RecordedRounds, RoundSampling, _seconds
from decoders.backends.native import LlamaBackend
from decoders.common.provenance import hardware, versions
from decoders.device_rounds import DeviceSequence
from decoders.loop import SpeculativeDecoding
from decoders.records import Sampling
from decoders.zoo import TARGET

BASE = "autoregressive"
WAYS = {"ordinary": lambda *parts: False, "ahead": DeviceLoop.takes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=2, help="queries a task")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--likeliest", action="store_true", help="draft the most likely tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, default=Path("rounds.json"))
    given = parser.parse_args()
    if given.likeliest:
        DeviceSequence.drafted = most_likely  # type: ignore[method-assign]
    only = [BASE, *filter(None, given.arms.split(","))] if given.arms else None
    engine = Engine.load(
        given.target,
        given.config,
        only=only,
        dtype=given.dtype,
        device=given.device,
        backend=given.backend,
    )
    queries = first_per_task(read_queries(given.queries), given.limit)
    prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in queries]
    sampling = Sampling(given.temperature, top_p=given.top_p)
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    unequal: list[str] = []
    turns = [(r, at) for r in range(given.repeats + 1) for at in range(len(prompts))]
    for repeat, at in track(turns, "answers"):
        prompt, request = prompts[at], Request(given.max_new_tokens, sampling, seed=at)
        prefilled, expected = engine.prefill(prompt), None
        for arm in engine.arm_names:
            for way, takes in WAYS.items():
                DeviceLoop.takes = takes  # type: ignore[assignment, method-assign]
                made = engine.decode(arm, prompt, request, prefilled)
                if (arm, way) == (BASE, "ordinary"):
                    expected = made.ids
                elif made.ids != expected:
                    unequal.append(f"{arm}, {way}")
                if repeat and made.rounds:  # the first turn records
                    rows.setdefault((arm, way), []).append(
                        {
                            "query": at,
                            "tokens": len(made.ids) - 1,
                            "rounds": made.rounds,
                            "seconds": made.wall_s - made.prefill_s,
                            "prefill_s": made.prefill_s,
                        }
                    )
    record = summary(engine, rows)
    record["by_task"] = by_task(rows, [query.task for query in queries])
    record["unequal"] = dict(Counter(unequal))
    record["choosing_us"] = choosing_us(engine, sampling)
    record["about"] = {
        "target": engine.target_fingerprint,
        "passes": getattr(engine.target, "passes", ""),
        "queries": len(queries),
        "max_new_tokens": given.max_new_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "likeliest": given.likeliest,
        "hardware": hardware(),
        "versions": versions(),
    }
    given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    show(record)


def most_likely(line: DeviceSequence, logits: Tensor, ahead: int, names: Tensor | None) -> Tensor:
    token = logits.argmax(-1)
    return token if names is None else names[token]


def choosing_us(engine: Engine, sampling: Sampling) -> dict[int, float]:
    """Microseconds that choosing one, eight and sixteen tokens takes within a recording."""
    target, device = engine.target, engine.target.device
    if not isinstance(target, LlamaBackend) or target.recorded is None:
        return {}
    drawing, made = RoundSampling(target.vocab_size, device), dict[int, float]()
    drawing.begin(sampling, 1)
    choose = drawing.chooser(drawing.kind)
    for width in (1, 8, 16):
        logits = torch.randn(width, target.vocab_size, device=device).to(target.dtype)
        places = torch.arange(width, device=device)
        replay = target.recorded.record(partial(choose, logits, places, None))
        made[width] = 1e6 * _seconds(replay, device)
    return made


def rounds_of(engine: Engine, arm: str) -> RecordedRounds | None:
    """The arm's on the device, where it has written an answer there."""
    strategy = engine.strategy(arm)
    writers = strategy.writers if isinstance(strategy, SpeculativeDecoding) else {}
    loop = writers.get(engine.target)
    return loop.rounds if isinstance(loop, DeviceLoop) else None


def summary(engine: Engine, rows: Any) -> dict[str, Any]:
    """Medians over answers, of each answer's own rates."""
    record: dict[str, Any] = {"arms": {}, "shapes": {}}
    for arm in engine.arm_names:
        rounds, device_us = rounds_of(engine, arm), None
        if rounds is not None:
            counts, total = rounds.counts, rounds.counts.total()
            device_us = 1e6 * sum(n * rounds.seconds[s] for s, n in counts.items()) / total
            record["shapes"][arm] = {
                str(shape): {"us": round(1e6 * s, 1), "share": round(counts[shape] / total, 3)}
                for shape, s in sorted(rounds.seconds.items())
            }
        for way in WAYS:
            made = rows.get((arm, way), [])
            if made:
                record["arms"][f"{arm}, {way}"] = {
                    "tokens_per_s": median(r["tokens"] / r["seconds"] for r in made),
                    "tokens_a_round": sum(r["tokens"] for r in made)
                    / sum(r["rounds"] for r in made),
                    "round_us": 1e6 * median(r["seconds"] / r["rounds"] for r in made),
                    "device_us": device_us if way == "ahead" else None,
                    "prompt_ms": 1e3 * median(r["prefill_s"] for r in made),
                    "with_prompt": median(
                        (r["tokens"] + 1) / (r["seconds"] + r["prefill_s"]) for r in made
                    ),
                }
    if engine.target.device.type == "cuda":
        weights, rate = bytes_read(engine), bandwidth_of(engine.target.device)
        record["floor"] = {"weights": weights, "bytes_per_s": rate, "us": 1e6 * weights / rate}
    return record


def by_task(rows: Any, tasks: list[str]) -> dict[str, dict[str, float]]:
    """For every arm, written ahead: times plain decoding of the same query, by task the median."""
    speeds: dict[str, dict[int, float]] = {}
    for (arm, way), made in rows.items():
        if way == "ahead":
            speeds[arm] = {
                at: median(r["tokens"] / r["seconds"] for r in made if r["query"] == at)
                for at in {r["query"] for r in made}
            }
    plain = speeds.get(BASE, {})
    return {
        arm: {
            task: round(median(of[at] / plain[at] for at in of if tasks[at] == task), 3)
            for task in dict.fromkeys(tasks[at] for at in sorted(of) if at in plain)
        }
        for arm, of in speeds.items()
    }


def median(numbers: Any) -> float:
    return float(statistics.median(numbers))


def show(record: dict[str, Any]) -> None:
    table = Table(title=record["about"]["target"])
    figures = "tok/s", "x plain", "tokens a round", "us a round", "device us", "prompt ms"
    for column in ("arm", *figures, "with prompt"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    base = record["arms"].get(f"{BASE}, ahead", {}).get("tokens_per_s")
    for name, row in record["arms"].items():
        device = "" if row["device_us"] is None else f"{row['device_us']:.0f}"
        table.add_row(
            name, f"{row['tokens_per_s']:.0f}", f"{row['tokens_per_s'] / base:.2f}",
            f"{row['tokens_a_round']:.2f}", f"{row['round_us']:.0f}", device,
            f"{row['prompt_ms']:.1f}", f"{row['with_prompt']:.0f}",
        )  # fmt: skip
    console = Console(width=140)
    console.print(table)
    console.print("x plain by task", record["by_task"])
    for arm, shapes in record["shapes"].items():
        console.print(arm, shapes)
    console.print("choosing, us by tokens", record["choosing_us"])
    console.print("floor", record.get("floor"), "unequal answers", record["unequal"])


if __name__ == "__main__":
    main()
