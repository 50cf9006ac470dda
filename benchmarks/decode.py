"""Tokens a second of every arm beside what transformers offers, same model, same prompts, one run.

    python benchmarks/decode.py --limit 2 --max-new-tokens 128 --out decode.json

Methods are interleaved prompt by prompt in seeded random order, each prompt `--repeats` times; the
figures are medians over repeats, summed over prompts, the prefill included; ratios have the 95%
interval of a bootstrap over prompts. Prompts and decoding apart: every answer is written twice,
once of one token, which is the time to the first; the rest is decoding. Tokens are counted from
ids, end-of-sequence included, for every method alike. Memory is what the process grew by when a
method was loaded and first answered, pages of files among it; arms of one engine share most of it.
transformers' assisted decoding takes the first neural drafter that scores the whole vocabulary
(--assistant); those that ship score a part of it, which transformers cannot use, so that without
--assistant it drafts with an early exit of the target itself (`assistant_early_exit`). flashspec
and economize run on the same model, if they are installed, and --gguf adds engines that read that
file (peers.py). What is compiled or recorded is so before the clock runs. A method that fails is
named and left out.

--out is written after every prompt; with --resume a run that was stopped goes on, or takes more
repeats. After --minutes it stops by itself and sums up the prompts that it has.
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peers import (
    Run,
    economize_runs,
    flashspec_runs,
    ik_llama_runs,
    llama_cpp_runs,
    mistral_rs_runs,
    openvino_runs,
    transformers_model,
    transformers_runs,
)
from ratios import faster
from rich.console import Console
from rich.progress import track
from rich.table import Table

from collect.queries import Query, first_per_task, read_queries, shipped
from decoders import Engine, Request
from decoders.arms import UNTRAINED_ARMS
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.common.sync import synchronize
from decoders.models import targets
from decoders.zoo import TARGET
from decoders.zoo.catalogue import KNOWN_FILES

PLAIN = "autoregressive"
BASES = {  # what ratios are taken with
    "x transformers": "transformers",
    "x compiled": "transformers compiled",
    "x llama.cpp": "llama.cpp",
    "x our plain": PLAIN,
}
SETTINGS = ("assistant", "gguf", "gguf_draft", "exit_layer", "compile")  # of peers


@dataclass
class Own:
    """An arm as a Run. rounds: of its last answer."""

    engine: Engine
    arm: str
    rounds: int = 0

    def __call__(self, ids: list[int], most: int) -> int:
        result = self.engine.decode(self.arm, ids, Request(most))
        self.rounds = result.rounds
        return len(result.ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="*", type=Path, help="default: the shipped test queries")
    parser.add_argument("--limit", type=int, default=2, help="queries a task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of timing, at most")
    parser.add_argument(
        "--dtype",
        nargs="+",
        default=["bfloat16"],
        help="the first is also transformers'; int4:compiled is int4 with --backend compiled",
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="arms file; default: the arms that ship for --target, or those that need no training",
    )
    parser.add_argument("--arms", default="", help="comma-separated; default: all of the file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument(
        "--assistant", help="draft model folder for transformers' assisted decoding"
    )
    parser.add_argument(
        "--gguf",
        type=Path,
        help="the same model's GGUF file: adds llama.cpp, ik_llama.cpp, mistral.rs and OpenVINO",
    )
    parser.add_argument("--gguf-draft", type=Path, help="a draft model's, for llama.cpp")
    parser.add_argument(
        "--exit-layer", type=int, default=6, help="of transformers' early exit; 0 leaves it out"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="transformers with a static cache and torch.compile too; default: on CUDA",
    )
    parser.add_argument(
        "--peers",
        choices=("all", "gguf", "none"),
        default="all",
        help="other libraries too: all, those that read --gguf, or none",
    )
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("decode.json"))
    parser.add_argument("--resume", action="store_true", help="go on with what --out holds")
    given = parser.parse_args()

    engines, own = dict[str, Engine](), dict[Engine, float]()
    for dtype, engine, grew in loaded(given):
        engines[dtype], own[engine] = engine, grew
    if not engines:
        parser.error("no engine was loaded")
    engine = next(iter(engines.values()))
    queries = read_queries(given.queries) if given.queries else shipped("test")
    asked = first_per_task(queries, given.limit)
    prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in asked]
    methods: dict[str, Any] = own_methods(engines)
    grown = {name: own[run.engine] for name, run in methods.items()}
    if given.peers != "none":
        runs, more = peers(given, engine, max(map(len, prompts)))
        methods, grown = methods | runs, grown | more
    timing = Timing.begin(given, methods, asked)
    if timing is None:
        parser.error(f"{given.out} holds another run; leave --resume out or name another --out")
    timing.grown |= grown
    timing.warm_up(prompts)
    timing.run(prompts)
    report(timing, asked)


def held_mb() -> float:
    """Memory that this process holds, the pages of files among it; 0 where Linux does not say."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return 0.0
    return int(pages.read_text(encoding="utf-8").split()[1]) * mmap.PAGESIZE / 1e6


