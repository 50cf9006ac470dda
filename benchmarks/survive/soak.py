"""Many clients for minutes, some of them rude: no answer mixed up, nobody starved, memory flat.

    python benchmarks/survive/soak.py --clients 64 --seconds 600
    python benchmarks/survive/soak.py --clients 64 --seconds 120 --tiny

Every client asks for a number of its own and must get it back, streamed or whole, by any arm. With
`--tiny` answers share the passes of a random Llama instead, and each must equal, in float32, what
the model answers alone. Meanwhile others leave in the middle of a stream, read a few bytes at a
time, do not read at all, half-close their socket, send half a request, or name models, users and
keys that were never heard of. The server is a process of its own on 127.0.0.1.

Wrong is: an answer that is not the client's own, an error, a client with less than half of the
median client's answers, more than --growth MiB of memory more at the end than after warming up, a
counter with more series, a request that is never forgotten. Exit status 1 says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ending import end
from toy_server import LONGEST_NUMBER, Running, expected, running, special_tokens

CHAT = "/v1/chat/completions"
ARMS = ("auto", "copy", "autoregressive")
NULLS = dict.fromkeys(("seed", "stop", "functions", "prediction", "reasoning_effort", "logit_bias"))
DRAWN = {"dynamic": True, "seed": 7}  # one seed for everybody's draws of arms
SCORED = {"logprobs": True, "top_logprobs": 2, "stop": ["<|im_start|>never", "never<|im_end|>"]}
TINY_TOKENS = 40
TINY_PROMPTS = 24
WARM = 0.5  # of the time, before memory is looked at
SAMPLE_S = 1.0
MIB = 2**20


@dataclass
class Book:
    """What the clients saw.

    answers, longest_s: by client, its answers and the longest time to one.
    rude: by kind, how often.
    """

    answers: dict[int, int] = field(default_factory=dict)
    longest_s: dict[int, float] = field(default_factory=dict)
    rude: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A request and what must come. tokens: the longest answer."""

    text: str
    answer: str
    tokens: int


Ask = Callable[[int, int], Asked]


def numbers(client: int, turn: int) -> Asked:
    """A number that nobody else asks for."""
    number = f"{client + 1}{turn:06d}"
    assert len(number) <= LONGEST_NUMBER
    text = f"Say {number}, please. " + "So it is. " * (turn % 7)
    return Asked(text, expected(special_tokens(1), text), 64)


def alone(folder: Path) -> Ask:
    """Prompts with the answers that the tiny model gives to each when nobody else asks."""
    from toys import tiny_engine

    from decoders.records import Request

    engine, made = tiny_engine(folder), list[Asked]()
    for number in range(TINY_PROMPTS):
        text = f"{number} green bottles " * (1 + number % 9)
        ids = engine.encode_chat([{"role": "user", "content": text}])
        made.append(
            Asked(text, engine.decode("autoregressive", ids, Request(TINY_TOKENS)).text, 40)
        )
    return lambda client, turn: made[(7 * client + turn) % TINY_PROMPTS]


async def polite(url: str, client: int, ask: Ask, greedy: bool, until: float, book: Book) -> None:
    """Asks, checks the answer, and asks again."""
    chance = random.Random(client)
    headers = {"Authorization": f"Bearer client-{client}"}
    book.answers[client], book.longest_s[client] = 0, 0.0
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as http:
        for turn in itertools.count():
            if time.monotonic() > until:
                return
            asked = ask(client, turn)
            model = chance.choice(ARMS)
            body = {
                "model": model,
                "messages": [{"role": "user", "content": asked.text}],
                "max_tokens": asked.tokens,
                "temperature": 0 if greedy else chance.choice((0, 0.7, 1)),
                "stream": chance.random() < 0.5,
                **chance.choice(({}, NULLS, SCORED, DRAWN if model == ARMS[0] else {})),
            }
            began = time.monotonic()
            try:
                said = await (_streamed if body["stream"] else _whole)(http, body)
            except (httpx.HTTPError, ValueError) as error:
                book.wrong.append(f"client {client}, turn {turn}: {error!r}"[:300])
                await asyncio.sleep(0.1)
                continue
            if said != asked.answer:
                book.wrong.append(f"client {client}, turn {turn}: {said!r} for {asked.answer!r}")
            book.answers[client] += 1
            book.longest_s[client] = max(book.longest_s[client], time.monotonic() - began)


