"""What choosing arms is worth to a fleet: simulated from a collection's acceptance and pass costs.

    python benchmarks/fleet.py rewards --out fleet

For each way to choose it finds the most traffic that a replica carries while nearly all requests
come fast enough, and so how many replicas a given traffic needs. docs/scaling.md says what is
assumed; `fleet_model.py` is the simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fleet_model import Fleet, Load, Passes, Served, Work, between, daily, simulate
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collect.records import Outcome
from collect.store.collection import Collection
from collect.store.manifest import read_manifest
from decoders.common.errors import DraftpickError
from decoders.common.files import replacing, write_atomically
from decoders.costs.pass_costs import PassCosts
from policies.base import moments
from policies.learners.regression import ridge_weights

Floats = NDArray[np.float64]
FOLDS = 5
STEPS = 12  # of the search for the most traffic


@dataclass(frozen=True)
class Traffic:
    """What a collection says of its queries; a row is one at one temperature.

    arms: the lossless ones, plain decoding first.
    tokens: [n] of the answer after the first. prompts: [n] tokens.
    known: what each of these tokens took.
    guessed: the same by a regression that has not seen the query.
    left_out: rows where an arm failed or nothing was decoded.
    """

    arms: list[str]
    tokens: Floats
    prompts: Floats
    known: Taken
    guessed: Taken
    left_out: int


@dataclass(frozen=True)
class Taken:
    """passes: [..., A, W] for a token, at index i those that read i + 1 rows.
    steps: [..., A] of the drafters.
    """

    passes: Floats
    steps: Floats

    @cached_property
    def rounds(self) -> Floats:
        """[..., A]"""
        return np.asarray(self.passes.sum(axis=-1))

    @cached_property
    def shares(self) -> Floats:
        """[..., A, W] of the rounds, by their width."""
        return np.asarray(self.passes / self.rounds[..., None])

    @cached_property
    def drafted(self) -> Floats:
        """[..., A] a round."""
        return np.asarray(self.shares @ np.arange(self.shares.shape[-1]))


def read_traffic(folder: Path, only: Sequence[str] = (), seed: int = 0) -> Traffic:
    """only: these arms, plain decoding among them; () for all that are lossless.

    Raises DraftpickError where there is no collection with plain decoding in it.
    """
    collection = Collection.open(folder)
    lossless = [
        arm for arm in collection.manifest.arms if arm.lossless and (not only or arm.name in only)
    ]
    infos = sorted(lossless, key=lambda arm: not arm.autoregressive)
    arms = [arm.name for arm in infos]
    if not infos or not infos[0].autoregressive:
        raise DraftpickError(f"{folder} has no plain decoding; collect with `autoregressive`")
    queries = collection.queries
    kept, passes, steps, inputs, groups, left_out = [], [], [], [], [], 0
    for key, outcomes in sorted(collection.outcomes.items()):
        query, temperature = key.query, key.temperature
        if key.running:
            continue
        here = [outcomes[arm] for arm in arms if arm in outcomes]
        failed = len(here) < len(arms) or any(one.error for one in here)
        if failed or queries[query].embedding is None or here[0].new_tokens < 2:
            left_out += 1
            continue
        tokens = here[0].new_tokens - 1
        prompt = len(queries[query].prompt_ids)
        kept.append([tokens, prompt])
        passes.append([passes_of(one) for one in here])
        steps.append([one.drafted if one.calls is None else one.calls for one in here])
        inputs.append([*queries[query].embedding, temperature, np.log(prompt)])
        groups.append(queries[query].group or query)
    if not kept:
        raise DraftpickError(f"{folder} holds no query that every lossless arm answered")
    table = np.array(kept, dtype=np.float64)
    widest = max(len(each) for row in passes for each in row)
    padded = [[np.pad(each, (0, widest - len(each))) for each in row] for row in passes]
    tokens = table[:, :1]
    taken = np.array(padded), np.array(steps, dtype=np.float64)
    known = Taken(taken[0] / tokens[..., None], taken[1] / tokens)
    flat = np.concatenate([known.passes, known.steps[..., None]], axis=-1)  # [n, A, W + 1]
    flat_y = flat.reshape(len(flat), -1)
    said = guessed_from(np.array(inputs), flat_y, known.rounds, groups, seed)
    said = np.clip(said.reshape(flat.shape), 0.0, None)
    rounds = said[..., :-1].sum(axis=-1, keepdims=True)
    fair = np.where(rounds > 0, said[..., :-1], known.passes.mean(axis=0))
    fair *= np.clip(rounds, 0.05, 1.0) / fair.sum(axis=-1, keepdims=True)
    guessed = Taken(fair, said[..., -1])
    return Traffic(arms, table[:, 0], table[:, 1], known, guessed, left_out)


def passes_of(outcome: Outcome) -> Floats:
    """[W] its rounds by their width; around their mean where nobody counted."""
    if outcome.widths is not None:
        return np.array(outcome.widths, dtype=np.float64)
    return outcome.rounds * between(outcome.drafted / outcome.rounds)


def guessed_from(x: Floats, y: Floats, deciding: Floats, groups: list[str], seed: int) -> Floats:
    """[n, k] ridge regression of y, cross-fitted: no row of a query's own group, the queries of its
    source, teaches its prediction or the strength. deciding: [n, A], by whose error the strength is
    chosen."""
    found = np.empty_like(y)
    names, group = np.unique(groups, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(names)) % FOLDS)[group]
    for part in set(fold.tolist()):
        learn, judge = fold != part, fold == part
        if not learn.any():  # one group alone
            learn = judge
        mean, std = moments(x[learn], True)
        inside, outside = (x[learn] - mean) / std, (x[judge] - mean) / std
        own, of = group[learn].tolist(), deciding[learn]
        _, strength = ridge_weights(inside, of - of.mean(axis=0), None, own)
        center = y[learn].mean(axis=0)
        weights, _ = ridge_weights(inside, y[learn] - center, strength, own)
        found[judge] = center + outside @ weights.T
    return found


@dataclass(frozen=True)
class Machine:
    """One replica. draft_s: by arm, of a step. most: requests decoded together."""

    passes: Passes
    draft_s: Floats
    most: int

    def alone_s(self, taken: Taken) -> Floats:
        """[n, A] seconds of a token of a request that has the replica for itself."""
        passes = self.passes.alike(taken.shares, 1)[..., 0]
        return np.asarray(taken.rounds * passes + taken.steps * self.draft_s)

    def cheapest(self, taken: Taken) -> Callable[[int, Load], int]:
        """Of a row and a load the arm with the shortest time for a token if all requests there used
        it; one that nobody there uses makes the others wait for its drafts, too."""
        together = self.passes.alike(taken.shares, self.most)  # [n, A, most]
        drafting = taken.steps / taken.rounds * self.draft_s

        def best(row: int, load: Load) -> int:
            waiting = np.where(load.users, 1, load.requests)
            passes = together[row, :, load.requests - 1]
            return int((taken.rounds[row] * (passes + drafting[row] * waiting)).argmin())

        return best


Choice = Callable[[int, Load], int]


def choices(traffic: Traffic, machine: Machine) -> dict[str, Choice]:
    """By name, what gives the arm of a row where the load is such."""
    weights = traffic.tokens / traffic.tokens.sum()
    whole = Taken(
        np.tensordot(weights, traffic.known.passes, 1)[None], (weights @ traffic.known.steps)[None]
    )
    routed = machine.alone_s(traffic.guessed).argmin(axis=1)
    loaded = machine.cheapest(whole)

    def fixed(arm: int) -> Choice:
        return lambda row, load: arm

    return {
        "plain": fixed(0),
        **{arm: fixed(index) for index, arm in enumerate(traffic.arms) if index},
        "by load": lambda row, load: loaded(0, load),
        "routed": lambda row, load: int(routed[row]),
        "routed with load": machine.cheapest(traffic.guessed),
        "hindsight with load": machine.cheapest(traffic.known),
    }


@dataclass(frozen=True)
class Day:
    """A simulated day. rows: of the traffic, [n] one a request."""

    served: Served
    rows: NDArray[np.intp]


def run_day(traffic: Traffic, machine: Machine, chosen: Choice, rate: float, given: Any) -> Day:
    """rate: requests a second, on average, of each replica."""
    rng = np.random.default_rng(given.seed)
    seconds = given.requests / rate
    arrivals = daily(rate * given.replicas, seconds, 1, given.swing, rng)
    rows = rng.integers(len(traffic.tokens), size=len(arrivals))
    known = traffic.known
    rounds = known.rounds * traffic.tokens[:, None]
    steps = known.steps / known.rounds

    def work_of(number: int, load: Load) -> Work:
        row = rows[number]
        arm = chosen(row, load)
        prompt_s = machine.passes.pass_s(traffic.prompts[row]) if given.prompts else 0.0
        at = row, arm
        return Work(rounds[at], known.drafted[at], arm, prompt_s, steps[at], known.shares[at])

    passes = machine.passes
    fleet = Fleet(
        given.replicas, passes.pass_s, tuple(machine.draft_s), machine.most, widest=passes.widest
    )
    return Day(simulate(fleet, arrivals, work_of, rng), rows)


def judged(day: Day, traffic: Traffic, bound_s: float, replicas: int) -> dict[str, float]:
    """goodput: tokens a second of a replica that came within the bound, in a request whose every
    token took at most `bound_s` on average, its wait and its prompt included."""
    tokens = traffic.tokens[day.rows] + 1
    token_s = day.served.took / tokens
    good = token_s <= bound_s
    span = day.served.done.max() - day.served.arrived[0]
    return {
        "requests": len(tokens),
        "good": float(good.mean()),
        "goodput": float(tokens[good].sum() / span / replicas),
        "median_ms": float(1000 * np.median(token_s)),
        "p95_ms": float(1000 * np.quantile(token_s, 0.95)),
    }


def most_traffic(
    traffic: Traffic, machine: Machine, chosen: Choice, bound_s: float, given: Any
) -> float:
    """The most requests a second of a replica of which the share `given.share` is good, by
    bisection in logarithms; 0 where not even a thousandth of what plain decoding carries is."""
    top = 8 * machine.most / machine.passes.pass_s(machine.most) / traffic.tokens.mean()
    low, high = top / 1000, top

    def holds(rate: float) -> bool:
        day = run_day(traffic, machine, chosen, rate, given)
        return judged(day, traffic, bound_s, given.replicas)["good"] >= given.share

    if not holds(low):
        return 0.0
    for _ in range(STEPS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def machine_of(folder: Path, arms: list[str], given: Any) -> Machine:
    """As the collection measured it, or with other pass costs: drafts then cost the same part of a
    pass as there."""
    costs = read_manifest(folder).costs
    passes = PassCosts(costs.verify_s)
    scale = 1.0
    if given.passes:
        pairs = [pair.split(":") for pair in given.passes.split(",")]
        rows, micros = np.array([[float(each) for each in pair] for pair in pairs]).T
        widths = np.arange(1, rows[-1] + 1)
        passes = PassCosts(tuple(np.interp(widths, rows, micros / 1e6).tolist()))
        scale = passes(1) / costs.verify_s[0]
    draft_s = np.array([costs.draft_s.get(arm, 0.0) * scale for arm in arms])
    return Machine(Passes(passes, len(passes.verify_s)), draft_s, given.most)


def draw(curves: dict[str, list[dict[str, float]]], loads: list[float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    measures = {
        "median_ms": "median milliseconds a token",
        "goodput": "tokens a second in time, of each replica",
    }
    for axes, (measure, words) in zip(panels, measures.items(), strict=True):
        for name, points in curves.items():
            axes.plot(loads, [point[measure] for point in points], marker=".", label=name)
        axes.set_xlabel("requests a second of each replica")
        axes.set_ylabel(words)
        axes.set_xscale("log")
        axes.set_xticks(loads[::2], [f"{load:.0f}" for load in loads[::2]])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=7)
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=90)
    pyplot.close(figure)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rewards", type=Path, help="what `draftpick collect` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", help="of the collection, plain decoding among them; default: all")
    parser.add_argument("--prompts", action="store_true", help="replicas read prompts, too")
    parser.add_argument("--passes", help="rows:microseconds,... in place of the measured passes")
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--most", type=int, default=32, help="requests decoded together")
    parser.add_argument("--requests", type=int, default=400, help="of a replica in a day")
    parser.add_argument("--swing", type=float, default=0.5, help="of the day around its average")
    parser.add_argument("--bound", type=float, default=3.0, help="x one plain token at batch 1")
    parser.add_argument("--share", type=float, default=0.9, help="of requests within the bound")
    parser.add_argument("--traffic", type=float, default=100_000, help="requests a second to serve")
    parser.add_argument("--points", type=int, default=8, help="of each curve")
    parser.add_argument("--check", type=int, default=0, help="replicas of one more day at the end")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    given = options().parse_args()
    only = given.arms.split(",") if given.arms else ()
    traffic = read_traffic(given.rewards, only, given.seed)
    machine = machine_of(given.rewards, traffic.arms, given)
    bound_s = given.bound * machine.passes.pass_s(1)
    by_name = choices(traffic, machine)
    rates = {
        name: most_traffic(traffic, machine, chosen, bound_s, given)
        for name, chosen in by_name.items()
    }
    fixed = max(("plain", *traffic.arms[1:]), key=rates.__getitem__)
    print(f"{len(traffic.tokens)} rows, {traffic.left_out} left out; best fixed arm: {fixed}")
    print("| choice | requests/s of a replica | x plain | x best fixed | replicas |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, rate in rates.items():
        needed = "" if not rate else f"{given.traffic / rate:.0f}"
        plain, best = rate / (rates["plain"] or np.nan), rate / (rates[fixed] or np.nan)
        print(f"| {name} | {rate:.2f} | {plain:.3f} | {best:.3f} | {needed} |")
    if not any(rates.values()):
        raise SystemExit(f"no choice keeps {given.share:.0%} of requests in time; raise --bound")
    drafting = max(traffic.arms[1:], key=rates.__getitem__, default=fixed)
    shown = ["plain", drafting, "by load", "routed", "routed with load", "hindsight with load"]
    loads = np.geomspace(0.1, 1.6, given.points) * max(rates.values())
    curves = {
        name: [
            judged(
                run_day(traffic, machine, by_name[name], rate, given),
                traffic,
                bound_s,
                given.replicas,
            )
            for rate in loads
        ]
        for name in dict.fromkeys(shown)
    }
    whole: dict[str, Any] = {}
    if given.check:
        larger = argparse.Namespace(**{**vars(given), "replicas": given.check})
        for name in dict.fromkeys((fixed, "routed with load")):
            day = run_day(traffic, machine, by_name[name], rates[name], larger)
            whole[name] = judged(day, traffic, bound_s, given.check)
            print(f"{given.check} replicas, {name}, at its most: {whole[name]}")
    record = {
        "options": {name: str(value) for name, value in vars(given).items()},
        "bound_ms": 1000 * bound_s,
        "rows": len(traffic.tokens),
        "left_out": traffic.left_out,
        "requests_per_s": rates,
        "best_fixed": fixed,
        "loads": loads.tolist(),
        "curves": curves,
        "check": whole,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out / "fleet.json", json.dumps(record, indent=2) + "\n")
    draw(curves, loads.tolist(), given.out / "fleet.png")


if __name__ == "__main__":
    main()