def loaded(given: argparse.Namespace) -> Iterator[tuple[str, Engine, float]]:
    """("dtype:backend" as given, engine, megabytes that it grew the process by) of each that
    loads."""
    only = [PLAIN, *filter(None, given.arms.split(","))] if given.arms else None
    for dtype in given.dtype:
        precision, _, backend = dtype.partition(":")
        before = held_mb()
        try:
            engine = Engine.load(
                given.target,
                given.config or arms_of(given.target),
                only=only,
                dtype=precision,
                device=given.device,
                backend=backend or "auto",
            )
        except DraftpickError as error:
            print(f"{dtype} is left out: {error}")
            continue
        yield dtype, engine, held_mb() - before


def arms_of(target: str) -> Path | None:
    """Arms that need no training for a target that none ship for; None for others."""
    return None if target in (TARGET, *KNOWN_FILES) else UNTRAINED_ARMS


def own_methods(engines: dict[str, Engine]) -> dict[str, Own]:
    """Every arm of every engine; those of the first by the arm's name alone."""
    first = next(iter(engines))
    return {
        arm if dtype == first else f"{arm}, {dtype.replace(':', ', ')}": Own(engine, arm)
        for dtype, engine in engines.items()
        for arm in engine.arm_names
    }


def peers(
    given: argparse.Namespace, engine: Engine, longest: int
) -> tuple[dict[str, Run], dict[str, float]]:
    """The other libraries, each with a model of its own: what one compiles or patches is no
    concern of another's; and by how many megabytes the process grew for each. longest: tokens of
    the longest prompt."""
    like = engine.prefill([1]).logits
    folder, room = targets.resolve(given.target), longest + given.max_new_tokens
    compiled = like.device.type == "cuda" if given.compile is None else given.compile
    assistant = transformers_model(given.assistant, like) if given.assistant else None

    def model() -> Any:
        return transformers_model(folder, like)

    makers: list[Callable[[], dict[str, Run]]] = []
    if given.peers == "all":
        makers += [
            lambda: transformers_runs(
                model(), assistant, given.exit_layer, room if compiled else 0
            ),
            lambda: flashspec_runs(model(), engine.eos_ids, assistant, room),
            lambda: economize_runs(model(), engine.eos_ids, given.assistant),
        ]
    if given.gguf:
        threads = torch.get_num_threads()
        makers += [
            lambda: openvino_runs(given.gguf, engine.eos_ids),
            lambda: llama_cpp_runs(given.gguf, threads, room, given.gguf_draft),
            lambda: ik_llama_runs(given.gguf, threads, room),
            lambda: mistral_rs_runs(given.gguf, engine.tokenizer.decode),
        ]
    runs, grown = dict[str, Run](), dict[str, float]()
    for make in makers:
        before = held_mb()
        try:
            made = make()
            runs, grown = runs | made, grown | dict.fromkeys(made, held_mb() - before)
        except Exception as error:  # a peer's own, of any kind
            print(f"a peer is left out: {type(error).__name__}: {error}")
    return runs, grown


