"""What a hybrid would gain from more than one cell, or from how sure its cell is of each token.

    python benchmarks/two_cells.py --per-task 20 --temperature 0.7

The target's answers to the queries that ship are replayed; the only clock is that of the measured
costs of passes. In every round a hybrid copies or drafts by a cell. What differs is how it drafts:

    NAME       by this cell, as the arms that ship
    recent     by the cell with more right tokens of late in this answer
    first      both draft a token; where these differ, the more confident one drafts on
    tree       both draft; where their first tokens differ, the pass reads both branches
    near       the same where their shares of right tokens are within 0.1, else as `recent`
    confident  by the first cell, which stops where its next token would not pay by its confidence
    query      by the better of the two for the whole answer, which nobody knows beforehand
    round      by the better of the two in each round, likewise

Speeds are tokens in the time of one pass, over those of the first cell: means over queries of the
logarithm, with 95% intervals over queries. Chances by confidence are learnt from the same answers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from collect.queries import first_per_task, read_queries, shipped
from collect.replay.batch import Batch
from collect.replay.methods.recurrent import UnrolledDrafts
from collect.replay.stack import DraftToken
from decoders import Engine
from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.costs.pass_costs import PassCosts, ProbeSchedule
from decoders.costs.passes import ON_STATES, known
from decoders.earlier.prefixes import agreeing
from decoders.methods.device import PRIOR, PRIOR_WEIGHT, REMEMBERED
from decoders.methods.hybrid.drafter import HybridDrafter, fastest_draft
from decoders.methods.max_gram.copying import CopyChances
from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.recurrent.drafter import RecurrentDrafter
from decoders.protocols import decoder_prefix
from decoders.zoo import TARGET

LONGEST = 16  # tokens of a draft
TOGETHER = 16  # prompts that are answered at once
CPU = torch.device("cpu")
NEAR = 0.1


@dataclass
class Share:
    """Of a cell's tokens, those that were right of late, as `hybrid` counts them."""

    right: float = PRIOR * PRIOR_WEIGHT
    tried: float = PRIOR_WEIGHT

    def __call__(self) -> float:
        return self.right / self.tried

    def learn(self, drafted: Sequence[int], written: Sequence[int]) -> None:
        """drafted: empty where the cell was not asked."""
        right, tried = (1 - REMEMBERED) * PRIOR * PRIOR_WEIGHT, (1 - REMEMBERED) * PRIOR_WEIGHT
        if drafted:
            right = agreeing(list(drafted), list(written))
            tried = min(right + 1, len(written), len(drafted))
        self.right = REMEMBERED * self.right + right
        self.tried = REMEMBERED * self.tried + tried


@dataclass(frozen=True)
class Asked:
    """A round's drafts to choose from.

    runs: of each cell, LONGEST tokens.
    ratios: as `PassCosts.ratios`.
    k: tokens of a draft at most.
    """

    runs: Sequence[Sequence[DraftToken]]
    shares: Sequence[Share]
    ratios: Sequence[float]
    k: int

    def ids(self, cell: int, length: int) -> list[int]:
        return [each.token for each in self.runs[cell][:length]]

    def likelier(self) -> int:
        """The cell with the greater share."""
        return int(np.argmax([share() for share in self.shares]))


@dataclass(frozen=True)
class Made:
    """promised: tokens in the time of a pass over one.
    branches: of the draft; their first tokens differ.
    seen: what each cell drafted, a step a token.
    """

    promised: float
    branches: list[list[int]]
    seen: list[list[int]]

    @property
    def nodes(self) -> int:
        return sum(map(len, self.branches))

    @property
    def steps(self) -> int:
        return sum(map(len, self.seen))


Rule = Callable[[Asked], Made]
Chance = Callable[[float], float]  # that a token of this confidence is right


def by(cell: int, asked: Asked, first: bool = False) -> Made:
    """first: the others drafted one token too."""
    length, speed, _ = fastest_draft(asked.shares[cell](), asked.ratios, asked.k, ON_STATES)
    seen = [asked.ids(other, int(first)) for other in range(len(asked.runs))]
    seen[cell] = asked.ids(cell, length)
    return Made(speed, [seen[cell]], seen)


def recent(asked: Asked) -> Made:
    return by(asked.likelier(), asked)


