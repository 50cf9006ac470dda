"""How much earlier answers help to draft agents' traffic: copying, suffix decoding, a draft model
and hybrids, counted along the target's own greedy answers, or timed.

    python benchmarks/agents.py --out agents.json
    python benchmarks/agents.py --live --out live.json

The traffic is made here: repeated jobs (support tickets into JSON), edits of one file over turns,
and tool loops, several sessions of each taking turns as on one server.

Counted, the rounds are exact (`collect.replay`) and no pass is timed. Relative speeds are
computed for passes that cost 1 + SLOPE (n - 1) for n tokens and steps of a recurrent cell that cost
0.06, of a pass over one.

With --live, every request is answered by every arm, in an order drawn for each, from the same
reading of its prompt, of which what it shares with earlier ones is kept; each arm has earlier
answers of its own. Speeds are those of the answers without their prompts, and their ratios to plain
decoding's have 95% intervals by resampling sessions. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from ratios import faster
from rich.progress import track

from collect.queries import shipped
from collect.replay.batch import Batch
from collect.replay.records import Replay
from decoders import Engine
from decoders.arms import recipe
from decoders.common.provenance import hardware
from decoders.costs import passes
from decoders.costs.measured import Costs
from decoders.costs.pass_costs import PassCosts
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.prefixes import PrefixStore
from decoders.records import DecodeResult, Request

SLOPE, STEP = 0.05, 0.06
PLAIN = "autoregressive"
KINDS = ("jobs", "edits", "tools", "questions")
NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatma", "Gita", "Hugo", "Ines", "Jun")
THINGS = ("kettle", "lamp", "router", "printer", "tent", "scale", "heater", "drone")
FAULTS = (
    "does not switch on", "makes a loud noise", "arrived with a broken case", "loses its settings",
    "is too hot to touch", "stops after a minute", "smells of burning",
)  # fmt: skip
TRIAGE = (
    "You turn support tickets into JSON with the keys customer, product, problem, priority, "
    "department and reply. Answer with the JSON alone."
)
FILE = """import json


class Store:
    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        with open(self.path) as file:
            self.items = json.load(file)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.items, file)

    def add(self, name, count):
        self.items[name] = self.items.get(name, 0) + count
"""
EDITS = (
    "Rename the class Store to {0}.", "Add a docstring to the class.",
    "Rename the method add to put.",
    "Rename the attribute items to entries.", "Add a method clear that empties it.",
    "Give the method load an encoding of utf-8.", "Rename the variable file to handle.",
    "Add a method total that sums all counts.",
)  # fmt: skip
TOOLS = (
    "You answer questions about a warehouse. To look something up, answer only with one line of "
    'JSON: {"tool": "search", "arguments": {"query": TEXT, "limit": 5}}. You are then given the '
    "result, and either look up more or answer in one sentence."
)
Message = dict[str, str]


def arms_of(cell: str, draft: str | None) -> dict[str, dict[str, Any]]:
    """cell: a recurrent drafter. draft: a draft model."""
    model = {"kind": "recurrent", "drafter": cell}
    arms: dict[str, dict[str, Any]] = {
        PLAIN: {"kind": "autoregressive"},
        "copying": {"kind": "max_gram", "by_cost": True, "length": {"k": 16}},
        "suffix": {"kind": "suffix"},
        "hybrid": {"kind": "hybrid", "model": model},
        "hybrid-suffix": {"kind": "hybrid", "model": model, "suffix": True},
    }
    if draft is not None:
        length = {"kind": "adaptive", "k": 8}
        arms["draft-model"] = {"kind": "neural", "drafter": draft, "length": length}
    return arms


@dataclass
class Session:
    """system: None for a plain question. says: what the user says, turn by turn."""

    kind: str
    system: str | None
    says: list[str]
    history: list[Message] = field(default_factory=list)


def sessions() -> list[Session]:
    jobs = [Session("jobs", TRIAGE, [_ticket(n)]) for n in range(32)]
    edits = [
        Session("edits", None, [_edit(turn, name) for turn in range(len(EDITS))])
        for name in ("Stock", "Basket", "Ledger")
    ]
    tools = [Session("tools", TOOLS, list(_looks(n))) for n in range(8)]
    return [*jobs, *edits, *tools]


def _ticket(n: int) -> str:
    name, thing = NAMES[n * 7 % len(NAMES)], THINGS[n * 5 % len(THINGS)]
    return (
        f"Ticket {1000 + 37 * n}. Customer: {name}. Product: {thing}. Hello, the {thing} that I "
        f"bought in week {n % 50 + 1} {FAULTS[n * 3 % len(FAULTS)]}. What should I do?"
    )


def _edit(turn: int, name: str) -> str:
    what = EDITS[turn].format(name)
    if turn == 0:
        return f"Here is a file:\n```python\n{FILE}```\n{what} Answer with the whole file."
    return f"{what} Answer with the whole file."


def _looks(n: int) -> Iterator[str]:
    thing, other = THINGS[n % len(THINGS)], THINGS[(n + 3) % len(THINGS)]
    yield f"How many pieces of the {thing} are left, and where?"
    yield (
        f'Result: [{{"item": "{thing}", "pieces": {17 * n % 90}, "shelf": "B{n}"}}]. Now look up '
        f"the {other}."
    )
    yield f'Result: [{{"item": "{other}", "pieces": {23 * n % 70}, "shelf": "C{n}"}}]. Answer now.'


@dataclass
class Asked:
    kind: str
    prompt: list[int]
    answer: list[int]


def in_turns(several: list[Session]) -> Iterator[tuple[int, Session]]:
    """Sessions by their numbers, as one after the other asks."""
    for turn in zip_longest(*(session.says for session in several)):
        for number, (session, words) in enumerate(zip(several, turn, strict=True)):
            if words is None:
                continue
            if session.system is not None and not session.history:
                session.history.append({"role": "system", "content": session.system})
            session.history.append({"role": "user", "content": words})
            yield number, session


def answered(engine: Engine, several: list[Session], most: int) -> list[Asked]:
    """The target's greedy answers."""
    made = []
    for _, session in in_turns(several):
        prompt = engine.encode_chat(session.history)
        result = engine.decode(PLAIN, prompt, Request(most))
        session.history.append({"role": "assistant", "content": result.text})
        made.append(Asked(session.kind, prompt, result.ids))
    return made


