"""Train recurrent drafters on token files, one after the other in one process.

Without --plan or --specialists, one drafter:

    python benchmarks/train_recurrent.py --tokens shards/*.npz --out drafts/general --minutes 4

The same data, one generalist against specialists (each given the same minutes; `general-on` is the
generalist that goes on with everything for as long):

    python benchmarks/train_recurrent.py --tokens shards/*.npz --out drafts --minutes 4 \\
        --specialists 0.4

A plan is a JSON list of stages, each with a name and whatever differs: `start` (an earlier stage's
name or a folder), `tasks`, `width`, `blocks`, `vocab_size`, or a field of the recipe.

    [{"name": "general", "minutes": 4.0},
     {"name": "math", "start": "general", "tasks": ["math"], "minutes": 0.4, "matrix_lr": 0.006}]

Every stage leaves OUT/NAME/model (the drafter), curve.jsonl (held-out figures by positions trained
on) and result.json; OUT/results.json has all stages. Stopped and called again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from token_files import held_out as apart_of
from token_files import load

from collect.align.held_out import HeldOut
from collect.align.recipe import RecurrentRecipe
from collect.align.recurrent import Point
from collect.align.teacher import Teacher
from collect.align.training import CHECKPOINT
from collect.align.training_stage import Target, TrainingStage, finished, of_tasks, run_stage
from collect.align.weights import training_dtype
from decoders.backends.native import LlamaBackend
from decoders.common.errors import DraftpickError
from decoders.models import targets
from decoders.zoo import TARGET

GROUPS = {
    "math": ("math",),
    "chat": ("mt_bench",),
    "translation": ("translation",),
    "documents": ("rag", "summarization"),
}
GOING_ON = 0.3  # of the rates: a specialist is not begun anew
SIZES = ("width", "blocks", "vocab_size")
RECIPE = tuple(field.name for field in fields(RecurrentRecipe) if field.name != "prompts")
FLAGS = {
    "--minutes": "of training, the figures included",
    "--epochs": "passes over the texts, without --minutes",
    "--batch-tokens": "padded positions a step",
    "--steps": "tokens drafted ahead in training",
    "--fade": "weight of each of them to that of the one before",
    "--lr": "peak rate of the norms (AdamW)",
    "--matrix-lr": "peak rate of the matrices (Muon); more for a run of few steps",
    "--weight-decay": "of the matrices",
    "--warmup": "share of the run in which the rates rise",
    "--longest": "tokens of a text that are kept, from its end",
    "--seed": "of weights and order",
    "--width": "of a new drafter's gated blocks",
    "--blocks": "of a new drafter",
    "--vocab-size": "ids that a new drafter scores",
}


def stages_of(given: argparse.Namespace) -> list[dict[str, Any]]:
    """The plan as a list of records."""
    if given.plan is not None:
        plan = json.loads(given.plan.read_text(encoding="utf-8"))
        known = {"name", "start", "tasks", *SIZES, *RECIPE}
        for record in plan:
            unknown = sorted(set(record) - known)
            if unknown or "name" not in record:
                raise DraftpickError(
                    f"{given.plan}: a stage has a name and may have {', '.join(sorted(known))}; "
                    f"not {', '.join(unknown) or 'none'}"
                )
        return list(plan)
    if given.specialists is None:
        return [{"name": "", "start": given.start, "tasks": given.tasks}]
    slower = {
        "start": "general",
        "minutes": given.specialists,
        "lr": GOING_ON * given.lr,
        "matrix_lr": GOING_ON * given.matrix_lr,
    }
    return [
        {"name": "general", "start": given.start},
        *({"name": name, "tasks": tasks, **slower} for name, tasks in GROUPS.items()),
        {"name": "general-on", **slower},
    ]


def parts(given: argparse.Namespace) -> list[tuple[TrainingStage, RecurrentRecipe]]:
    """The plan's stages and their recipes; what a record leaves out is as the options say."""
    base = RecurrentRecipe(**{name: getattr(given, name) for name in RECIPE})
    made: dict[str, tuple[TrainingStage, RecurrentRecipe]] = {}
    for record in stages_of(given):
        recipe = replace(base, **{name: record[name] for name in RECIPE if name in record})
        start = record.get("start")
        if start is not None:
            earlier = made.get(str(start))
            start = Path(start) if earlier is None else earlier[0].out / "model"
        sizes = {name: record.get(name, getattr(given, name)) for name in SIZES}
        tasks = tuple(record.get("tasks") or ())
        made[record["name"]] = (
            TrainingStage(given.out / record["name"], start, tasks, **sizes, int8=given.int8),
            recipe,
        )
    return list(made.values())