@dataclass
class Timing:
    """What was measured so far: seconds[method][prompt] of each repeat, and likewise to the first
    token; the tokens and, of our own methods, the rounds of the last one; failed: why a method was
    left out.

    grown: by how many megabytes the process grew while a method was loaded, alone or with others
        of its library, and first answered.
    """

    given: argparse.Namespace
    settings: dict[str, Any]
    methods: dict[str, Run]
    seconds: dict[str, list[list[float]]]
    first_s: dict[str, list[list[float]]]
    tokens: dict[str, list[int]]
    rounds: dict[str, list[int]]
    failed: dict[str, str]
    grown: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begin(
        cls, given: argparse.Namespace, methods: dict[str, Run], asked: Sequence[Query]
    ) -> Timing | None:
        """A fresh one or, with --resume, that of --out; None where that is another run's."""
        engines = {run.engine for run in methods.values() if isinstance(run, Own)}
        settings = {
            "queries": [q.id for q in asked],
            "engines": sorted(
                [each.target_fingerprint, each.timed_by, each.arms_fingerprint(each.arm_names)]
                for each in engines
            ),
            "max_new_tokens": given.max_new_tokens,
            **{name: str(getattr(given, name)) for name in SETTINGS},
            "dtype": given.dtype,
            "target": Path(given.target).name,
            "note": given.note,
            "hardware": hardware(),
            "versions": versions(),
        }
        made = cls(
            given,
            settings,
            methods,
            {name: [[] for _ in asked] for name in methods},
            {name: [[] for _ in asked] for name in methods},
            {name: [0] * len(asked) for name in methods},
            {name: [0] * len(asked) for name, run in methods.items() if isinstance(run, Own)},
            {},
        )
        if not (given.resume and given.out.exists()):
            return made
        held = json.loads(given.out.read_text(encoding="utf-8"))
        same = {name: held.get(name) for name in settings} == settings
        if not same or {*held["tokens"], *held["failed"]} != {*methods}:
            return None
        for name in ("seconds", "first_s", "tokens", "rounds", "failed"):
            setattr(made, name, held[name])
        made.methods = {name: run for name, run in methods.items() if name in made.seconds}
        return made

    def warm_up(self, prompts: Sequence[list[int]]) -> None:
        """Before the clock runs: the longest prompt, for which static caches are made, and the
        shortest; our own methods some more, as each width and reach of theirs is recorded when it
        first comes up."""
        ordered = sorted(prompts, key=len, reverse=True)
        some = [ordered[0], ordered[-1]]
        more = ordered[1 : -1 : max(1, len(ordered) // 6)]
        for name, run in track([*self.methods.items()], description="warming up"):
            before = held_mb()
            for prompt in [*some, *more] if isinstance(run, Own) else some:
                if self._timed(name, run, prompt) is None:
                    break
            self.grown[name] = self.grown.get(name, 0.0) + held_mb() - before

    def run(self, prompts: Sequence[list[int]]) -> None:
        order, ends = random.Random(self.given.seed), time.monotonic() + 60 * self.given.minutes
        done = [max((len(s[at]) for s in self.seconds.values()), default=0) for at in self._all()]
        jobs = [(at, turn) for turn in range(self.given.repeats) for at in self._all()]
        for at, turn in track(jobs, description="decoding"):
            if turn < done[at]:
                continue
            if time.monotonic() > ends:
                break
            took: dict[str, tuple[float, float]] = {}
            for name in order.sample(list(self.methods), len(self.methods)):
                run = self.methods[name]
                first = self._timed(name, run, prompts[at], 1)
                timed = first and self._timed(name, run, prompts[at])
                if first and timed:
                    took[name] = (timed[0], first[0])
                    self.tokens[name][at] = timed[1]
                    if isinstance(run, Own):
                        self.rounds[name][at] = run.rounds
            for name, (whole, begun) in took.items():
                self.seconds[name][at].append(whole)
                self.first_s[name][at].append(begun)
            self.save()

    def _all(self) -> range:
        return range(len(self.settings["queries"]))

    def _timed(
        self, name: str, run: Run, prompt: list[int], most: int = 0
    ) -> tuple[float, int] | None:
        """Seconds and new tokens; None, and the method left out, where it fails. most: 0 for as
        many as were asked for."""
        device = targets.device_of(self.given.device)
        try:
            synchronize(device)
            started = time.perf_counter()
            made = run(prompt, most or self.given.max_new_tokens)
            synchronize(device)
            return time.perf_counter() - started, made
        except Exception as error:  # a peer's own, of any kind
            self.failed[name] = f"{type(error).__name__}: {str(error).strip()[:300]}"
            print(f"{name} is left out: {self.failed[name]}")
            for kept in (self.methods, self.seconds, self.first_s, self.tokens, self.rounds):
                kept.pop(name, None)
            return None

    def save(self, **more: Any) -> None:
        names = ("seconds", "first_s", "tokens", "rounds", "failed")
        record = {**self.settings, **more, **{name: getattr(self, name) for name in names}}
        write_atomically(self.given.out, json.dumps(record, indent=1))

    # -- figures ----------------------------------------------------------------------------------

    def measured(self) -> list[int]:
        """The prompts that every method has answered."""
        return [at for at in self._all() if all(times[at] for times in self.seconds.values())]

    def speed(self, name: str, chosen: Sequence[int]) -> float:
        """Tokens a second over these prompts."""
        spent = sum(statistics.median(self.seconds[name][at]) for at in chosen)
        return sum(self.tokens[name][at] for at in chosen) / spent

    def apart(self, name: str, chosen: Sequence[int]) -> tuple[float, float]:
        """Seconds to the first token, in the mean, and tokens a second from there on."""
        first, whole = (
            sum(statistics.median(times[name][at]) for at in chosen)
            for times in (self.first_s, self.seconds)
        )
        more = sum(self.tokens[name][at] - 1 for at in chosen)
        return first / len(chosen), more / max(whole - first, 1e-9)

    def times(self, name: str, base: str, chosen: Sequence[int]) -> dict[str, float]:
        """How many times faster than `base` over these prompts, with its interval."""
        ours, theirs = (
            [(self.tokens[one][at], statistics.median(self.seconds[one][at])) for at in chosen]
            for one in (name, base)
        )
        return faster(ours, theirs)

    def tokens_a_round(self, name: str, chosen: Sequence[int]) -> float | None:
        if name not in self.rounds:
            return None
        made = sum(self.tokens[name][at] - 1 for at in chosen)
        return made / max(1, sum(self.rounds[name][at] for at in chosen))


def report(timing: Timing, asked: Sequence[Query]) -> None:
    """The table, and --out with the figures in it."""
    chosen = timing.measured()
    if not chosen:
        print("no prompt was answered by every method: no figures")
        return
    speed = {name: timing.speed(name, chosen) for name in timing.methods}
    tasks = list(dict.fromkeys(asked[at].task for at in chosen))
    of_task = {task: [at for at in chosen if asked[at].task == task] for task in tasks}
    by_task = {
        name: {task: timing.speed(name, ats) for task, ats in of_task.items()} for name in speed
    }
    bases = {label: base for label, base in BASES.items() if base in speed}
    ratios = {
        name: {label: timing.times(name, base, chosen) for label, base in bases.items()}
        for name in speed
    }
    rounds = {name: timing.tokens_a_round(name, chosen) for name in timing.rounds}
    most, first = timing.given.max_new_tokens, timing.given.dtype[0]
    title = f"{len(chosen)} prompts, {most} new tokens, {first} {timing.given.note}"
    table = Table(title=title.strip(), caption="ratios with 95% intervals over prompts")
    apart = {name: timing.apart(name, chosen) for name in speed}
    columns = ("method", "tokens/s", "first, s", "then/s", "memory, MB", *bases, "tokens/round")
    for column in (*columns, *tasks):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in sorted(speed, key=lambda n: -speed[n]):
        cells = [f"{speed[name]:.1f}", f"{apart[name][0]:.2f}", f"{apart[name][1]:.1f}"]
        cells.append(f"{timing.grown[name]:.0f}")
        cells += [
            "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**one) for one in ratios[name].values()
        ]
        mean = rounds.get(name)
        cells.append("" if mean is None else f"{mean:.2f}")
        table.add_row(name, *cells, *[f"{by_task[name][task]:.0f}" for task in tasks])
    Console(width=None if Console().is_terminal else 160).print(table)
    timing.save(
        prompts=len(chosen),
        tokens_per_s=speed,
        tokens_per_s_by_task=by_task,
        first_s_and_then_per_s=apart,
        memory_mb=timing.grown,
        ratios=ratios,
        tokens_per_round=rounds,
    )


if __name__ == "__main__":
    main()