async def _whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    made = await http.post(CHAT, json=body)
    if made.status_code != 200:
        raise ValueError(f"{made.status_code} {made.text}")
    return str(made.json()["choices"][0]["message"]["content"])


async def _streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with http.stream("POST", CHAT, json=body) as made:
        if made.status_code != 200:
            raise ValueError(f"{made.status_code} {(await made.aread()).decode()}")
        return text_of([line async for line in made.aiter_lines()])


def text_of(lines: list[str]) -> str:
    """What a stream of events says. Raises ValueError where it does not end well."""
    told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if not told or told[-1] != "[DONE]":
        raise ValueError(f"a stream ended with {told[-1:]}")
    pieces = [json.loads(each)["choices"][0]["delta"].get("content") or "" for each in told[:-1]]
    return "".join(pieces)


# -- the rude ones ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection, torn down at the end however it stands."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def request(body: dict[str, Any], key: str = "rude") -> bytes:
    """An HTTP request, as bytes."""
    content = json.dumps(body).encode()
    told = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Authorization": f"Bearer {key}",
        "Connection": "close",
        "Content-Length": len(content),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + content


def question(chance: random.Random, **named: Any) -> dict[str, Any]:
    number = chance.randrange(10**9)
    text = f"Say {number}."
    return {
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "explain": True,
    } | named


async def leaves(port: int, chance: random.Random, book: Book) -> None:
    """Closes in the middle of a stream."""
    async with connected(port) as (reader, writer):
        writer.write(request(question(chance)))
        await reader.read(chance.randrange(1, 2000))


async def reads_slowly(port: int, chance: random.Random, book: Book) -> None:
    """Takes a stream in small bites, and still gets all of it."""
    async with connected(port) as (reader, writer):
        writer.write(request(question(chance, max_tokens=40)))
        held = b""
        while part := await reader.read(512):
            held += part
            await asyncio.sleep(0.02)
    if b"data: [DONE]" not in held:
        book.wrong.append(f"a slow reader's stream ended with {held[-200:]!r}")


async def never_reads(port: int, chance: random.Random, book: Book) -> None:
    """Asks for a long stream and lets it lie."""
    async with connected(port) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(question(chance, ignore_eos=True, max_tokens=200)))
        await asyncio.sleep(1.0)


async def half_closes(port: int, chance: random.Random, book: Book) -> None:
    """Says that nothing more will come from it, and waits for the end."""
    async with connected(port) as (reader, writer):
        writer.write(request(question(chance)))
        writer.write_eof()
        while await reader.read(4096):
            pass


async def sends_half(port: int, chance: random.Random, book: Book) -> None:
    """Goes in the middle of its request."""
    async with connected(port) as (_, writer):
        whole = request(question(chance))
        writer.write(whole[: chance.randrange(1, len(whole))])
        await asyncio.sleep(0.1)


async def makes_names_up(port: int, chance: random.Random, book: Book) -> None:
    """Models, users and keys that nobody has heard of."""
    name = f"name-{chance.randrange(10**12)}"
    unknown = {"model": name} if chance.random() < 0.5 else {"user": name, "metadata": {name: name}}
    async with connected(port) as (reader, writer):
        writer.write(request(question(chance, max_tokens=4, **unknown), key=name))
        while await reader.read(4096):
            pass


RUDE = (leaves, reads_slowly, never_reads, half_closes, sends_half, makes_names_up)


async def rude(
    act: Callable[[int, random.Random, Book], Awaitable[None]], port: int, until: float, book: Book
) -> None:
    """One kind of rudeness, again and again."""
    chance = random.Random(act.__name__)
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionError):
            await act(port, chance, book)
        book.rude[act.__name__] = book.rude.get(act.__name__, 0) + 1
        await asyncio.sleep(0.05)


