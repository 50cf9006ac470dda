"""A reproduction from end to end: collect, train every seed, measure; each part resumes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collect.queries import Query
from collect.store.collection import Collection
from collect.sweeps.batch import SweepOptions
from collect.table_options import TableOptions
from decoders.arms import AUTOREGRESSIVE
from decoders.arms.file import arms_of
from decoders.common import plugins
from decoders.common.errors import DraftpickError
from decoders.common.provenance import measured_on
from decoders.options import EngineOptions
from decoders.records import Request, Sampling

from . import held_out
from .records import Arms, Counts, Measured, Point, PolicyPlan, Reproduction, Run, Walls

if TYPE_CHECKING:
    from policies import RewardTable
    from router.specbench.records import Row

WEIGHTS = "model.safetensors"
BATCH = 16  # queries; as many are done again after a kill


@dataclass(frozen=True)
class Scale:
    """How large, and where: seeds of every policy, queries a task and tokens (None for the
    reproduction's own), and the device."""

    seeds: int = 5
    train: int | None = None
    test: int | None = None
    max_new_tokens: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("seeds", "train", "test", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DraftpickError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")


def write(what: Reproduction, out: Path, scale: Scale = Scale()) -> dict[str, Any]:
    """Do all that `out` lacks of it, and write NAME.md and NAME.json there; returns what the latter
    holds (`page.as_json`). Call it again after a kill, with the same scale.

    Raises DraftpickError where weights are missing, and where `out` holds one of another scale.
    """
    from decoders.common.files import write_atomically
    from decoders.common.provenance import versions

    from .page import as_json, render

    require_weights(what)
    keep_scale(what, out, scale)
    started = time.perf_counter()
    found = reproduce(what, out, scale)
    asked = [summary["questions"] for summary in found.summaries.values()]
    asked += [len(point.groups) for curve in found.points.values() for point in curve.values()]
    about = {
        "scale": {**asdict(scale), "questions": max(asked)},
        "seconds": time.perf_counter() - started,
        "hardware": next((s["hardware"] for s in found.summaries.values()), None),
        "versions": versions(),
    }
    told = as_json(what, found, about)
    write_atomically(out / f"{what.name}.json", json.dumps(told, indent=2) + "\n")
    write_atomically(out / f"{what.name}.md", render(what, told))
    return told


def reproduce(what: Reproduction, out: Path, scale: Scale = Scale()) -> Measured:
    """The part of `write` that computes."""
    tokens = scale.max_new_tokens or what.models.max_new_tokens
    train = what.draw_train(scale.train or what.train)
    test = what.draw_test(scale.test or what.test)
    rewards = out / "rewards"
    trained: dict[str, list[Path]] = {}
    if what.policies:
        _say(f"collecting {len(train)} training queries through {len(what.arms)} arms")
        collect(what, train, rewards, tokens, scale.device)
        _say(f"training {len(what.policies)} policies, {scale.seeds} seeds each")
        trained = train_all(what, rewards, out / "policies", scale.seeds)
    points: dict[str, dict[str, Point]] = {}
    if what.curves:
        held = out / "held-out"
        temperatures = sorted({0.0, *(curve.temperature for curve in what.curves)})
        _say(f"collecting {len(test)} held-out queries, to judge policies by")
        collect(what, test, held, tokens, scale.device, temperatures)
        plans = {plan.name: plan for plan in what.policies}
        points = {c.title: held_out.points(c, trained, held, plans) for c in what.curves}
    summaries, walls, counts = {}, {}, {}
    for run in what.runs:
        _say(f"measuring {run.name}, {len(run.arms)} arms, {len(run.policies)} policies")
        measured = measure(what, run, test, trained, out, tokens, scale)
        summaries[run.name], walls[run.name], counts[run.name] = measured
    return Measured(summaries, points, walls, counts)


def require_weights(what: Reproduction) -> None:
    """Raise DraftpickError where the models are a family of ours that is not there."""
    models = what.models
    if models.family is not None and not (Path(models.target) / WEIGHTS).is_file():
        raise DraftpickError(
            f"{what.name} needs the weights in {models.family}, which are not there; {models.make}"
        )


def keep_scale(what: Reproduction, out: Path, scale: Scale) -> None:
    """Note in `out` what is done there; raise DraftpickError where it was something else."""
    from decoders.common.files import write_atomically

    asked = {"name": what.name, **asdict(scale)}
    note = out / "scale.json"
    if not note.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(note, json.dumps(asked) + "\n")
        return
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        was = {name: known.get(name) for name in asked}
    except (ValueError, AttributeError):
        raise DraftpickError(f"{note} is damaged; delete {out} and run again") from None
    other = [f"{name}: {was[name]} there, {now} now" for name, now in asked.items()
             if was[name] != now]  # fmt: skip
    if other:
        raise DraftpickError(
            f"{out} holds a reproduction of another kind ({'; '.join(other)}); give another --out, "
            "or delete that folder to start again"
        )


def collect(
    what: Reproduction,
    queries: Sequence[Query],
    folder: Path,
    max_new_tokens: int,
    device: str,
    temperatures: Sequence[float] = (0.0,),
) -> None:
    """Every arm on every query, as `draftpick collect` does."""
    from collect.replay.batch import Batch
    from collect.sweeps.progress import SweepProgress
    from collect.sweeps.run import sweep
    from decoders import Engine
    from decoders.common.terminal import progress

    engine = Engine.from_options(engine_options(what, what.arms, device))
    options = SweepOptions(
        max_new_tokens=max_new_tokens, batch_size=BATCH, temperatures=tuple(temperatures)
    )
    with progress("collecting", "answers") as tick:

        def report(now: SweepProgress) -> None:
            tick(now.done, now.total, now.figures)

        sweep(engine, Batch(engine), queries, folder, options, report)


def train_all(what: Reproduction, rewards: Path, out: Path, seeds: int) -> dict[str, list[Path]]:
    """Every policy's folders, one a seed. Those that were trained on this very table stay."""
    from decoders.common.terminal import progress

    trained: dict[str, list[Path]] = {plan.name: [] for plan in what.policies}
    with progress("training", "policies") as tick:
        for number, (plan, seed) in enumerate(product(what.policies, range(seeds))):
            tick(number, len(what.policies) * seeds)
            folder = out / f"{plan.name}.{seed}"
            trained[plan.name].append(train_one(plan, rewards, folder, seed))
        tick(len(what.policies) * seeds, len(what.policies) * seeds)
    return trained


def train_one(plan: PolicyPlan, rewards: Path, folder: Path, seed: int) -> Path:
    """The paper's REINFORCE, saved whatever it is worth."""
    from policies import fit, load
    from policies.errors import PolicyError
    from policies.learners.reinforce import PAPER

    table = table_of(plan, rewards, seed)
    options = PAPER | ({} if plan.epochs is None else {"epochs": plan.epochs})
    try:
        origin = load(folder).origin
        same = all(origin.options.get(name) == value for name, value in options.items())
        if origin.table_digest == table.digest and origin.seed == seed and same:
            return folder
    except PolicyError:
        pass  # there is none yet
    fit("reinforce", table, None, seed, **options).policy.save(folder)
    return folder


def table_of(plan: PolicyPlan, rewards: Path, seed: int) -> RewardTable:
    """What a plan's policy learns from: the paper reads the embedding alone."""
    from collect.table import reward_table
    from policies.selection.crossfit import subsample

    table = reward_table(
        Collection.open(rewards), TableOptions(plan.reward, plan.alpha, plan.arms, features=[])
    )
    if plan.task is not None:
        table = table.rows([i for i, task in enumerate(table.tasks) if task == plan.task])
    return table if plan.train_size is None else subsample(table, plan.train_size, seed)


def measure(
    what: Reproduction,
    run: Run,
    questions: Sequence[Query],
    trained: Mapping[str, Sequence[Path]],
    out: Path,
    max_new_tokens: int,
    scale: Scale,
) -> tuple[dict[str, Any], Walls, Counts]:
    """An interleaved benchmark, as `draftpick specbench --candidate ... --dynamic` does: at
    temperature 0 one, with every seed of the policies, above it one with each seed (`draws`)."""
    from decoders import Engine
    from router.routing.router import Router
    from router.specbench.bench import specbench
    from router.specbench.candidates import DRAWN, candidates_of
    from router.specbench.journal import read_rows
    from router.specbench.summary import summarise

    from .draws import by_seeds, spread, together, walls_of
    from .fronts import counts_of

    asked = [query for query in questions if not run.tasks or query.task in run.tasks]
    options = engine_options(what, run.arms, scale.device)
    engine = Engine.from_options(options)
    router = Router(engine, None)
    request = Request(max_new_tokens, Sampling(temperature=run.temperature), seed=0)
    hardware = measured_on(engine.target_fingerprint.rpartition("/")[2], options.device)
    folder = out / "measured" / run.name.replace(" ", "-")
    wanted = {question.id for question in asked}

    def once(seed: int, folders: Mapping[str, Sequence[Path]], into: Path) -> Drawn:
        named = [
            (name if len(folders[name]) == 1 else f"{name}.{number}", str(each))
            for name in run.policies
            for number, each in enumerate(folders[name], 1)
        ]
        chosen = candidates_of(router, named, run.dynamic)
        summary = specbench(
            router, asked, request, into, seed=seed, hardware=hardware, candidates=chosen
        )
        names = [name for name in run.policies for _ in folders[name]]
        groups: dict[str, list[str]] = {}
        for name, (own, _) in zip(names, named, strict=True):
            for drawn in ("", DRAWN) if run.dynamic else ("",):
                groups.setdefault(name + drawn, []).append(own + drawn)
        rows = [row for row in read_rows(into) if row.question_id in wanted]
        return Drawn(summary, rows, groups)

    if run.temperature == 0:
        drawn = once(0, trained, folder)
        if drawn.groups:
            drawn.summary["seeds"] = by_seeds(drawn.summary, drawn.rows, drawn.groups)
        return drawn.summary, walls_of(drawn.rows, drawn.groups), counts_of([drawn.rows])
    draws = []
    for seed in range(scale.seeds):
        _say(f"draw {seed + 1} of {scale.seeds}")
        own = {name: each[seed : seed + 1] for name, each in trained.items()}
        draws.append(once(seed, own, folder / f"draw-{seed + 1}"))
    groups, rows = draws[0].groups, together([one.rows for one in draws])
    chosen = [method for methods in groups.values() for method in methods]
    pooled = summarise(rows, greedy=False, eos_ids=engine.eos_ids, candidates=chosen)
    summary = {**draws[0].summary, **pooled}
    summary["seeds"] = spread(summary, [one.summary for one in draws])
    return summary, walls_of(rows, groups), counts_of([one.rows for one in draws])


@dataclass(frozen=True)
class Drawn:
    """One benchmark. groups: the methods of each group of candidates."""

    summary: dict[str, Any]
    rows: list[Row]
    groups: dict[str, list[str]]


def engine_options(what: Reproduction, arms: Arms, device: str = "cpu") -> EngineOptions:
    """The engine of these arms; the autoregressive one is always among them."""
    plugins.load()
    body = {AUTOREGRESSIVE: {"kind": AUTOREGRESSIVE}, **arms}
    recipes = arms_of({"arms": {name: dict(arm) for name, arm in body.items()}}, Path(what.name))
    return EngineOptions(what.models.target, recipes, dtype=what.models.dtype, device=device)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