def first(asked: Asked) -> Made:
    openings = [run[0] for run in asked.runs]
    if len({each.token for each in openings}) == 1:
        return by(asked.likelier(), asked, first=True)
    return by(int(np.argmax([each.confidence for each in openings])), asked, first=True)


def tree(chance: Chance, near: float) -> Rule:
    """Of two branches the first tokens are right by their confidence, never both, and those after
    them by the cell's share."""

    def rule(asked: Asked) -> Made:
        ours, theirs = asked.shares
        if abs(ours() - theirs()) > near:
            return recent(asked)
        if asked.runs[0][0].token == asked.runs[1][0].token:
            return first(asked)
        told = [
            [0.0, *itertools.accumulate(chance(run[0].confidence) * share() ** i for i in depths)]
            for run, share in zip(asked.runs, asked.shares, strict=True)
            for depths in [range(asked.k)]
        ]

        def promised(lengths: tuple[int, int]) -> float:
            steps = sum(max(1, length) for length in lengths)
            right = told[0][lengths[0]] + told[1][lengths[1]]
            return (1 + right) / (asked.ratios[sum(lengths)] + steps * ON_STATES)

        pairs = itertools.product(range(asked.k + 1), repeat=2)
        best = max((pair for pair in pairs if 0 < sum(pair) <= asked.k), key=promised)
        branches = [asked.ids(cell, length) for cell, length in enumerate(best) if length]
        seen = [asked.ids(cell, max(1, length)) for cell, length in enumerate(best)]
        return Made(promised(best), branches, seen)

    return rule


def confident(chance: Chance) -> Rule:
    """Stops where the next token would not pay were it right as often as the cell's usually are."""

    def rule(asked: Asked) -> Made:
        usual = by(0, asked)
        path, told, speeds = 1.0, 1.0, [1.0]
        for steps in range(1, asked.k + 1):
            path *= chance(asked.runs[0][steps - 1].confidence)
            told += path
            speeds.append(told / (asked.ratios[steps] + steps * ON_STATES))
            if steps == asked.k:
                break
            more = asked.ratios[steps + 1] - asked.ratios[steps] + ON_STATES
            if path * asked.shares[0]() < max(speeds) * more:
                break
        cut = int(np.argmax(speeds))
        seen = [asked.ids(0, len(speeds) - 1), *([] for _ in asked.runs[1:])]
        return Made(usual.promised, [asked.ids(0, cut)], seen)

    return rule


@dataclass(frozen=True)
class Answer:
    """A known one. runs: of each cell, what it drafts in front of each token but the first."""

    prompt: list[int]
    start: list[int]
    ids: list[int]
    runs: list[list[list[DraftToken]]]


def seconds(answer: Answer, rule: Rule, passes: PassCosts, heat: float, hindsight: bool) -> float:
    """What all tokens but the first take, in passes over one token.

    hindsight: take the cell that has more right tokens, each round.
    """
    copying = MaxGramDrafter(CPU, longest=12, passes=passes, chances=CopyChances())
    copying.reset(answer.prompt)
    shares, probes = [Share() for _ in answer.runs], ProbeSchedule()
    at, spent = 1, 0.0
    while at < len(answer.ids):
        context, k = answer.start + answer.ids[:at], min(LONGEST, len(answer.ids) - at)
        written = answer.ids[at : at + LONGEST + 1]
        copying.commit(context)
        copy = copying.copy(context, k, heat)
        cut = passes.best_cut(copy.chances)
        ratios = passes.ratios(max(k, cut))
        asked = Asked([runs[at - 1] for runs in answer.runs], shares, ratios, k)
        made = rule(asked)
        if hindsight:
            tries = [by(cell, asked) for cell in range(len(asked.runs))]
            made = max(tries, key=lambda each: agreeing(each.branches[0], written))
        drafts = (1 + sum(copy.chances[:cut])) / ratios[cut] < made.promised
        if drafts:
            probes.reset()
        elif cut or not probes.should_probe():
            made = Made(0.0, [copy.ids[:cut]], [[] for _ in asked.runs])
        right = max(agreeing(branch, written) for branch in made.branches)
        if made.steps and right == 0:
            probes.rejected()
        spent += ratios[made.nodes] + made.steps * ON_STATES
        copying.learn(written[: right + 1])
        for share, ids in zip(shares, made.seen, strict=True):
            share.learn(ids, written[: right + 1])
        at += right + 1
    return spent


