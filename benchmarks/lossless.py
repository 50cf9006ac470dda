"""Are the ids of every arm the ids that they should be? On whole query files.

    python benchmarks/lossless.py --queries FILES... --max-new-tokens 64 --out lossless.jsonl
    python benchmarks/lossless.py --queries FILES... --against self --dtype bfloat16 int8 int4
    python benchmarks/lossless.py --queries FILES... --against self --dtype int4 --temperature 1

The reference is transformers' own `generate(do_sample=False)` in float32, --batch prompts at a
time; or, with `--against self`, what plain decoding writes with the same weights and backend,
alone and to the same seed; the arms answer alone or, with --at-once, together in shared passes. A
line per query is appended to --out, so that a long run may be stopped and goes on; the last lines
printed, and --out with the ending .json, are the totals over the whole file. Where answers part,
`gap` says how far apart the two tokens' logits are: against transformers in float64, against self
by the model itself. Below TIE they are one to that precision, and even a model's own choice between
them changes with the number of tokens that it reads at once. An arm that fails is named, and the
others go on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from collect.queries import Query, read_queries
from decoders import Engine, Request, Sampling
from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import DraftpickError
from decoders.common.files import whole_lines, write_atomically
from decoders.common.provenance import hardware, versions
from decoders.continuous_batching import ContinuousBatch
from decoders.models import targets
from decoders.records import Prefilled
from decoders.zoo import TARGET

# float32 logits of the default target are 2 to 4e-5 from float64's; bfloat16's steps between 16 and
# 32, where its largest logits are, are 0.125 wide
TIE, ROUNDED_TIE = 1e-4, 0.25
SETTINGS = (
    "target", "config", "against", "device", "max_new_tokens", "temperature", "top_p", "at_once",
    "batch_invariant",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, default=0, help="queries a task, 0 for all")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--config", type=Path, help="arms file; default: the arms that ship")
    parser.add_argument("--arms", default="", help="comma-separated; all of the file by default")
    parser.add_argument("--against", choices=("transformers", "self"), default="transformers")
    parser.add_argument("--dtype", nargs="+", default=["float32"], help="the first is judged first")
    parser.add_argument("--backend", nargs="+", default=["auto"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1, help="prompts that transformers is given")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--top-p", type=float, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="answers that share passes")
    parser.add_argument("--batch-invariant", action="store_true", help="as of `draftpick serve`")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then no more queries")
    parser.add_argument("--out", type=Path, default=Path("lossless.jsonl"))
    given = parser.parse_args()
    if given.against == "transformers" and given.dtype != ["float32"]:
        parser.error("transformers is compared with in float32; add --against self")
    if given.against == "transformers" and (given.temperature or given.at_once > 1):
        parser.error("transformers writes greedy answers alone here; add --against self")

    torch.backends.cuda.matmul.allow_tf32 = False  # ten bits of a factor would be no reference
    torch.backends.cudnn.allow_tf32 = False
    engines = dict(loaded(given))
    if not engines:
        parser.error("nothing to compare: no engine was loaded")
    labels = [f"{arm}, {setup}" for setup, engine in engines.items() for arm in engine.arm_names]
    batches = {
        setup: ContinuousBatch(engine, given.at_once, given.batch_invariant)
        for setup, engine in engines.items()
        if given.at_once > 1
    }
    known = whole_lines(given.out).splitlines() if given.out.is_file() else []
    rows = [json.loads(line) for line in known]
    settings = {name: str(getattr(given, name)) for name in SETTINGS}
    if any(row.get("settings") != settings for row in rows) or any(
        {*row["equal"], *row["failed"]} != {*labels} for row in rows
    ):
        parser.error(f"{given.out} holds other arms or settings; name another --out")
    todo = chosen(read_queries(given.queries), given.limit, {row["id"] for row in rows})
    ends = time.monotonic() + 60 * given.minutes
    groups = [todo[at : at + given.batch] for at in range(0, len(todo), given.batch)]
    for group in track(groups, description="checking"):
        if time.monotonic() > ends:
            break
        engine = next(iter(engines.values()))
        prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in group]
        references: Sequence[list[int] | None] = [None] * len(group)
        started = time.perf_counter()
        if given.against == "transformers":
            references = written(given, prompts)
        reference_s = (time.perf_counter() - started) / len(group)
        for query, prompt, reference in zip(group, prompts, references, strict=True):
            if time.monotonic() > ends:
                break
            row = {"id": query.id, "task": query.task, "reference_s": reference_s}
            seed = zlib.crc32(query.id.encode())
            sampling = Sampling(given.temperature, top_p=given.top_p)
            request = Request(given.max_new_tokens, sampling, seed=seed)
            row |= judged(given, engines, batches, prompt, request, reference)
            row["settings"] = settings
            rows.append(row)
            with given.out.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(row) + "\n")
    report(given, rows, labels)


def loaded(given: argparse.Namespace) -> Iterator[tuple[str, Engine]]:
    """("dtype backend", engine) of each that loads."""
    only = [name for name in given.arms.split(",") if name]
    only = [AUTOREGRESSIVE, *only] if only else only
    for dtype in given.dtype:
        for backend in given.backend:
            try:
                engine = Engine.load(
                    given.target,
                    given.config,
                    only=only or None,
                    dtype=dtype,
                    device=given.device,
                    backend=backend,
                )
            except DraftpickError as error:
                print(f"{dtype} {backend} is left out: {error}")
                continue
            yield f"{dtype} {backend}", engine


def chosen(queries: Sequence[Query], limit: int, done: set[str]) -> list[Query]:
    """The first `limit` of each task that are not done, shuffled: a run cut short saw each task."""
    counts: Counter[str] = Counter()
    todo = []
    for query in queries:
        counts[query.task] += 1
        if query.id not in done and (not limit or counts[query.task] <= limit):
            todo.append(query)
    random.Random(0).shuffle(todo)
    return todo


def judged(
    given: argparse.Namespace,
    engines: dict[str, Engine],
    batches: dict[str, ContinuousBatch],
    prompt: list[int],
    request: Request,
    reference: list[int] | None,
) -> dict[str, Any]:
    """What every arm's answer to one prompt is, beside the reference: transformers' answer, or None
    for what the plain arm writes."""
    row: dict[str, Any] = {"tokens": 0, "equal": {}, "gap": {}, "failed": {}}
    for setup, engine in engines.items():
        expected = reference
        for name, made in answers(engine, batches.get(setup), prompt, request).items():
            label = f"{name}, {setup}"
            if not isinstance(made, list):
                row["failed"][label] = str(made).splitlines()[0][:200]
                continue
            if expected is None and name != AUTOREGRESSIVE:
                row["failed"][label] = "there is no plain answer to compare with"
                continue
            expected = made if expected is None else expected
            row["tokens"] = max(row["tokens"], len(expected))
            row["equal"][label] = made == expected
            if made != expected:
                row["gap"][label] = gap(given, engine, prompt, expected, made)
    return row


def answers(
    engine: Engine, batch: ContinuousBatch | None, prompt: list[int], request: Request
) -> dict[str, list[int] | Exception]:
    """What each arm writes, or how it failed: plain decoding first and alone, the others alone or,
    in a batch, together."""
    made: dict[str, list[int] | Exception] = {}

    def write(name: str, engine: Engine, prefilled: Prefilled | None = None) -> None:
        try:
            made[name] = engine.decode(name, prompt, request, prefilled).ids
        except (DraftpickError, RuntimeError) as error:
            made[name] = error

    names = sorted(engine.arm_names, key=lambda name: name != AUTOREGRESSIVE)
    if batch is None:
        try:
            engine.check(prompt, request)
            prefilled = engine.prefill(prompt)
        except (DraftpickError, RuntimeError) as error:
            return dict.fromkeys(names, error)
        for name in names:
            write(name, engine, prefilled)
        return made
    for together in names[:1], names[1:]:
        while together or batch.running:
            while together and (slot := batch.free(prompt)) is not None:
                batch.begin(slot, partial(write, together.pop(0)))
            batch.step()
    return made


def report(given: argparse.Namespace, rows: list[dict[str, Any]], labels: list[str]) -> None:
    """The totals of each arm, printed and beside --out."""
    tokens = sum(row["tokens"] for row in rows)
    print(f"{len(rows)} queries, {tokens} tokens, against {given.against}")
    totals = {}
    for label in labels:
        tie = TIE if ", float32 " in label else ROUNDED_TIE
        compared = [row for row in rows if label in row["equal"]]
        gaps = [row["gap"][label] for row in compared if label in row["gap"]]
        errors = [row["failed"][label] for row in rows if label in row["failed"]]
        totals[label] = {
            "compared": len(compared),
            "equal": sum(row["equal"][label] for row in compared),
            "part_at_a_tie": sum(gap < tie for gap in gaps),
            "largest_gap": max(gaps, default=0.0),
            "failed": len(errors),
        }
        said = "{equal} of {compared} equal, {part_at_a_tie} part at a tie".format(**totals[label])
        print(f"{label}: {said}" + (f", {len(errors)} failed: {errors[0]}" if errors else ""))
    record = {
        "against": given.against,
        "queries": len(rows),
        "tokens": tokens,
        "max_new_tokens": given.max_new_tokens,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "at_once": given.at_once,
        "batch_invariant": given.batch_invariant,
        "arms": totals,
        "hardware": hardware(),
        "versions": versions(),
    }
    write_atomically(given.out.with_suffix(".json"), json.dumps(record, indent=1))


@cache
def transformers_model(target: str, device: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(targets.resolve(target), dtype=dtype)
    return model.to(targets.device_of(device)).eval()


@torch.inference_mode()
def written(given: argparse.Namespace, prompts: Sequence[list[int]]) -> list[list[int]]:
    """transformers' greedy answers, up to and with the first end-of-sequence token."""
    model = transformers_model(given.target, given.device, torch.float32)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids,
        attention_mask=mask.to(model.device),
        max_new_tokens=given.max_new_tokens,
        do_sample=False,
    )
    ends = set(targets.eos_ids(targets.resolve(given.target)))
    return [until_end(row, ends) for row in out[:, width:].tolist()]


def until_end(ids: list[int], ends: set[int]) -> list[int]:
    at = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    return ids[: at + 1]


@torch.inference_mode()
def gap(
    given: argparse.Namespace,
    engine: Engine,
    prompt: list[int],
    reference: list[int],
    made: list[int],
) -> float:
    """How far apart the two tokens at which the answers part are held."""
    at = next((i for i, (a, b) in enumerate(zip(reference, made, strict=False)) if a != b), None)
    if at is None:  # one is a part of the other
        return float("inf")
    if given.against == "self":
        logits = engine.prefill(prompt + reference[:at]).logits
    else:
        model = transformers_model(given.target, given.device, torch.float64)
        prefix = torch.tensor([prompt + reference[:at]], device=model.device)
        logits = model(prefix).logits[0, -1]
    return abs(float(logits[reference[at]]) - float(logits[made[at]]))


if __name__ == "__main__":
    main()
