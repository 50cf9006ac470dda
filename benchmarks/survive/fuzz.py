"""Thousands of requests of every kind: no 5xx, no hang, no special token written by a text.

    python benchmarks/survive/fuzz.py --requests 10000

A third each: requests that schemathesis makes from the server's own OpenAPI description, valid and
not; prompts of all Unicode, control characters and the chat template's own tokens spelled as text;
and bytes that are no request at all. The toys' server tells how many special tokens it was given,
so that one that a text smuggled in would be seen. The server is a process of its own on 127.0.0.1.

Wrong is: a status of 500 or more, a request without an answer for --hang seconds, a prompt with
other special tokens than its template writes, a request that is never forgotten, a traceback in the
server's log. Exit status 1 says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ending import end
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from soak import CHAT, DRAWN, NULLS, forgotten, request, text_of
from toy_server import SPECIAL, Running, expected, running, special_tokens

TEXT = "/v1/completions"
GETS = 10  # requests of each operation that takes no body, valid and not
PATIENCE_S = 0.1  # what an answer to odd bytes may take before we hang up
ROLES = ("system", "user", "assistant")
MARKS = (
    *SPECIAL, "<|im_start|>system\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_", "start|>",
    "<s>",
    "</s>", "[INST]", "{{ messages }}", "{% raw %}", "\x00", "\u202e", "\ufeff", "\ufffd",
    "\U000f0000", "\U0010ffff", "\r\n", "data: [DONE]", "e\u0301", "\u200b", "👩‍👩‍👧",
    "４７１１", "٤٧",
)  # fmt: skip


@dataclass
class Tally:
    """statuses: how often each came, by part."""

    hang_s: float
    statuses: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def took(self, seconds: float, what: object) -> None:
        self.longest_s = max(self.longest_s, seconds)
        if seconds > self.hang_s:
            self.wrong.append(f"{seconds:.1f} s without an answer: {what!r}"[:500])

    def came(self, part: str, status: int | str, what: object, words: str) -> None:
        self.statuses[f"{part}: {status}"] += 1
        if str(status).startswith("5"):
            self.wrong.append(f"{status} {words[:200]} for {what!r}"[:700])


def bounded(examples: int, chance: int) -> Any:
    """Hypothesis's settings for so many examples, the same for the same chance."""

    def of(test: Any) -> Any:
        quiet = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return seed(chance)(quiet(test))

    return of


# -- what the description allows, and what it does not ---------------------------------------------


def by_description(server: Running, requests: int, chance: int, tally: Tally) -> None:
    """Requests that schemathesis makes, over all operations."""
    import schemathesis
    from schemathesis.generation.modes import GenerationMode

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    posts = [each for each in operations if each.method == "post"]
    for operation in operations:
        for mode in GenerationMode:
            share = requests // (len(posts) * len(GenerationMode)) if operation in posts else GETS
            cases = operation.as_strategy(generation_mode=mode)
            with contextlib.suppress(Unsatisfiable):  # of what takes nothing, nothing can be wrong
                _each(cases, share, chance, tally)


def _each(cases: Any, examples: int, chance: int, tally: Tally) -> None:
    @bounded(max(1, examples), chance)
    @given(cases)
    def asked(case: Any) -> None:
        began = time.monotonic()
        try:
            made = case.call(timeout=tally.hang_s)
        except Exception as error:  # of whichever client schemathesis uses
            if "imeout" in type(error).__name__:
                tally.wrong.append(f"no answer: {case!r}"[:500])
            tally.statuses[f"description: {type(error).__name__}"] += 1
            return
        tally.took(time.monotonic() - began, case)
        tally.came("description", made.status_code, case, made.text)

    asked()


# -- what people may write -------------------------------------------------------------------------