def table(points: dict[str, Point], figure: str) -> str:
    """Markdown: a row a stage, a column a task."""
    tasks = list(dict.fromkeys(t for p in points.values() for t in p.figures))
    lines = [f"| {figure} | " + " | ".join(tasks) + " |", "| --- |" + " --- |" * len(tasks)]
    for name, point in points.items():
        shares = (point.figures.get(task, {}).get(figure) for task in tasks)
        cells = ("" if share is None else f"{share:.3f}" for share in shares)
        lines.append(f"| {name or 'drafter'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--tokens", type=Path, nargs="+", required=True, help="token files")
    parser.add_argument("--out", type=Path, required=True, help="folder for drafters and curves")
    parser.add_argument("--target", default=TARGET, help="model to draft for")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--plan", type=Path, help="JSON list of stages")
    parser.add_argument("--specialists", type=float, help="minutes of each, after a generalist")
    parser.add_argument("--start", type=Path, help="a drafter's folder to go on from")
    parser.add_argument("--tasks", nargs="*", help="train on these alone")
    parser.add_argument("--int8", action="store_true", help="save matrices in int8, half as large")
    parser.add_argument("--held-out", type=int, default=100, help="texts a task to be judged on")
    defaults = {
        **asdict(RecurrentRecipe()),
        **{name: getattr(TrainingStage, name) for name in SIZES},
    }
    for flag, words in FLAGS.items():
        default = defaults[flag[2:].replace("-", "_")]
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", help=words)
        else:
            kind = float if default is None else type(default)
            parser.add_argument(flag, type=kind, default=default, help=words)
    return parser


def main() -> None:
    given = options().parse_args()
    plan = parts(given)
    tokens = load(sorted(given.tokens))
    for stage, _ in plan:
        of_tasks(tokens, stage.tasks)  # a wrong name is reported now, not after the first stage
    device = targets.device_of(given.device)
    folder = targets.resolve(given.target)
    backend = targets.load_backend(folder, device, training_dtype(device), "native", context=64)
    assert isinstance(backend, LlamaBackend)
    target = Target(given.target, Teacher(backend), targets.eos_ids(folder))
    apart = apart_of(tokens)
    held_out = HeldOut(target.teacher, tokens.pick(apart), given.held_out, given.longest)
    kept = tokens.pick(~apart)
    say(f"{len(kept):,} texts of {len(kept.ids):,} tokens; judged on {held_out.texts}")

    points: dict[str, Point] = {}
    for stage, recipe in plan:
        name = stage.out.name if stage.out != given.out else ""

        def report(now: dict[str, float], name: str = name) -> None:
            say(" ".join([name, *(f"{key}={value:.4g}" for key, value in now.items())]))

        done = finished(stage, recipe)
        points[name] = done or run_stage(
            stage, target, kept, held_out, recipe, "python benchmarks/train_recurrent.py", report
        )
        (stage.out / CHECKPOINT).unlink(missing_ok=True)
        overall = points[name].figures.get("overall", {})
        told = ", ".join(f"{key} {value:.3f}" for key, value in overall.items())
        say(f"{name or 'drafter'}: {points[name].positions:,} positions; {told}")
        record = {name or "drafter": asdict(point) for name, point in points.items()}
        temporary = given.out / ".results.json.tmp"
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
        os.replace(temporary, given.out / "results.json")
    for figure in ("first", "two", "three", "overlap", "overlap_drawn"):
        if any(figure in f for p in points.values() for f in p.figures.values()):
            print(f"\n{table(points, figure)}")


if __name__ == "__main__":
    main()
