"""Who is drafted from whose earlier answers, and whose prompts are not read again, through the
server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from serve_toys import Served, native_engine, samples, served, toy_engine

from decoders import Engine
from decoders.arms import recipe
from decoders.common.errors import DraftpickError
from decoders.earlier.answers import EarlierAnswers
from decoders.earlier.prefixes import PrefixStore
from decoders.earlier.votes import Draft
from decoders.endpoints.engine import EndpointEngine
from router.commands.serve.options import ServeOptions
from router.commands.serve.plan import plan
from router.commands.serve.served import Served as Planned
from router.commands.with_records import made
from router.records import RouteChoice
from router.serve.app import Settings
from router.serve.middleware import user_of
from router.serve.parsing import Limits, RequestParser
from router.serve.schemas import ChatBody

PROMPT = "hello there"


class Recorded(EarlierAnswers):
    """Remembers what was drafted, and for whom; drafts nothing of its own."""

    def __init__(self) -> None:
        super().__init__(4096)
        self.texts: dict[str, list[int]] = {}
        self.drafted: list[tuple[str, list[int]]] = []

    def add(self, user: str, prompt: Any, answer: Any) -> None:
        self.texts.setdefault(user, []).extend([*prompt, *answer])
        super().add(user, prompt, answer)

    def draft(self, user: str, tail: Any, wanted: Any, acceptance: Any) -> Draft:
        made = super().draft(user, tail, wanted, acceptance)
        if made.ids:
            self.drafted.append((user, made.ids))
        return made


def planned(**options: Any) -> Planned:
    return plan(made(ServeOptions, options))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    made = native_engine(tmp_path_factory.mktemp("tiny"))
    made.arms["suffix"] = recipe(kind="suffix", name="suffix", length={"k": 3})
    return made


@contextmanager
def kept_apart(engine: Engine, isolate_by: str, slots: int = 2) -> Iterator[tuple[Served, Any]]:
    earlier = Recorded()
    engine.remember(earlier)
    try:
        with served(Settings(isolate_by=isolate_by), engine=engine, slots=slots) as running:
            yield running, earlier
    finally:
        engine.remember(None)


def ask(running: Served, prompt: str = PROMPT, **headers: str) -> tuple[str, int]:
    """The answer, and how many tokens were drafted and accepted for it."""
    body = {"model": "suffix", "prompt": prompt, "max_tokens": 24, "ignore_eos": True}
    with httpx.Client(base_url=running.url, timeout=20) as http:
        made = http.post("/v1/completions", json=body | {"explain": True}, headers=headers).json()
    drafts = made["metrics"]["speculative_decoding"]
    return made["choices"][0]["text"], drafts["num_accepted_draft_tokens"]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("slots", [1, 2])
def test_no_key_is_drafted_from_another_s_answers(engine: Engine, slots: int) -> None:
    with kept_apart(engine, "key", slots) as (running, earlier):
        alone = ask(running, **bearer("a"))
        assert ask(running, **bearer("b")) == alone
        assert not earlier.drafted
        again = ask(running, **bearer("a"))
        assert again[0] == alone[0] and again[1] > alone[1]
        assert earlier.drafted
        assert ask(running, **bearer("c")) == alone == ask(running)
        for key in "aba":
            for prompt in ("there you go", PROMPT):
                ask(running, prompt, **bearer(key))
        assert len(earlier.texts) == 4 == earlier.users
        for user, ids in earlier.drafted:
            text = " ".join(map(str, earlier.texts[user]))
            assert " ".join(map(str, ids)) in text


def test_by_a_header(engine: Engine) -> None:
    with kept_apart(engine, "x-user") as (running, earlier):
        alone = ask(running, **{"X-User": "ann"}, **bearer("k"))
        assert ask(running, **{"X-User": "bob"}, **bearer("k")) == alone
        assert ask(running, **{"x-user": "ann"}, **bearer("other"))[1] > alone[1]
        kept = len(earlier)
        assert ask(running, **bearer("k")) == alone  # of nobody: not kept, and not drafted from
        assert len(earlier) == kept == 3


def test_not_at_all(engine: Engine) -> None:
    with kept_apart(engine, "none") as (running, _):
        alone = ask(running, **bearer("a"))
        assert ask(running, **bearer("b"))[1] > alone[1]


def test_figures(engine: Engine) -> None:
    with kept_apart(engine, "key") as (running, earlier):
        for key in "aab":
            ask(running, **bearer(key))
        found = samples(httpx.get(f"{running.url}/metrics").text, ("counter", "gauge"))
        assert found["draftpick_earlier_answers",] == 3
        assert found["draftpick_earlier_users",] == 2
        assert found["draftpick_earlier_tokens",] == earlier.tokens > 3 * 24
        hits, lookups = (found[f"draftpick_earlier_{n}_total",] for n in ("hits", "lookups"))
        assert 0 < hits < lookups
    with served(engine=engine) as running:
        assert "draftpick_earlier" not in httpx.get(f"{running.url}/metrics").text


@contextmanager
def prefixes_kept(
    engine: Engine, isolate_by: str, slots: int, limit: int = 2**20
) -> Iterator[tuple[Served, PrefixStore]]:
    store = PrefixStore(limit)
    engine.keep_prefixes(store)
    engine.target.prefill([0])  # what other tests left is of no use
    try:
        with served(Settings(isolate_by=isolate_by), engine=engine, slots=slots) as running:
            yield running, store
    finally:
        engine.keep_prefixes(None)


def saved(running: Served, prompt: str = PROMPT, **headers: str) -> tuple[str, int]:
    """The answer, and how many of the prompt's tokens were not read."""
    body = {"model": "copy", "prompt": prompt, "max_tokens": 9, "ignore_eos": True}
    with httpx.Client(base_url=running.url, timeout=20) as http:
        made = http.post("/v1/completions", json=body, headers=headers).json()
    cached = made["usage"].get("prompt_tokens_details", {"cached_tokens": 0})["cached_tokens"]
    return made["choices"][0]["text"], cached