WORDS = st.one_of(
    st.text(max_size=60),  # all of Unicode but halves of surrogate pairs
    st.lists(st.one_of(st.sampled_from(MARKS), st.text(max_size=8)), max_size=12).map("".join),
    st.text(st.characters(categories=["Cc", "Cf", "Co", "Cn", "Zl", "Zp"]), max_size=30),
    st.tuples(st.sampled_from(MARKS), st.integers(0, 10**15)).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    ),
)
ENDS = SPECIAL[1]  # what the server's answers end with
STOPS = st.lists(
    st.one_of(
        st.sampled_from((*SPECIAL, f"ne{ENDS}", f" none{ENDS}", ENDS[:5], ": ", "11 47", "\ufffd")),
        st.text("0123456789: one", min_size=1, max_size=4),
    ),
    max_size=3,
)
SCORED = {"logprobs": True, "top_logprobs": 3}
HALVES = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)


def by_prompt(server: Running, requests: int, chance: int, tally: Tally) -> None:
    """Chats and completions whose answers are known."""
    http = httpx.Client(base_url=server.url, timeout=tally.hang_s)

    @bounded(requests * 3 // 4, chance)
    @given(
        st.lists(st.tuples(st.sampled_from(ROLES), WORDS), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from(({}, NULLS, DRAWN, SCORED, SCORED)),
        STOPS,
        st.booleans(),
    )
    def chats(
        said: list[tuple[str, str]],
        explain: bool,
        more: dict[str, Any],
        stops: list[str],
        stream: bool,
    ) -> None:
        messages = [{"role": role, "content": content} for role, content in said]
        body = {"messages": messages, "max_tokens": 80, "explain": explain, "stream": stream}
        body |= {"stop": stops or None, **more}
        made = _post(http, CHAT, body, tally)
        if made is not None and made.status_code == 200:
            begun = said[-1][0] == "assistant"  # it goes on, in place of a new message
            special = special_tokens(len(said)) - 2 * begun
            must = _before(body["stop"] or (), expected(special, "\n".join(t for _, t in said)))
            if stream:
                _same(text_of(made.text.splitlines()), must, body, tally)
                return
            choice = made.json()["choices"][0]
            _same(choice["message"]["content"], must, body, tally)
            if more is SCORED:
                spelled = [each["bytes"] or [] for each in choice["logprobs"]["content"]]
                text = bytes(byte for each in spelled for byte in each).decode()
                _same(text, must, body, tally)

    @bounded(requests // 8, chance)
    @given(WORDS)
    def texts(said: str) -> None:
        made = _post(http, TEXT, {"prompt": said, "max_tokens": 80}, tally)
        if made is not None and made.status_code == 200:
            _same(made.json()["choices"][0]["text"], expected(0, said), said, tally)

    @bounded(requests // 8, chance)
    @given(WORDS, HALVES, WORDS)
    def halves(before: str, half: str, after: str) -> None:
        said = before + half + after
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 4}
        made = _post(http, CHAT, body, tally)
        whole = said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if made is not None and made.status_code == 200 and "\ufffd" in whole.replace(before, ""):
            tally.wrong.append(f"half a character was taken: {said!r}"[:500])

    with http:
        chats()
        texts()
        halves()


def _post(
    http: httpx.Client, path: str, body: dict[str, Any], tally: Tally
) -> httpx.Response | None:
    content, kind = json.dumps(body), {"Content-Type": "application/json"}
    return _answered(lambda: http.post(path, content=content, headers=kind), body, "prompts", tally)


def _answered(
    ask: Callable[[], httpx.Response], what: object, part: str, tally: Tally
) -> httpx.Response | None:
    """The response; None where none came, which is wrong."""
    began = time.monotonic()
    try:
        made = ask()
    except httpx.HTTPError as error:
        tally.statuses[f"{part}: {type(error).__name__}"] += 1
        tally.wrong.append(f"{error!r} for {what!r}"[:500])
        return None
    tally.took(time.monotonic() - began, what)
    tally.came(part, made.status_code, what, made.text)
    return made


def _before(stops: Iterable[str], answer: str) -> str:
    """The answer up to the stop string that is whole first. Its end is a token, which a stop string
    may name."""
    found = [
        (at + len(stop), at)
        for stop in stops
        for whole in (answer, answer + ENDS)
        if (at := whole.find(stop)) >= 0 and (stop in answer or stop.endswith(ENDS))
    ]
    return answer[: min(found)[1]] if found else answer


def _same(said: str, must: str, prompt: object, tally: Tally) -> None:
    if said != must:
        tally.wrong.append(f"{said!r} where {must!r} was due: {prompt!r}"[:500])


# -- what is no request ----------------------------------------------------------------------------


def by_bytes(server: Running, requests: int, chance: int, tally: Tally) -> None:
    """Bodies that are no JSON, and bytes that are no HTTP."""
    bodies = st.one_of(
        st.binary(max_size=200),
        st.integers(1, 3000).map(lambda deep: b"[" * deep + b"]" * deep),
        st.integers(1, 6000).map(lambda digits: b'{"seed": ' + b"9" * digits + b"}"),
    )
    good = request({"messages": [{"role": "user", "content": "Say 4711."}], "max_tokens": 8})
    places = st.integers(0, len(good))
    spoiled = st.tuples(places, places, st.binary(max_size=20))
    raw = st.one_of(
        st.binary(min_size=1, max_size=300),
        spoiled.map(lambda cut: good[: cut[0]] + cut[2] + good[cut[1] :]),
    )
    kind = {"Content-Type": "application/json"}

    @bounded(requests // 2, chance)
    @given(bodies)
    def posted(content: bytes) -> None:
        _answered(lambda: http.post(CHAT, content=content, headers=kind), content, "bytes", tally)

    @bounded(requests // 2, chance)
    @given(raw)
    def sent(content: bytes) -> None:
        began = time.monotonic()
        try:
            came = exchanged(server.port, content, tally.hang_s)
        except TimeoutError:
            tally.wrong.append(f"neither answered nor closed: {content!r}"[:500])
            return
        tally.took(time.monotonic() - began, content)
        line = came.split(b"\r\n", 1)[0].split()
        status = line[1].decode() if len(line) > 1 else "closed"
        tally.came("wire", status, content, came.decode(errors="replace"))

    with httpx.Client(base_url=server.url, timeout=tally.hang_s) as http:
        posted()
    sent()


def exchanged(port: int, content: bytes, seconds: float) -> bytes:
    """What comes back for these bytes, up to the end of the connection; the end of ours is told
    where nothing comes at once. Raises TimeoutError."""
    came = b""
    made = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    with made, contextlib.suppress(ConnectionError):
        made.sendall(content)
        made.settimeout(PATIENCE_S)
        with contextlib.suppress(TimeoutError):
            came = made.recv(65536)
        made.settimeout(seconds)
        made.shutdown(socket.SHUT_WR)
        while part := made.recv(65536):
            came += part
    return came


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="default 10000")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other requests")
    parser.add_argument("--hang", type=float, default=20.0, metavar="SECONDS", help="default 20")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    asked = parser.parse_args()

    tally = Tally(asked.hang)
    with running() as server:
        for part in (by_description, by_prompt, by_bytes):
            part(server, asked.requests // 3 + 2, asked.seed, tally)
        if server.process.poll() is not None:
            tally.wrong.append("the server is gone")
        elif not forgotten(server):
            tally.wrong.append("requests were never forgotten")
        log = server.log.read_text(errors="replace", encoding="utf-8")
        if "Traceback" in log:
            tally.wrong.append(f"a traceback in the log: {log[log.index('Traceback') :][:2000]}")
    figures = {"requests": tally.requests, "longest answer, s": round(tally.longest_s, 2)}
    end(figures | dict(sorted(tally.statuses.items())), tally.wrong, asked.out)


if __name__ == "__main__":
    main()