# -- what the server holds -------------------------------------------------------------------------


@dataclass
class Held:
    """resident: bytes, sampled. series: lines of /metrics. files: open ones."""

    resident: int
    series: int
    files: int


def look(server: Running) -> Held:
    told = httpx.get(f"{server.url}/metrics", timeout=60).text
    series = sum(not line.startswith("#") for line in told.splitlines())
    return Held(server.resident(), series, len(os.listdir(f"/proc/{server.process.pid}/fd")))


async def watched(server: Running, until: float) -> list[Held]:
    """Samples over time."""
    samples = []
    while time.monotonic() < until:
        samples.append(await asyncio.to_thread(look, server))
        await asyncio.sleep(SAMPLE_S)
    return samples


async def soaked(server: Running, ask: Ask, given: argparse.Namespace, book: Book) -> list[Held]:
    until = time.monotonic() + given.seconds
    tiny = bool(given.tiny)
    _, *_, samples = await asyncio.gather(
        *(polite(server.url, client, ask, tiny, until, book) for client in range(given.clients)),
        *(rude(act, server.port, until, book) for act in RUDE if not given.polite),
        watched(server, until),
    )
    return list(samples)  # type: ignore[arg-type]


def judged(book: Book, samples: list[Held], growth_mib: float) -> dict[str, Any]:
    """Figures; what is wrong with them goes into the book."""
    warm, last = samples[int(WARM * len(samples))], samples[-1]
    tail = samples[-max(1, len(samples) // 10) :]
    head = samples[int(WARM * len(samples)) :][: len(tail)]
    before, after = (statistics.median(each.resident for each in part) for part in (head, tail))
    grown = (after - before) / MIB
    median = statistics.median(book.answers.values())
    least = min(book.answers.values())
    if least < median / 2 or not least:
        book.wrong.append(f"a client got {least} answers where the median client got {median}")
    if grown > growth_mib:
        book.wrong.append(f"memory grew by {grown:.1f} MiB, more than {growth_mib:g}")
    if last.series > warm.series:
        book.wrong.append(f"/metrics has {last.series} series, {warm.series} after warming up")
    return {
        "answers": sum(book.answers.values()),
        "answers a client, least / median / most": [least, median, max(book.answers.values())],
        "longest wait for an answer, s": round(max(book.longest_s.values()), 2),
        "memory after warming up, MiB": round(before / MIB, 1),
        "memory at the end, MiB": round(after / MIB, 1),
        "series of /metrics, warm and at the end": [warm.series, last.series],
        "open files, warm and at the end": [warm.files, last.files],
        **{f"clients that {kind.replace('_', ' ')}".replace("that makes", "that make"): count
           for kind, count in sorted(book.rude.items())},
    }  # fmt: skip


def forgotten(server: Running, seconds: float = 20) -> bool:
    """Whether nothing runs or waits any more, in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        told = httpx.get(f"{server.url}/stats", timeout=60).json()
        if not told["requests_running"] and not told["requests_waiting"]:
            return True
        time.sleep(0.1)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--tiny", action="store_true", help="a random Llama, its passes shared")
    parser.add_argument("--slots", type=int, default=8, help="answers at once, with --tiny")
    parser.add_argument("--polite", action="store_true", help="without the rude clients")
    parser.add_argument("--growth", type=float, default=16.0, metavar="MIB", help="default 16")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    given = parser.parse_args()

    book = Book()
    with tempfile.TemporaryDirectory() as scratch:
        ask: Ask = numbers
        options: list[object] = ["--pause", 0.0005]
        if given.tiny:
            ask = alone(Path(scratch))
            options = ["--tiny", scratch, "--slots", given.slots]
        with running(*options) as server:
            samples = asyncio.run(soaked(server, ask, given, book))
            if not forgotten(server):
                book.wrong.append("requests were never forgotten")
    figures = {"clients": given.clients, "seconds": given.seconds}
    end(figures | judged(book, samples, given.growth), book.wrong, given.out)


if __name__ == "__main__":
    main()