@pytest.mark.parametrize("slots", [1, 3])
def test_no_key_s_prompts_save_another_s_reading(engine: Engine, slots: int) -> None:
    with prefixes_kept(engine, "key", slots) as (running, store):
        text, cached = saved(running, **bearer("a"))
        assert cached == 0
        assert saved(running, **bearer("b")) == (text, 0) == saved(running)
        for key in "abab":  # whichever slot is free
            assert saved(running, **bearer(key)) == (text, len(PROMPT) - 1)
        assert saved(running, f"{PROMPT} go", **bearer("b"))[1] == len(PROMPT)
        assert saved(running, f"{PROMPT} go", **bearer("c"))[1] == 0
        assert store.users == 4
    with prefixes_kept(engine, "none", slots) as (running, store):
        assert saved(running, **bearer("a")) == (text, 0)
        assert saved(running, **bearer("b")) == (text, len(PROMPT) - 1)


@pytest.mark.parametrize("slots", [1, 3])
def test_requests_of_nobody_are_read_whole(engine: Engine, slots: int) -> None:
    with prefixes_kept(engine, "x-user", slots) as (running, store):
        for _ in range(2):
            assert saved(running, **bearer("k"))[1] == 0
        assert store.tokens == store.asked == 0
        assert saved(running, **{"X-User": "ann"})[1] == 0
        assert saved(running, **{"X-User": "ann"})[1] == len(PROMPT) - 1


def test_figures_of_what_was_not_read(engine: Engine) -> None:
    room = 20 * engine.target.position_bytes
    with prefixes_kept(engine, "key", 2, room) as (running, _):
        for prompt in (PROMPT, PROMPT, "another one"):
            saved(running, prompt)
        found = samples(httpx.get(f"{running.url}/metrics").text, ("counter", "gauge"))
        asked = 2 * len(PROMPT) + len("another one")
        assert found["vllm:prefix_cache_queries_total",] == asked
        assert found["vllm:prefix_cache_hits_total",] == len(PROMPT) - 1
        assert found["draftpick_prefix_lookups_total",] == 3
        assert found["draftpick_prefix_hits_total",] == 1
        assert found["draftpick_prefix_tokens",] <= 20 and found["draftpick_prefix_users",] == 1
        assert 0 < found["draftpick_prefix_bytes",] <= room
        assert found["draftpick_prefix_limit_bytes",] == room
        assert found["draftpick_prefix_evicted_tokens_total",] > 0
    with served(engine=engine) as running:
        assert "prefix" not in httpx.get(f"{running.url}/metrics").text


