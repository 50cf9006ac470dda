"""How much earlier answers help to draft agents' traffic: tokens a round of copying, suffix
decoding and hybrids, counted along the target's own greedy answers.

    python benchmarks/agents.py --out agents.json

The traffic is made here: repeated jobs (support tickets into JSON), edits of one file over turns,
and tool loops, several sessions of each taking turns as on one server. The rounds are exact
(`decoders.offline`); no pass is timed. Relative speeds are computed for passes that cost
1 + SLOPE (n - 1) for n tokens and steps of a recurrent cell that cost 0.06, of a pass over one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from collect.queries import shipped
from decoders import Engine, Replay
from decoders.arms import recipe
from decoders.costs import passes
from decoders.costs.measured import Costs
from decoders.offline.batch import Batch
from decoders.records import Request

SLOPE, STEP = 0.05, 0.06
CELL = {"kind": "recurrent", "drafter": "recurrent-general"}
ARMS = {
    "autoregressive": {"kind": "autoregressive"},
    "copying": {"kind": "max_gram", "by_cost": True, "length": {"k": 16}},
    "suffix": {"kind": "suffix"},
    "hybrid": {"kind": "hybrid", "model": CELL},
    "hybrid-suffix": {"kind": "hybrid", "model": CELL, "suffix": True},
}
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


def answered(engine: Engine, several: list[Session], most: int) -> list[Asked]:
    """The target's greedy answers, sessions taking turns."""
    made = []
    for turn in zip_longest(*(session.says for session in several)):
        for session, words in zip(several, turn, strict=True):
            if words is None:
                continue
            if session.system is not None and not session.history:
                session.history.append({"role": "system", "content": session.system})
            session.history.append({"role": "user", "content": words})
            prompt = engine.encode_chat(session.history)
            result = engine.decode("autoregressive", prompt, Request(most))
            session.history.append({"role": "assistant", "content": result.text})
            made.append(Asked(session.kind, prompt, result.ids))
    return made


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--target", default=None, help="Default: the default target.")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--limit", type=int, help="Sessions, the first ones; default: all.")
    parser.add_argument("--plain", type=int, default=24, help="Shipped questions besides.")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    arms = {name: recipe(name=name, **body) for name, body in ARMS.items()}
    named = {} if given.target is None else {"target": given.target}
    engine = Engine.load(arms=arms, dtype=given.dtype, **named)
    flat = passes.PassCosts(tuple(1 + SLOPE * n for n in range(17)))
    passes.assume(engine.target, flat)
    plain = [Session("questions", None, [query.turns[0]]) for query in shipped("test")]
    spread = plain[:: max(1, len(plain) // given.plain)] if given.plain else []
    several = [*sessions()[: given.limit], *spread]
    asked = answered(engine, several, given.max_new_tokens)
    found = {}
    for name in [arm for arm in ARMS if arm != "autoregressive"]:
        batch = Batch(engine, Costs(flat.verify_s, dict.fromkeys(ARMS, STEP)))
        prompts, answers = [each.prompt for each in asked], [each.answer for each in asked]
        kept = batch.replay(name, prompts, answers, given.max_new_tokens)
        by_name = {name: kept}
        if name in ("suffix", "hybrid-suffix"):  # each as the only answer that there ever was
            by_name[f"{name}, no earlier answers"] = [
                batch.replay(name, [prompt], [answer], given.max_new_tokens)[0]
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
        for label, replays in by_name.items():
            for kind in dict.fromkeys(each.kind for each in asked):
                rows = [n for n, each in enumerate(asked) if each.kind == kind]
                found[f"{kind}: {label}"] = figures(
                    engine, [asked[n] for n in rows], [replays[n] for n in rows]
                )
    given.out.write_text(json.dumps(found, indent=1))
    print("traffic: arm | tokens | rounds | tokens a round | speed")
    for label, each in found.items():
        numbers = f"{each['tokens']} | {each['rounds']} | {each['tokens_a_round']:.2f}"
        print(f"{label} | {numbers} | {each['speed']:.2f}")


if __name__ == "__main__":
    main()