# -- timed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """One request by every arm. cached: tokens of its prompt that were not read again."""

    session: int
    kind: str
    prompt_tokens: int
    cached: int
    results: dict[str, DecodeResult]


def timed(engine: Engine, several: list[Session], most: int, memory: int) -> list[Timed]:
    """memory: bytes of prompts that are kept."""
    chance, request = random.Random(0), Request(most)
    engine.keep_prefixes(PrefixStore(memory))
    stores = {arm: EarlierAnswers() for arm in engine.arm_names}
    for arm in engine.arm_names:  # load, warm up
        engine.remember(None)
        engine.decode(arm, engine.encode_text("One two three."), Request(8))
    made = []
    turns = list(range(sum(len(session.says) for session in several)))
    for _, (number, session) in zip(track(turns, "requests"), in_turns(several), strict=True):
        prompt = engine.encode_chat(session.history)
        prefilled = engine.prefill(prompt, reuse=True)
        results = {}
        for arm in chance.sample(engine.arm_names, len(engine.arm_names)):
            engine.remember(stores[arm])
            results[arm] = engine.decode(arm, prompt, request, prefilled)
        session.history.append({"role": "assistant", "content": results[PLAIN].text})
        made.append(Timed(number, session.kind, len(prompt), prefilled.cached, results))
    return made


def decode_s(result: DecodeResult) -> float:
    return result.draft_s + result.verify_s + result.other_s


def speeds(several: list[Timed]) -> dict[str, Any]:
    """By arm, and of the prompts."""
    units = [str(each.session) for each in several]
    counts = {
        arm: np.array([[len(one.ids) - 1, decode_s(one)] for one in _of(several, arm)])
        for arm in several[0].results
    }  # [requests, 2] tokens and seconds
    found: dict[str, Any] = {
        "requests": len(several),
        "prompt_tokens": sum(each.prompt_tokens for each in several),
        "cached_tokens": sum(each.cached for each in several),
        "arms": {},
    }
    for arm, both in counts.items():
        tokens, spent = both.sum(0).tolist()
        over = faster(both, counts[PLAIN], units)
        found["arms"][arm] = {
            "tokens": int(tokens),
            "tokens_per_s": tokens / spent,
            "tokens_a_round": tokens / sum(one.rounds for one in _of(several, arm)),
            "over_plain": over["ratio"],
            "low": over["low"],
            "high": over["high"],
            "first_token_s": float(np.median([one.prefill_s for one in _of(several, arm)])),
            "differ": sum(each.results[arm].ids != each.results[PLAIN].ids for each in several),
        }
    if {"hybrid-suffix", "hybrid"} <= set(counts):
        over = faster(counts["hybrid-suffix"], counts["hybrid"], units)
        found["hybrid_suffix_over_hybrid"] = over
    return found


def _of(several: list[Timed], arm: str) -> list[DecodeResult]:
    return [each.results[arm] for each in several]