def known_answers(engine: Engine, given: argparse.Namespace, prompts: list[Any]) -> list[Answer]:
    batch, answers = Batch(engine), list[Answer]()
    heads = []
    for name in given.cells:
        drafter: Any = engine.strategy(name).drafter  # type: ignore[attr-defined]
        assert isinstance(drafter, HybridDrafter) and isinstance(drafter.model, RecurrentDrafter)
        heads.append(drafter.model.head)
    for begin in track(range(0, len(prompts), TOGETHER), "answers"):
        some = prompts[begin : begin + TOGETHER]
        seeds = range(begin, begin + len(some))
        batch.target(some, given.max_new_tokens, given.temperature, seeds)
        found = batch._known[-1]
        scripts: list[Any] = [UnrolledDrafts(head, found) for head in heads]
        for row, (prompt, ids) in enumerate(zip(some, found.ids, strict=True)):
            runs = [[s(row, at, LONGEST) for at in range(1, len(ids))] for s in scripts]
            answers.append(Answer(prompt, decoder_prefix(engine.target, prompt), ids, runs))
    return answers


def chances(answers: Sequence[Answer]) -> Chance:
    """How often the first cell's tokens are right, by tenths of their confidence."""
    right, tried = np.full(11, 0.5), np.ones(11)
    for answer in answers:
        for at, run in enumerate(answer.runs[0], 1):
            for token, written in zip(run, answer.ids[at:], strict=False):
                band = int(10 * token.confidence)
                tried[band] += 1
                right[band] += token.token == written
                if token.token != written:
                    break
    return lambda confidence: float(right[int(10 * confidence)] / tried[int(10 * confidence)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", nargs="+", type=Path, help="default: those that ship")
    parser.add_argument("--per-task", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--flat", action="store_true", help="passes of any width cost the same")
    parser.add_argument("--cells", nargs=2, default=["recurrent-general", "recurrent-data"])
    parser.add_argument("--out", type=Path, default=Path("two_cells.json"))
    given = parser.parse_args()
    arms = ["autoregressive: {kind: autoregressive}"] + [
        f"{name}: {{kind: hybrid, model: {{kind: recurrent, drafter: {name}}}}}"
        for name in given.cells
    ]
    config = given.out.with_suffix(".yaml")
    config.write_text("arms:\n" + "".join(f"  {arm}\n" for arm in arms), encoding="utf-8")
    engine = Engine.load(TARGET, config)
    passes = known(engine.target)
    if given.flat or passes is None:
        passes = PassCosts((1.0,) * (LONGEST + 1))
    ours = [*shipped("train"), *shipped("test")]
    queries = ours if given.queries is None else read_queries(given.queries)
    queries = first_per_task(queries, given.per_task)
    prompts = [engine.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in queries]
    answers = known_answers(engine, given, prompts)
    chance = chances(answers)
    a, b = given.cells
    rules: dict[str, Rule] = {
        a: lambda asked: by(0, asked),
        b: lambda asked: by(1, asked),
        "recent": recent,
        "first": first,
        "tree": tree(chance, math.inf),
        "near": tree(chance, NEAR),
        "confident": confident(chance),
        "round": lambda asked: by(0, asked),
    }
    heat = given.temperature
    spent = {
        name: np.array([seconds(one, rule, passes, heat, name == "round") for one in answers])
        for name, rule in rules.items()
    }
    spent["query"] = np.minimum(spent[a], spent[b])
    several = np.array([len(each.ids) > 1 for each in answers])
    tasks = np.array([query.task for query in queries])
    found: dict[str, dict[str, list[float]]] = {}
    for name, times in spent.items():
        found[name] = {}
        for task in ["all", *sorted(set(tasks))]:
            rows = several & ((tasks == task) | (task == "all"))
            logs = np.log(spent[a][rows] / times[rows])
            spread = 1.96 * logs.std(ddof=1) / math.sqrt(len(logs))
            found[name][task] = [round(math.exp(logs.mean() + d * spread), 3) for d in (0, -1, 1)]
        cells = (f"{t} {m:.3f} ({lo:.3f} to {hi:.3f})" for t, (m, lo, hi) in found[name].items())
        print(f"{name:18}", *cells, sep="  ", flush=True)
    record = {"settings": vars(given), "machine": hardware(), "versions": versions()}
    record |= {"passes": list(passes.ratios(LONGEST)), "figures": found}
    write_atomically(given.out, json.dumps(record, indent=1, default=str))


if __name__ == "__main__":
    main()
