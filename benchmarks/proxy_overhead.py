"""What `draftpick serve` adds to the time of an endpoint's tokens, beside asking it directly.

    python benchmarks/proxy_overhead.py --clients 1 8 64

A stand-in for a server streams each token at an even pace, with the time at which it was sent as
its text; clients note when it comes. The stand-in, the proxy and the clients are processes of their
own and share the machine's cores. Both ways take turns; a row is the median, and the 95th
percentile, of the added time of first tokens (from the request on) and of all later ones (from
their sending on), in milliseconds. On an otherwise idle machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoders.common.provenance import hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS = 24
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--answers", type=int, default=6, help="of each client and way")
    parser.add_argument("--pace-ms", type=float, default=100.0, help="between two tokens")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    print(hardware())
    with stand_in(given.pace_ms / 1000) as port, proxy_over(port) as proxy:
        for clients in given.clients:
            found: dict[int, list[Any]] = {port: [], proxy: []}
            for _ in range(given.repeats):
                for way in found:
                    found[way] += asyncio.run(asked_by(clients, way, given.answers))
            first, later = (
                [np.array([value for each in found[way] for value in each[kind]]) for way in found]
                for kind in (0, 1)
            )
            print(f"{clients:3} clients: first token {row(*first)}; later tokens {row(*later)}")


def row(direct: np.ndarray, through: np.ndarray) -> str:
    added = [
        1000 * (np.quantile(through, share) - np.quantile(direct, share)) for share in (0.5, 0.95)
    ]
    return f"+{added[0]:.2f} ms at the median, +{added[1]:.2f} ms at 95%"


# -- clients --------------------------------------------------------------------------------------


async def asked_by(clients: int, port: int, answers: int) -> list[tuple[list[float], list[float]]]:
    """By client: seconds to first tokens, and of later ones from their sending on. Clients start
    one after the other within an answer's time."""

    async def client(number: int) -> tuple[list[float], list[float]]:
        await asyncio.sleep(number / clients)
        first, later = list[float](), list[float]()
        for turn in range(answers):
            seconds, rest = await one(port, f"question {number} {turn}")
            first.append(seconds)
            later += rest
        return first, later

    return await asyncio.gather(*(client(number) for number in range(clients)))


async def one(port: int, question: str) -> tuple[float, list[float]]:
    body = json.dumps(
        {
            "model": "auto" if port != 0 else "m",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": TOKENS,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    started = time.monotonic()
    writer.write(head.encode() + body)
    first, later = None, list[float]()
    while line := await reader.readline():
        now = time.monotonic()
        if not line.startswith(b'data: {"'):
            continue
        choices = json.loads(line[6:]).get("choices")
        text = choices[0]["delta"].get("content") if choices else None
        for stamp in (text or "").split():
            if first is None:
                first = now - started
            else:
                later.append(now - float(stamp))
    writer.close()
    assert first is not None and len(later) == TOKENS - 1, (first, len(later))
    return first, later


# -- the stand-in ---------------------------------------------------------------------------------


@contextmanager
def stand_in(pace_s: float) -> Iterator[int]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, pace_s))
    process.start()
    try:
        wait_for(port)
        yield port
    finally:
        process.kill()


def serve(port: int, pace_s: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request after another, until the connection is closed, as real servers do."""
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return writer.close()
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            await reader.readexactly(length)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            due = time.monotonic()
            for _ in range(TOKENS):
                due += pace_s
                await asyncio.sleep(due - time.monotonic())
                choice = {"index": 0, "delta": {"content": f" {time.monotonic():.6f}"}}
                writer.write(event({**CHUNK, "choices": [{**choice, "finish_reason": None}]}))
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": TOKENS + 3}
            writer.write(event({**CHUNK, "choices": [end]}))
            writer.write(event({**CHUNK, "choices": [], "usage": usage}))
            writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))
            await writer.drain()
            if b"connection: close" in head.lower():
                return writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=256)
        await server.serve_forever()

    asyncio.run(run())


def event(content: Any) -> bytes:
    return chunk(f"data: {json.dumps(content)}\n\n".encode())


def chunk(content: bytes) -> bytes:
    """As of HTTP's chunked transfer."""
    return b"%x\r\n%b\r\n" % (len(content), content)


# -- the proxy ------------------------------------------------------------------------------------


@contextmanager
def proxy_over(port: int) -> Iterator[int]:
    """`draftpick serve` over two arms at the stand-in, by a policy that takes the first."""
    from policies import fixed_policy

    with tempfile.TemporaryDirectory() as folder:
        arms = {
            name: {"kind": "endpoint", "url": f"http://127.0.0.1:{port}/v1", "model": "m"}
            for name in ("first", "second")
        }
        config, policy = Path(folder) / "arms.yaml", Path(folder) / "policy"
        config.write_text(json.dumps({"arms": arms}), encoding="utf-8")
        fixed_policy(("first", "second"), "first").save(policy)
        own = free_port()
        words = ["serve", "--config", config, "--policy", policy, "--port", str(own)]
        words += ["--slots", "128"]
        process = subprocess.Popen([sys.executable, "-m", "router.cli", *map(str, words)])
        try:
            wait_for(own, "/health")
            yield own
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def wait_for(port: int, path: str | None = None) -> None:
    for _ in range(600):
        try:
            if path is None:
                socket.create_connection(("127.0.0.1", port), 1).close()
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"nothing listens at port {port}")


if __name__ == "__main__":
    main()