def show_timed(found: dict[str, Any]) -> None:
    for kind, row in found.items():
        share = row["cached_tokens"] / row["prompt_tokens"]
        print(f"{kind}: {row['requests']} requests, {share:.0%} of the prompts' tokens kept")
        print(
            "arm | tokens/s | x plain (95%) | tokens a round | first token, s | answers that differ"
        )
        for arm, each in row["arms"].items():
            over = f"{each['over_plain']:.2f} ({each['low']:.2f} to {each['high']:.2f})"
            numbers = f"{each['tokens_a_round']:.2f} | {each['first_token_s']:.3f}"
            print(f"{arm} | {each['tokens_per_s']:.1f} | {over} | {numbers} | {each['differ']}")
        if gain := row.get("hybrid_suffix_over_hybrid"):
            print(f"  suffix in the hybrid: {gain['ratio']:.3f} ({gain['low']:.3f} to ", end="")
            print(f"{gain['high']:.3f})")


# -- counted --------------------------------------------------------------------------------------


def figures(engine: Engine, asked: list[Asked], replays: list[Replay]) -> dict[str, float]:
    """By passes that cost as said above. tokens: after each answer's first."""
    tokens = sum(len(each.answer) - 1 for each in asked)
    rounds = sum(replay.rounds for replay in replays)
    spent = 0.0
    for replay in replays:
        spent += sum(n * (1 + SLOPE * width) for width, n in enumerate(replay.widths))
        spent += STEP * (replay.calls or 0)
    return {
        "answers": len(asked),
        "tokens": tokens,
        "rounds": rounds,
        "tokens_a_round": tokens / rounds,
        "drafted": sum(replay.drafted for replay in replays),
        "accepted": sum(replay.accepted for replay in replays),
        "speed": tokens / spent,
    }


def counted(engine: Engine, several: list[Session], most: int) -> dict[str, dict[str, float]]:
    """By traffic and arm."""
    flat = PassCosts(tuple(1 + SLOPE * n for n in range(17)))
    passes.assume(engine.target, flat)
    asked = answered(engine, several, most)
    found: dict[str, dict[str, float]] = {}
    batch = Batch(engine, Costs(flat.verify_s, dict.fromkeys(engine.arm_names, STEP)))
    prompts, answers = [each.prompt for each in asked], [each.answer for each in asked]
    for name in [arm for arm in engine.arm_names if arm != PLAIN]:
        kept = batch.replay(name, prompts, answers, most)
        by_name = {name: kept}
        if name in ("suffix", "hybrid-suffix"):  # each as the only answer that there ever was
            by_name[f"{name}, no earlier answers"] = [
                batch.replay(name, [prompt], [answer], most)[0]
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
        for label, replays in by_name.items():
            for kind in dict.fromkeys(each.kind for each in asked):
                rows = [n for n, each in enumerate(asked) if each.kind == kind]
                found[f"{kind}: {label}"] = figures(
                    engine, [asked[n] for n in rows], [replays[n] for n in rows]
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--target", default=None, help="Default: the default target.")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--limit", type=int, help="Sessions of each kind; default: all.")
    parser.add_argument("--plain", type=int, default=24, help="Shipped questions besides.")
    parser.add_argument("--live", action="store_true", help="Decode and time every arm.")
    parser.add_argument("--cell", default="recurrent-general", help="Recurrent drafter.")
    parser.add_argument("--draft", default="draft-general", help="With --live; '' for none.")
    parser.add_argument("--prefix-memory", type=float, default=2.0, help="In GB, with --live.")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    named = {} if given.target is None else {"target": given.target}
    bodies = arms_of(given.cell, (given.draft or None) if given.live else None)
    arms = {name: recipe(name=name, **body) for name, body in bodies.items()}
    engine = Engine.load(arms=arms, dtype=given.dtype, **named)
    plain = [Session("questions", None, [query.turns[0]]) for query in shipped("test")]
    spread = plain[:: max(1, len(plain) // given.plain)] if given.plain else []
    made = sessions()
    chosen = [[one for one in made if one.kind == kind][: given.limit] for kind in KINDS]
    several = [*chain.from_iterable(chosen), *spread]
    if given.live:
        memory = int(given.prefix_memory * 1e9)
        rows = timed(engine, several, given.max_new_tokens, memory)
        kinds = {kind: [one for one in rows if one.kind == kind] for kind in KINDS}
        found = {kind: speeds(those) for kind, those in kinds.items() if those}
        found["all"] = speeds(rows)
        record = {"hardware": hardware(), "target": engine.target_fingerprint, "traffic": found}
        given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
        show_timed(found)
        return
    found = counted(engine, several, given.max_new_tokens)
    given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("traffic: arm | tokens | rounds | tokens a round | speed")
    for label, each in found.items():
        numbers = f"{each['tokens']} | {each['rounds']} | {each['tokens_a_round']:.2f}"
        print(f"{label} | {numbers} | {each['speed']:.2f}")


if __name__ == "__main__":
    main()