def test_what_the_options_keep_of_prompts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(target: Engine, size: str | None = None) -> int | None:
        target.keep_prefixes(None)
        planned(prefix_memory=size).keep_prefixes(target)
        found, _ = target.prefixes, target.keep_prefixes(None)
        return None if found is None else found.limit

    each = engine.target.position_bytes
    monkeypatch.setattr("decoders.models.memory.free_bytes", lambda device: 320 * each)
    assert kept(engine) == 20 * each
    assert (kept(engine, "0"), kept(engine, f"{7 * each}B")) == (None, 7 * each)
    with pytest.raises(DraftpickError, match=r"asks for 1\.9 GiB, and 0\.0 GiB of cpu are free"):
        kept(engine, "2GB")
    with pytest.raises(DraftpickError, match=r"--prefix-memory asks for .* give less, or 0"):
        planned(prefix_memory="2GB", device="cpu").make()  # before anything is loaded
    with pytest.raises(DraftpickError, match=r"takes \d+ bytes, and kept prefixes may take 9;"):
        kept(engine, "9B")
    assert kept(toy_engine()) is None
    with pytest.raises(DraftpickError, match="prefixes are kept by the native backend alone"):
        kept(toy_engine(), f"{each}B")
    monkeypatch.setattr("decoders.models.memory.free_bytes", lambda device: each)
    assert kept(engine) is None, "a share that holds not one position"


def test_without_prefixes_conversations_move_between_endpoints() -> None:
    for size, least in (("0", None), (None, 2048)):
        arm = recipe(name="a", kind="endpoint", url="http://h/v1", model="m")
        engine = EndpointEngine({"a": arm})
        planned(prefix_memory=size).keep_prefixes(engine)
        assert engine.conversations.least == least


def test_answers_are_kept_where_arms_draft_from_them(engine: Engine) -> None:
    planned(earlier_tokens=500).remember(engine)
    assert engine.earlier is not None
    engine.remember(None)
    planned(earlier_tokens=0).remember(engine)
    assert engine.earlier is None
    others = toy_engine()  # whose arms draft from no earlier answers
    planned().remember(others)
    assert others.earlier is None


def test_a_key_is_not_told() -> None:
    scope: Any = {"headers": [(b"authorization", b"Bearer secret"), (b"x-user", b"secret")]}
    for isolate_by in ("key", "x-user"):
        user = user_of(scope, isolate_by)
        assert user is not None and "secret" not in user and len(user) == 32
    twice: Any = {"headers": [(b"x-user", b"a"), (b"X-User", b"b")]}
    assert user_of(twice, "x-user") != user_of({"headers": [(b"x-user", b"b")]}, "x-user")


def test_conversations_in_the_log_are_of_a_key_or_else_of_an_address() -> None:
    parser = RequestParser(toy_engine(), [], Limits())
    asked = ChatBody(messages=[{"role": "user", "content": PROMPT}])

    def group(client: str, isolate_by: str, **headers: str) -> str | None:
        shown = [(name.encode(), value.encode()) for name, value in headers.items()]
        user = user_of({"headers": shown}, isolate_by)
        (made,) = asyncio.run(parser.requests(asked, RouteChoice("copy"), client, user))
        return made.group

    for isolate_by in ("key", "none", "x-user"):
        here, there = (group(client, isolate_by) for client in ("10.0.0.1", "10.0.0.2"))
        assert here == group("10.0.0.1", isolate_by) != there
    known = {"authorization": "Bearer ours"}
    assert group("10.0.0.1", "key", **known) == group("10.0.0.2", "key", **known)
