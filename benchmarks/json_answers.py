"""Answers in JSON beside the same requests as free text: every one valid, and how fast.

    python benchmarks/json_answers.py --out json.json
    python benchmarks/json_answers.py --requests 1000 --model hybrid -- --slots 1
    python benchmarks/json_answers.py --url http://localhost:8000 --ways json --clients 8

Starts `draftpick serve` with what stands after `--` (by default on the default target), or asks the
server of --url, which may be vLLM's: one request after another, each under its schema, as free text
that is cut after as many tokens, and as free text to its end. The three have case numbers of their
own, so that none finds its prompt read by another; --ways leaves some out. Every answer in JSON is
parsed and validated; the exit code is 1 where one is not what its schema says. Speeds are the
server's count of tokens over seconds at the client, of all requests together, and their ratios have
95% intervals by resampling schemas, or requests under one; with several clients they are each
client's own. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
from ratios import faster
from rich.progress import track

from decoders.common.files import write_atomically
from decoders.common.provenance import hardware, versions
from decoders.common.seeds import derived_seed

Json = dict[str, Any]
NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatma", "Gita", "Hugo", "Ines", "Jun")
CITIES = ("Oslo", "Rome", "Lima", "Kyoto", "Accra", "Quito", "Riga", "Cairo")
THINGS = ("kettle", "lamp", "tent", "scale", "heater", "drone", "rug", "clock")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
WAYS = ("json", "cut", "free")
SHORT: Json = {"type": "string", "minLength": 1, "maxLength": 40}
START_S = 900


def an_object(**properties: Json) -> Json:
    """All of them required, and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def whole(low: int, high: int) -> Json:
    return {"type": "integer", "minimum": low, "maximum": high}


def several(items: Json, least: int, most: int) -> Json:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, Json] = {
    "person": an_object(name=SHORT, age=whole(0, 120), city=SHORT, member={"type": "boolean"}),
    "order": an_object(
        customer=SHORT,
        items=several(an_object(product={"enum": list(THINGS)}, pieces=whole(1, 20)), 1, 4),
        note={"anyOf": [SHORT, {"type": "null"}]},
    ),
    "meeting": an_object(
        title=SHORT,
        day={"enum": list(DAYS)},
        hour=whole(0, 23),
        people=several({"enum": list(NAMES)}, 1, 5),
    ),
    "review": an_object(
        mood={"enum": ["good", "mixed", "bad"]}, stars=whole(1, 5), reasons=several(SHORT, 1, 3)
    ),
    "journey": {
        "$defs": {
            "stop": an_object(city={"enum": list(CITIES)}, minutes=whole(0, 600)),
            "train": an_object(kind={"const": "train"}, platform=whole(1, 20)),
            "bus": an_object(
                kind={"const": "bus"}, line={"type": "string", "pattern": "^[A-Z][0-9]{1,2}$"}
            ),
        },
        **an_object(
            by={"anyOf": [{"$ref": "#/$defs/train"}, {"$ref": "#/$defs/bus"}]},
            stops=several({"$ref": "#/$defs/stop"}, 2, 4),
        ),
    },
}


@dataclass(frozen=True)
class Question:
    schema: str
    words: str


@dataclass(frozen=True)
class Answered:
    """wrong: what is not as the schema says; None for nothing, and of free text."""

    schema: str
    seconds: float
    tokens: int
    text: str
    wrong: str | None


def questions(count: int, seed: int = 0) -> list[Question]:
    """Of each schema in turn, each with other facts."""
    chance = random.Random(seed)
    names = list(SCHEMAS)
    return [_question(names[number % len(names)], chance) for number in range(count)]


def _question(schema: str, chance: random.Random) -> Question:
    name, other = chance.sample(NAMES, 2)
    city, to = chance.sample(CITIES, 2)
    thing, more = chance.sample(THINGS, 2)
    number, day = chance.randint(2, 19), chance.choice(DAYS)
    facts = {
        "person": f"{name} is {number + 20} years old, lives in {city} and "
        f"{chance.choice(['is', 'is not'])} a member of our club.",
        "order": f"{name} writes: please send me {number} of the {thing} and one {more}.",
        "meeting": f"{name} meets {other} on {day} at {number} o'clock about the {thing}.",
        "review": f"{name} about the {thing}: it arrived after {number} days, works well, and the "
        f"colour is not the one that I ordered.",
        "journey": f"{name} goes from {city} to {to} by {chance.choice(['train', 'bus'])} in "
        f"{number * 10} minutes.",
    }
    keys = ", ".join(SCHEMAS[schema]["properties"])
    return Question(schema, f"{facts[schema]} Put this into JSON with the keys {keys}.")


def body_of(question: Question, number: int, way: str, tokens: int, given: Json) -> Json:
    """given: model and temperature."""
    schema = {"name": question.schema, "schema": SCHEMAS[question.schema], "strict": True}
    named = {"type": "json_schema", "json_schema": schema}
    case = f"Case {3 * number + WAYS.index(way)}: "
    return {
        **given,
        "messages": [{"role": "user", "content": case + question.words}],
        "max_tokens": tokens,
        "seed": derived_seed(0, number),
        **({"response_format": named} if way == "json" else {}),
    }


