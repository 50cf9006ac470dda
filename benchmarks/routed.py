"""What routing is worth where it runs: every arm timed on every query, then policies on the times.

    python benchmarks/routed.py measure --queries dev/*.jsonl --out train --minutes 3
    python benchmarks/routed.py measure --queries question.jsonl --out held --minutes 3
    python benchmarks/routed.py judge --train train --held-out held --out routed.json

`measure` needs a target and nothing but torch, transformers and what reads the arms file. It
decodes each query's first turn through every arm, in an order drawn for each query, the prompt read
once for all of them, and appends a line a query to OUT.jsonl, with the prompt's embedding. Started
again it goes on. Seconds are of the whole answer, the prompt's own pass included.

`judge` learns policies on the one file and applies them to the other. A routed answer's seconds are
those that the chosen arm was timed at, plus what choosing takes. Beside them stand each arm alone,
the best arm of the training queries (the honest fixed choice), the best by task, and the best for
each query, which no policy can know. The reward is the logarithm of the gain over plain decoding,
so that long answers do not decide alone.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.queries import read_queries
from decoders import Engine, Request
from decoders.common.files import whole_lines
from decoders.common.provenance import hardware, versions
from decoders.records import Sampling
from decoders.zoo import TARGET
from policies import RewardTable, fit
from policies.evaluation.bootstrap import group_index, resample

BASE = "autoregressive"
LEARNERS: dict[str, dict[str, Any]] = {"knn": {}, "regression": {}, "reinforce": {}, "exact": {}}
RESAMPLES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(required=True)
    asked = commands.add_parser("measure", help="time every arm on every query")
    asked.add_argument("--queries", nargs="+", type=Path, required=True)
    asked.add_argument("--out", required=True, help="OUT.jsonl and OUT.about.json")
    asked.add_argument("--target", default=TARGET)
    asked.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    asked.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    asked.add_argument("--limit", type=int, default=0, help="queries a task; 0 for all")
    asked.add_argument("--max-new-tokens", type=int, default=96)
    asked.add_argument("--temperature", type=float, default=0.0)
    asked.add_argument("--repeats", type=int, default=1)
    asked.add_argument("--dtype", default="bfloat16")
    asked.add_argument("--device", default="auto")
    asked.add_argument("--backend", default="auto")
    asked.add_argument("--minutes", type=float, default=0.0, help="stop after so long; 0: never")
    asked.set_defaults(run=measure)
    judged = commands.add_parser("judge", help="learn policies and apply them")
    judged.add_argument("--train", required=True)
    judged.add_argument("--held-out", required=True)
    judged.add_argument("--leave-out", default="", help="arms to do without, comma-separated")
    judged.add_argument("--seeds", type=int, default=5)
    judged.add_argument("--out", type=Path, default=Path("routed.json"))
    judged.set_defaults(run=judge)
    given = parser.parse_args()
    given.run(given)


def measure(given: argparse.Namespace) -> None:
    only = [BASE, *filter(None, given.arms.split(","))] if given.arms else None
    sampling = Sampling(given.temperature)
    engine = Engine.load(
        given.target,
        given.config,
        only=only,
        dtype=given.dtype,
        device=given.device,
        backend=given.backend,
    )
    journal, told = Path(f"{given.out}.jsonl"), Path(f"{given.out}.about.json")
    about = {
        "target": engine.target_fingerprint,
        "embedder": engine.embedder,
        "arms": engine.arms_fingerprint(engine.arm_names),
        "timed_by": engine.timed_by,
        "temperature": given.temperature,
        "max_new_tokens": given.max_new_tokens,
        "repeats": given.repeats,
    }
    if told.is_file() and not about.items() <= json.loads(told.read_text(encoding="utf-8")).items():
        raise SystemExit(f"{told} is of a run with other settings; name another --out")
    about |= {"hardware": hardware(), "versions": versions()}
    told.write_text(json.dumps(about, indent=1), encoding="utf-8")
    done = {row["id"] for row in read_rows(journal)} if journal.is_file() else set[str]()
    counts: dict[str, int] = {}
    todo = []
    for query in read_queries(given.queries):
        counts[query.task] = counts.get(query.task, 0) + 1
        if query.id not in done and (not given.limit or counts[query.task] <= given.limit):
            todo.append(query)
    random.Random(0).shuffle(todo)  # a run cut short has seen every task
    for name in engine.arm_names:  # warm-up, also of what is recorded at first use
        for prompt in ("Count to ten.", "Name the days of the week, then name them again."):
            ids = engine.encode_chat([{"role": "user", "content": prompt}])
            engine.decode(name, ids, Request(48, sampling, seed=0))
    started, order = time.monotonic(), random.Random(len(done))
    with journal.open("a", encoding="utf-8") as sink:
        for query in track(todo, description="measuring"):
            if given.minutes and time.monotonic() - started > 60 * given.minutes:
                break
            prompt = engine.encode_chat([{"role": "user", "content": query.turns[0]}])
            seed = zlib.crc32(query.id.encode())
            request = Request(given.max_new_tokens, sampling, seed=seed)
            prefilled = engine.prefill(prompt)
            arms: dict[str, list[list[float]]] = {name: [] for name in engine.arm_names}
            for _ in range(given.repeats):
                for name in order.sample(engine.arm_names, len(engine.arm_names)):
                    made = engine.decode(name, prompt, request, prefilled)
                    arms[name].append(
                        [len(made.ids), made.wall_s, made.rounds, made.drafted, made.accepted]
                    )
            row = {"id": query.id, "task": query.task, "prompt": len(prompt), "arms": arms}
            row |= {"looped": _repeats(made.ids), "group": query.group or query.id}
            row["embedding"] = prefilled.embedding.tolist()
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            done.add(query.id)
    print(f"{len(done)} queries timed")


def read_rows(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(journal).splitlines()]


def _repeats(ids: list[int]) -> bool:
    """Whether an answer ends in a phrase over and over: its last 24 tokens, at some period."""
    return any(
        ids[-24:] == ids[-24 - period : -period]
        for period in range(1, 25)
        if len(ids) > 24 + period
    )


class Timed:
    """What `measure` wrote. groups: [n], queries of one depend on each other. seconds_per_token:
    [n, A] by query and arm; tokens: [n, A] of an answer."""

    def __init__(self, place: str) -> None:
        rows = read_rows(Path(f"{place}.jsonl"))
        self.about = json.loads(Path(f"{place}.about.json").read_text(encoding="utf-8"))
        self.ids = [row["id"] for row in rows]
        self.tasks = [row["task"] for row in rows]
        self.groups = [row["group"] for row in rows]
        self.looped = np.array([row["looped"] for row in rows])
        self.arms = list(rows[0]["arms"])
        self.embeddings = np.array([row["embedding"] for row in rows], np.float32)
        times = [[np.median(_speeds(row["arms"][a])) for a in self.arms] for row in rows]
        self.seconds_per_token = np.array(times)
        self.tokens = np.array([[row["arms"][a][0][0] for a in self.arms] for row in rows])

    def without(self, left_out: set[str]) -> Timed:
        keep = [i for i, arm in enumerate(self.arms) if arm not in left_out]
        self.arms = [self.arms[i] for i in keep]
        self.seconds_per_token = self.seconds_per_token[:, keep]
        self.tokens = self.tokens[:, keep]
        return self

    def gains(self, choosing_s: float = 0.0) -> np.ndarray:
        """[n, A] over plain decoding of the same query, if choosing the arm took so long."""
        base = self.seconds_per_token[:, [self.arms.index(BASE)]]
        return base / (self.seconds_per_token + choosing_s / self.tokens)

    def table(self) -> RewardTable:
        return RewardTable(
            query_ids=self.ids,
            tasks=self.tasks,
            embeddings=self.embeddings,
            arms=self.arms,
            rewards=np.log(self.gains()),
            groups=self.groups,
            reward_name="log_gain",
            embedder=self.about["embedder"],
            arms_fingerprint=self.about["arms"],
        )


def _speeds(turns: list[list[float]]) -> list[float]:
    return [seconds / tokens for tokens, seconds, *_ in turns]


def judge(given: argparse.Namespace) -> None:
    left_out = set(filter(None, given.leave_out.split(",")))
    train, held = (Timed(place).without(left_out) for place in (given.train, given.held_out))
    if train.arms != held.arms:
        raise SystemExit(f"the two files have other arms: {train.arms}, {held.arms}")
    table, count = train.table(), np.arange(len(held.ids))
    fixed = int(table.rewards.mean(0).argmax())
    by_task = {
        task: int(table.rewards[[t == task for t in train.tasks]].mean(0).argmax())
        for task in set(train.tasks)
    }
    picks: dict[str, list[np.ndarray]] = {
        arm: [np.full(len(held.ids), i)] for i, arm in enumerate(held.arms)
    }
    picks[f"best fixed ({held.arms[fixed]})"] = [np.full(len(held.ids), fixed)]
    picks["best by task"] = [np.array([by_task.get(task, fixed) for task in held.tasks])]
    shares: dict[str, dict[str, float]] = {}
    choosing = dict[str, float]()
    for name, options in LEARNERS.items():
        picks[name] = []
        for seed in range(given.seeds):
            policy = fit(name, table, None, seed, **options).policy
            picks[name].append(policy.scores(held.embeddings).argmax(1))
        started = time.perf_counter()
        for embedding in held.embeddings[:50]:
            policy.choose(embedding)
        choosing[name] = (time.perf_counter() - started) / len(held.embeddings[:50])
        chosen = np.bincount(np.concatenate(picks[name]), minlength=len(held.arms))
        shares[name] = dict(zip(held.arms, (chosen / chosen.sum()).round(3).tolist(), strict=True))
    picks["best for each query"] = [held.gains().argmax(1)]

    source = group_index(held.groups)
    draws = resample(int(source.max()) + 1, 0, RESAMPLES)[:, source]  # [B, n]
    draws /= draws.sum(1, keepdims=True)
    base = np.log(held.gains()[:, fixed])
    rows: dict[str, dict[str, float]] = {}
    for name, seeds in picks.items():
        gains = held.gains(choosing.get(name, 0.0))
        logs = np.mean([np.log(gains[count, pick]) for pick in seeds], 0)
        low, high = np.exp(np.quantile(draws @ (logs - base), [0.025, 0.975]))
        tasks = {
            task: float(np.exp(logs[[t == task for t in held.tasks]].mean()))
            for task in sorted(set(held.tasks))
        }
        rows[name] = {
            "gain": float(np.exp(logs.mean())),
            "over_fixed": float(np.exp((logs - base).mean())),
            "low": float(low),
            "high": float(high),
            "no_loops": float(np.exp(logs[~held.looped].mean())),
            **tasks,
        }
    record = {
        "train": train.about | {"queries": len(train.ids)},
        "held_out": held.about | {"queries": len(held.ids), "looped": float(held.looped.mean())},
        "rows": rows,
        "shares": shares,
        "choosing_s": choosing,
    }
    given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    show = Table(title=f"{len(held.ids)} queries, {held.looped.mean():.0%} are repetitive")
    shown = sorted(set(held.tasks))
    for column in ("choice", "x plain", "x best fixed", "95%", "without repetition", *shown):
        show.add_column(column, justify="left" if column == "choice" else "right")
    for name, row in rows.items():
        by_its_task = [f"{row[task]:.2f}" for task in shown]
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        show.add_row(
            name, f"{row['gain']:.3f}", f"{row['over_fixed']:.3f}", interval,
            f"{row['no_loops']:.2f}", *by_its_task,
        )  # fmt: skip
    console = Console(width=160)
    console.print(show)
    took = max(choosing.values())
    console.print(f"choosing took at most {took * 1e6:.0f} us, which is in; shares: {shares}")


if __name__ == "__main__":
    main()