def ask(client: httpx.Client, question: Question, body: Json) -> Answered:
    started = time.perf_counter()
    response = client.post("/v1/chat/completions", json=body)
    seconds = time.perf_counter() - started
    if response.status_code != 200:
        raise SystemExit(f"HTTP {response.status_code}: {response.text[:500]}")
    made = response.json()
    (choice,) = made["choices"]
    text, wrong = choice["message"]["content"] or "", None
    if "response_format" in body:
        wrong = what_is_wrong(text, question.schema, choice["finish_reason"])
    tokens = made["usage"]["completion_tokens"]
    return Answered(question.schema, seconds, tokens, text, wrong)


def what_is_wrong(text: str, schema: str, reason: str) -> str | None:
    if reason != "stop":
        return f"ended by {reason}"
    try:
        jsonschema.validate(json.loads(text), SCHEMAS[schema])
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def speed(several: list[Answered]) -> float:
    return sum(each.tokens for each in several) / sum(each.seconds for each in several)


def figures(answers: dict[str, list[Answered]]) -> Json:
    """Of each way's requests in the same order."""
    bound = answers["json"]
    found: Json = {"requests": len(bound), "valid": sum(each.wrong is None for each in bound)}
    for way, made in answers.items():
        found[way] = {
            "tokens_per_s": speed(made),
            "tokens": sum(each.tokens for each in made),
            "mean_s": float(np.mean([each.seconds for each in made])),
        }
        if way != "json":
            found[way]["json_over_it"] = ratio(bound, made)
    return found


def ratio(bound: list[Answered], other: list[Answered]) -> Json:
    """Of the speeds, with its 95% interval: over schemas where there are several, which requests
    under one share."""
    ours, theirs = ([[each.tokens, each.seconds] for each in way] for way in (bound, other))
    schemas = [each.schema for each in bound]
    return faster(ours, theirs, schemas if len(set(schemas)) > 1 else ())


@contextlib.contextmanager
def serving(options: list[str]) -> Iterator[str]:
    """The address of a `draftpick serve` of our own."""
    words = [sys.executable, "-m", "router.cli", "serve", "--port", "0", *options]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, encoding="utf-8")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            print(line, end="", file=sys.stderr)
            if found := re.search(r"serving on (http://\S+)", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found[1]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(60)


def show(found: Json) -> None:
    print("schema | requests | valid | tokens/s, s a request, JSON's speed over it")
    for name, row in found.items():
        words = [name, str(row["requests"]), str(row["valid"])]
        for way in WAYS:
            if way in row:
                each = row[way]
                words.append(f"{way} {each['tokens_per_s']:.1f}, {each['mean_s']:.3f}")
                if over := each.get("json_over_it"):
                    low, high = over["low"], over["high"]
                    words[-1] += f", {over['ratio']:.2f} ({low:.2f} to {high:.2f})"
        print(" | ".join(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--model", default="auto", help="auto, an arm, or the server's model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--url", help="of a server that runs, without /v1")
    parser.add_argument("--out", type=Path, default=Path("json.json"))
    parser.add_argument("options", nargs="*", help="of `draftpick serve`, after --")
    given = parser.parse_args()
    if given.ways[0] != "json":
        parser.error("--ways begins with json")
    asked = questions(given.requests)
    options = {"model": given.model, "temperature": given.temperature}
    with contextlib.ExitStack() as stack:
        url = given.url or stack.enter_context(serving(given.options))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=START_S))
        pool = stack.enter_context(ThreadPoolExecutor(given.clients))

        def all_ways(number: int, question: Question) -> dict[str, Answered]:
            made, tokens = dict[str, Answered](), given.max_new_tokens
            for way in given.ways:
                length = made["json"].tokens if way == "cut" else tokens
                body = body_of(question, number, way, length, options)
                made[way] = ask(client, question, body)
            return made

        all_ways(len(asked), asked[0])  # what is loaded and measured once
        coming = pool.map(all_ways, range(len(asked)), asked)
        answered = list(track(coming, "questions", total=len(asked)))
    answers = {way: [each[way] for each in answered] for way in given.ways}
    found = {"all": figures(answers)}
    for name in SCHEMAS:
        own = [at for at, each in enumerate(asked) if each.schema == name]
        if own:
            found[name] = figures({way: [each[at] for at in own] for way, each in answers.items()})
    command = shlex.join(["python", "benchmarks/json_answers.py", *sys.argv[1:]])
    record = {
        "command": command,
        "hardware": hardware(),
        "versions": versions(),
        "figures": found,
        **{way: [asdict(each) for each in several] for way, several in answers.items()},
    }
    write_atomically(given.out, json.dumps(record, indent=1))
    print(command)
    show(found)
    wrong = [each for each in answers["json"] if each.wrong is not None]
    for each in wrong[:5]:
        print(f"{each.schema}: {each.wrong}: {each.text[:200]}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
