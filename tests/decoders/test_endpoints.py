"""Endpoint arms against small servers on this machine: what they are asked, what they give, and
what becomes of a dead one."""

import json
import time
import traceback
from threading import Semaphore
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoders.arms import load_arms, recipe, remote
from decoders.common.breaker import Breaker
from decoders.common.errors import ArmDown, DraftpickError, UpstreamBroke, UpstreamRefused
from decoders.common.hashing import HashingEmbedder
from decoders.endpoints.chat import Pieces, chat_ids, chat_of
from decoders.endpoints.engine import EndpointEngine
from decoders.endpoints.load import Load
from decoders.endpoints.stream import pause_s
from decoders.records import Request, Sampling
from decoders.testing.fake_server import Clock, FakeEndpoint, listening
from decoders.testing.tokenizers import word_tokenizer
from decoders.testing.toys import Streamed

HELLO = chat_ids([{"role": "user", "content": "why is the sky blue"}])


def engine_over(clock: Any = time.monotonic, **bodies: dict[str, Any]) -> EndpointEngine:
    """Arms of these names and fields."""
    usual = {"kind": "endpoint", "model": "m"}
    return EndpointEngine({n: recipe(name=n, **usual | b) for n, b in bodies.items()}, clock)


def engine_of(server: FakeEndpoint, clock: Any = time.monotonic, **body: Any) -> EndpointEngine:
    """One arm, `a`."""
    return engine_over(clock, a={"url": server.url, **body})


# -- answers --------------------------------------------------------------------------------------


def test_an_answer_has_its_text_tokens_times_and_price(server: FakeEndpoint) -> None:
    server.step_s = lambda prompt: 0.01
    engine = engine_of(server, prompt_price=2.0, completion_price=10.0)
    result = engine.decode("a", HELLO, Request())
    assert result.text == "WHY IS THE SKY BLUE" == engine.tokenizer.decode(result.ids)
    assert (len(result.ids), result.rounds, result.finish_reason) == (5, 4, "eos")
    assert (result.prompt_tokens, result.cost) == (5, pytest.approx(60e-6))
    assert result.prefill_s >= 0.01 and result.prefill_s + result.decode_s >= 0.05
    assert result.mean_accepted == 1.0


def test_a_request_is_put_in_the_servers_words(
    server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    engine = engine_of(server, api_key_env="MY_KEY", extra_body={"priority": 3})
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.9, repetition_penalty=1.1)
    engine.decode("a", HELLO, Request(2, sampling, stop=("END",), seed=4, eos_ids=()))
    assert server.asked[-1] == {
        "model": "m",
        "messages": [{"role": "user", "content": "why is the sky blue"}],
        "max_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "repetition_penalty": 1.1,
        "stop": ["END"],
        "seed": 4,
        "ignore_eos": True,
        "priority": 3,
    }
    assert server.heads[-1]["Authorization"] == "Bearer secret"
    engine.decode("a", HELLO, Request(2))
    unasked = {"top_p", "top_k", "repetition_penalty", "stop", "seed", "ignore_eos"}
    assert not unasked & server.asked[-1].keys()  # servers may refuse what they do not know


def test_a_server_that_takes_other_fields_is_asked_by_those(server: FakeEndpoint) -> None:
    server.refuses = ("max_tokens", "temperature")
    with pytest.raises(DraftpickError, match=r"HTTP 400 .unsupported: max_tokens, temperature"):
        engine_of(server).decode("a", HELLO, Request(2))
    engine = engine_of(server, limit_field="max_completion_tokens", send_temperature=False)
    assert engine.decode("a", HELLO, Request(2)).text == "WHY IS"
    server.refuses = ()
    engine_of(server, extra_body={"temperature": 1}).decode("a", HELLO, Request(2))
    assert server.asked[-1]["temperature"] == 1


def test_arms_of_one_server_differ_by_their_fields(server: FakeEndpoint) -> None:
    """Each field arrives as it is written, and no other arm's."""
    bodies: dict[str, dict[str, Any]] = {
        "plain": {},
        "draft": {"draft_model": "qwen-0.5b", "num_draft_tokens": 4},
        "none": {"draft_model": None},
        "shallow": {"speculative.n_max": 2, "speculative.p_min": 0.75},
        "mine": {"arm": "hybrid"},
        "off": {"speculative": False, "options": {"deep": [1, {"er": None}]}},
    }
    engine = engine_over(**{n: {"url": server.url, "extra_body": b} for n, b in bodies.items()})
    sent = dict[str, dict[str, Any]]()
    for name in bodies:
        engine.decode(name, HELLO, Request(2))
        sent[name] = server.asked[-1]
    for name, body in bodies.items():
        assert sent[name] == sent["plain"] | body


def test_a_conversation_may_change_between_arms_of_one_server(server: FakeEndpoint) -> None:
    """Whichever of them answers, its server has read it; another model has not."""
    asked = [{"role": "user", "content": "why " * 1000}]
    chat = [*asked, {"role": "assistant", "content": "WHY"}, *asked]
    same, elsewhere = {"url": server.url}, {"url": FakeEndpoint(port=9).url}
    for second, kept in ((same, None), (elsewhere, "a"), ({**same, "model": "other"}, "a")):
        engine = engine_over(a=same, b=second)
        engine.conversations.answered(asked, "a")
        assert engine.kept(chat_ids(chat)) == kept


def test_why_an_answer_ended_is_told(server: FakeEndpoint) -> None:
    engine = engine_of(server)
    assert engine.decode("a", HELLO, Request(2)).finish_reason == "length"
    server.last_word = "BLUE"
    assert engine.decode("a", HELLO, Request(stop=("BLUE",))).finish_reason == "stop"


def test_text_streams_as_it_comes(server: FakeEndpoint) -> None:
    """Each word is shown before the server sends the next."""
    shown, in_time = Semaphore(), list[bool]()

    class Shown(Streamed):
        def put(self, value: Any) -> None:
            super().put(value)
            if self.parts:
                shown.release()

    def wait(prompt: str) -> float:
        in_time.append(shown.acquire(timeout=10))
        return 0.0

    server.step_s = wait
    engine, streamer = engine_of(server), Shown()
    result = engine.decode("a", HELLO, Request(), streamer=streamer)
    assert (streamer.prompt, streamer.ids, streamer.ended) == (HELLO, result.ids, True)
    assert in_time == [True] * 5


@given(st.text(max_size=60), st.integers(0, 20))
def test_pieces_keep_the_text_whatever_is_counted(text: str, tokens: int) -> None:
    pieces = Pieces()
    words = pieces.begin()
    ids = words.encode(text)
    counted = words.counted(ids, tokens)
    assert pieces.decode(ids) == text == pieces.decode(counted)
    if ids and tokens:
        assert len(counted) == tokens


@given(st.lists(st.text(), min_size=1))
def test_a_chat_comes_back_from_its_ids(texts: list[str]) -> None:
    try:
        chat = [{"role": "user", "content": text.encode().decode()} for text in texts]
    except UnicodeEncodeError:  # lone surrogates are no text
        return
    assert chat_of(chat_ids(chat)) == chat


def test_logprobs_are_refused_rather_than_left_out(server: FakeEndpoint) -> None:
    with pytest.raises(DraftpickError, match="leave logprobs out"):
        engine_of(server).decode("a", HELLO, Request(logprobs=2))
    assert not server.asked


def test_ids_that_are_no_chat_are_refused(server: FakeEndpoint) -> None:
    for ids in ([1, 2, 3], [300], []):
        with pytest.raises(DraftpickError, match="takes a chat, not token ids"):
            engine_of(server).check(ids, Request())
    with pytest.raises(DraftpickError, match="half a surrogate pair"):
        engine_of(server).encode_text("\ud800")


def test_likely_texts_are_near_in_the_hashing_space() -> None:
    vectors = HashingEmbedder().embed(["sort a list of words", "sort the list of words", "¿Qué?"])
    assert vectors.shape == (3, HashingEmbedder.dimension) and vectors.dtype == np.float32
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.7 > 0.2 > far


# -- dead servers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "503", "429", "cut", "slow"])
def test_a_dead_server_is_left_alone_and_asked_again(server: FakeEndpoint, how: str) -> None:
    clock = Clock()
    engine = engine_of(server, clock=clock, timeout_s=0.1 if how == "slow" else 60)
    if how == "gone":
        server.stop()
    elif how == "cut":
        server.cut_after = 2
    elif how == "slow":
        server.step_s = lambda prompt: 0.5
    else:
        server.status = int(how)
    with pytest.raises(ArmDown) as first:
        engine.decode("a", HELLO, Request())
    asked = len(server.asked)
    with pytest.raises(ArmDown) as second:
        engine.decode("a", HELLO, Request())
    assert second.value.reason == first.value.reason and len(server.asked) == asked
    assert engine.asleep.keys() == {"a"}
    if how == "gone":
        server.start()
    server.status, server.cut_after, server.step_s = 200, None, lambda prompt: 0.0
    clock.now = 1.1
    assert not engine.asleep
    assert engine.decode("a", HELLO, Request()).text == "WHY IS THE SKY BLUE"


def test_a_server_may_ask_for_a_longer_pause(server: FakeEndpoint) -> None:
    server.status, server.headers = 429, {"Retry-After": "30.5"}
    with pytest.raises(ArmDown) as error:
        engine_of(server, clock=Clock()).decode("a", HELLO, Request())
    assert error.value.pause_s == 30.5


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("30", 30.0),
        (" 1.5 ", 1.5),
        ("2\x1f", 2.0),
        ("Fri, 13 Feb 2009 23:31:32 GMT", 2.0),
        ("Friday, 13-Feb-09 23:31:32 GMT", 2.0),
        ("Fri Feb 13 23:31:32 2009", 2.0),
        ("Fri, 13 Feb 2009 23:31:20 GMT", 0.0),
        *((none, 0.0) for none in ("", "soon", "-3", "inf", "nan", "²", "9" * 40)),
    ],
)
def test_a_pause_is_asked_for_in_seconds_or_by_a_date(asked: str, seconds: float) -> None:
    assert pause_s(asked, 1234567890.0) == seconds  # 23:31:30


@given(st.text(max_size=30))
def test_no_header_makes_the_pause_fail(asked: str) -> None:
    assert pause_s(asked, 0.0) >= 0


def test_a_refusal_is_the_callers_and_leaves_the_arm_awake(server: FakeEndpoint) -> None:
    engine = engine_of(server)
    server.status = 400
    with pytest.raises(DraftpickError, match=r"refused.*HTTP 400 \(told to say 400\)") as error:
        engine.decode("a", HELLO, Request())
    assert type(error.value) is DraftpickError and not engine.asleep
    for status in (401, 403, 404):
        server.status = status
        with pytest.raises(UpstreamRefused, match=rf"HTTP {status}.*; check the arm's key"):
            engine.decode("a", HELLO, Request())
    assert not engine.asleep


def test_an_answer_that_breaks_off_after_it_was_shown_is_an_error(server: FakeEndpoint) -> None:
    server.cut_after = 2
    engine = engine_of(server)
    with pytest.raises(UpstreamBroke, match="in the middle of its answer"):
        engine.decode("a", HELLO, Request(), streamer=Streamed())
    assert engine.asleep.keys() == {"a"}


def test_an_answer_that_breaks_off_where_nobody_sees_it_may_come_from_another(
    server: FakeEndpoint,
) -> None:
    server.cut_after = 2
    streamer: Any = Streamed()
    streamer.shown = False
    with pytest.raises(ArmDown):
        engine_of(server).decode("a", HELLO, Request(), streamer=streamer)
    assert len(streamer.parts) == 2 and not streamer.ended


def test_a_server_is_left_as_soon_as_its_answer_is_not_wanted(server: FakeEndpoint) -> None:
    class Enough(Exception):
        pass

    class Brief(Streamed):
        def put(self, value: Any) -> None:
            super().put(value)
            if len(self.parts) > 1:
                raise Enough

    server.step_s, server.words = lambda prompt: 0.02, lambda prompt: [" on"] * 100
    with pytest.raises(Enough) as held:  # which holds the frames of the call
        engine_of(server).decode("a", HELLO, Request(), streamer=Brief())
    ends = time.monotonic() + 5
    while not server.left and time.monotonic() < ends:
        time.sleep(0.01)
    assert server.left == 1 and held.value is not None


def test_a_pause_doubles_up_to_its_limit_and_lets_one_through() -> None:
    clock = Clock()
    breaker = Breaker(first_s=1, most_s=5, clock=clock)
    pauses = []
    for _ in range(5):
        assert breaker.allow() and (breaker.pause_s > 0) == bool(pauses)
        breaker.failed("dead")
        pauses.append(breaker.pause_s)
        assert not breaker.allow()
        clock.now += breaker.pause_s
    assert pauses == [1, 2, 4, 5, 5]
    assert [breaker.allow() > 0 for _ in range(3)] == [True, False, False]  # one tries
    breaker.succeeded()
    assert all(breaker.allow() for _ in range(3)) and breaker.pause_s == 0


def test_calls_that_began_before_a_pause_say_nothing_of_it() -> None:
    clock = Clock()
    breaker = Breaker(first_s=1, most_s=60, clock=clock)
    calls = [breaker.allow() for _ in range(8)]
    for call in calls:
        breaker.failed("it restarts", after=call)
    assert breaker.pause_s == 1
    clock.now += 1
    busy = breaker.allow()
    breaker.failed("HTTP 429", 30, busy)
    for tell in (breaker.succeeded, lambda after: breaker.failed("late", after=after)):
        for call in (calls[0], busy):
            tell(after=call)
    assert breaker.pause_s == 30 and breaker.reason == "HTTP 429"
    clock.now += 30
    breaker.succeeded(breaker.allow())
    breaker.failed("later still", after=busy)
    assert breaker.pause_s == 0 and breaker.allow()


def test_requests_that_fail_together_count_once(server: FakeEndpoint) -> None:
    server.status, clock = 503, Clock()
    engine, others = engine_of(server, clock=clock), list[ArmDown]()

    def meanwhile(*_: Any) -> None:
        """Another request, which ends before the first."""
        engine._ask = real  # type: ignore[method-assign]
        with pytest.raises(ArmDown) as down:
            engine.decode("a", HELLO, Request())
        others.append(down.value)
        real(*_)

    real, engine._ask = engine._ask, meanwhile  # type: ignore[method-assign]
    with pytest.raises(ArmDown) as down:
        engine.decode("a", HELLO, Request())
    assert down.value.pause_s == others[0].pause_s == 1


# -- what a server may send -----------------------------------------------------------------------

EVENTS = {"Content-Type": "text/event-stream"}
JSON = {"Content-Type": "application/json; charset=utf-8"}


def events(*records: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(record).encode() + b"\n\n" for record in records)


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [fields]}


HI = choice(delta={"content": "Hi"})
END = choice(delta={}, finish_reason="stop")
DONE = b"data: [DONE]\n\n"
WHOLE = {
    **choice(message={"content": "Hi"}, finish_reason="stop"),
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
ANSWERED: dict[str, tuple[dict[str, str], bytes]] = {
    "as usual": (EVENTS, events(HI, END) + DONE),
    "no end but [DONE]": (EVENTS, events(HI) + DONE),
    "no [DONE] but an end": (EVENTS, events(HI, END)),
    "lines that end in CR LF": (EVENTS, (events(HI, END) + DONE).replace(b"\n", b"\r\n")),
    "no space behind the colon": (EVENTS, events(HI, END).replace(b"data: ", b"data:")),
    "comments, names and numbers of events": (
        EVENTS,
        b": still here\n\nevent: message\nid: 7\nretry: 10\n" + events(HI) + events(END),
    ),
    "an event in two lines": (EVENTS, events(HI).replace(b', "', b',\ndata: "') + events(END)),
    "empty events": (EVENTS, b"data:\n\n" + events(HI, END)),
    "null fields": (
        EVENTS,
        events({"choices": None, "usage": None, "error": None}, choice(delta=None), HI, END),
    ),
    "a line separator inside of a text": (
        EVENTS,
        events(HI) + 'data: {"choices": [{"delta": {"content": "\u2028"}}]}\n\n'.encode()
        + events(END),
    ),
    "one whole answer": (JSON, json.dumps(WHOLE).encode()),
}  # fmt: skip


@pytest.mark.parametrize("sent", ANSWERED)
def test_whatever_form_an_answer_comes_in(server: FakeEndpoint, sent: str) -> None:
    server.headers, server.raw = ANSWERED[sent]
    result = engine_of(server).decode("a", HELLO, Request())
    assert result.text.rstrip("\u2028") == "Hi" and result.finish_reason == "eos"
    assert result.counted == (sent == "one whole answer")


AWAY = "cannot be read as an answer, and is not asked for a while"
THIS = "refuses this request"
WHO = "refuses everybody"
WRONG: dict[str, tuple[int, dict[str, str], bytes, str, str]] = {
    "no end": (200, EVENTS, events(HI), AWAY, "stream ended before the answer did"),
    "nothing": (200, EVENTS, b"", AWAY, "stream ended before the answer did"),
    "half an event": (200, EVENTS, events(HI) + b'data: {"cho\n\n', AWAY, "no event"),
    "a list": (200, EVENTS, events([1]), AWAY, "no event"),
    "text that is a list": (200, EVENTS, events(choice(delta={"content": [1]})), AWAY, "no event"),
    "choices of text": (200, EVENTS, events({"choices": ["Hi"]}), AWAY, "no event"),
    "an error in the middle": (
        200, EVENTS, events({"error": {"message": "out of memory"}}), AWAY, "out of memory"
    ),
    "a refusal as an event": (
        200, EVENTS, events({"error": {"message": "too long", "code": 400}}), THIS, "too long"
    ),
    "a refusal with status 200": (
        200, JSON, b'{"error": {"message": "no such key", "code": 401}}', WHO, "no such key"
    ),
    "an error with status 200": (200, JSON, b'{"error": "broken"}', AWAY, "broken"),
    "JSON that is none": (200, JSON, b"Hi", AWAY, "no event"),
    "JSON of something else": (200, JSON, b'{"status": "ok"}', AWAY, "sent no answer"),
    "no choice": (200, JSON, b'{"choices": []}', AWAY, "sent no answer"),
    "an end alone": (200, EVENTS, DONE, AWAY, "sent no answer"),
    "counts alone": (
        200, EVENTS, events({"choices": [], "usage": {}}) + DONE, AWAY, "sent no answer"
    ),
    "a page": (200, {"Content-Type": "text/html"}, b"<html>", WHO, "answered with text/html"),
    "nothing of no type": (200, {}, b"", WHO, "content of no type"),
    "bytes that are no text": (400, JSON, b"\xff\xfe", THIS, "HTTP 400"),
    **{
        f"a redirect, {status}": (
            status, {"Location": "https://me:pass@other.example/v1"}, b"", WHO,
            r"redirects to https://me:\*\*\*@other\.example/v1, which is not followed",
        )
        for status in (301, 302, 303, 307, 308)
    },
    "no content": (204, {}, b"", WHO, "HTTP 204"),
}  # fmt: skip


@pytest.mark.parametrize("sent", WRONG)
def test_whatever_is_wrong_with_an_answer(server: FakeEndpoint, sent: str) -> None:
    server.status, server.headers, server.raw, what, words = WRONG[sent]
    engine = engine_of(server)
    raised = {AWAY: ArmDown, THIS: DraftpickError, WHO: UpstreamRefused}[what]
    with pytest.raises(raised, match=words) as error:
        engine.decode("a", HELLO, Request())
    assert type(error.value) is raised
    assert bool(engine.asleep) == (what == AWAY)
    assert len(server.asked) == 1


def test_a_key_stays_with_its_server(server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "canary")
    other = FakeEndpoint()
    with listening(other):
        server.status, server.raw = 302, b""
        server.headers = {"Location": f"{other.url}/chat/completions"}
        with pytest.raises(UpstreamRefused, match="redirects to"):
            engine_of(server, api_key_env="MY_KEY").decode("a", HELLO, Request())
        assert not other.asked
        assert [head["Authorization"] for head in server.heads] == ["Bearer canary"]


@pytest.mark.parametrize("proxy", ["socks9://h:1", "http://me:canary@h:port"])
def test_a_proxy_that_cannot_be_used_is_told(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(DraftpickError, match="see to HTTP_PROXY") as error:
        engine_of(FakeEndpoint())
    assert "canary" not in str(error.value)


def test_a_path_is_asked_as_it_is_written(server: FakeEndpoint) -> None:
    engine = engine_of(server, url=server.url.replace("/v1", "/org%2Fmodel/v1/"))
    with pytest.raises(DraftpickError, match="HTTP 404"):
        engine.decode("a", engine.encode_text("hi"), Request(8))
    assert server.paths == ["/org%2Fmodel/v1/chat/completions"]


def test_a_query_in_the_address_stays_behind_the_path(server: FakeEndpoint) -> None:
    for url in (f"{server.url}?api-version=1", f"{server.url}/chat/completions?api-version=1"):
        engine = engine_over(a={"url": url})
        assert engine.decode("a", HELLO, Request()).text == "WHY IS THE SKY BLUE"
    assert server.paths == ["/v1/chat/completions?api-version=1"] * 2


def letters(folder: Any) -> None:
    """A tokenizer whose tokens are characters."""
    from tokenizers import Regex, pre_tokenizers

    made = word_tokenizer(["?"], "?", unk_token="?")
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.save_pretrained(folder)


def test_what_is_not_counted_is_counted_by_a_tokenizer_or_not_at_all(
    server: FakeEndpoint, tmp_path: Any
) -> None:
    server.counts = False
    result = engine_of(server, prompt_price=1.0, completion_price=1.0).decode("a", HELLO, Request())
    assert not result.counted and result.cost is None
    letters(tmp_path)
    result = engine_of(server, tokenizer=str(tmp_path)).decode("a", HELLO, Request())
    assert result.counted and len(result.ids) == len("WHY IS THE SKY BLUE")


def test_a_tokenizer_that_cannot_be_loaded_is_told_before_anything_is_asked(
    server: FakeEndpoint, tmp_path: Any
) -> None:
    server.counts = False
    with pytest.raises(DraftpickError, match=r"`tokenizer` of arm 'a' cannot be loaded"):
        engine_of(server, tokenizer=str(tmp_path)).decode("a", HELLO, Request())
    assert not server.asked


def test_a_load_may_be_told_while_the_busiest_server_is_looked_for() -> None:
    class Late(Load):
        @property
        def all(self) -> int:
            loads._seen[f"server {len(loads._seen)}"] = (time.monotonic(), Load(9, 9))
            return 3

    loads = engine_over(a={"url": "http://h/v1", "metrics_url": "http://h/metrics"}).loads
    loads._started = True  # by nobody who would ask it
    loads._seen["a"] = (time.monotonic(), Late(1, 2))
    assert loads.busiest == 3


# -- files ----------------------------------------------------------------------------------------

GOOD = "{kind: endpoint, url: 'http://h:1/v1', model: m}"


def test_a_file_of_endpoints_has_no_plain_decoding(tmp_path: Any) -> None:
    path = tmp_path / "arms.yaml"
    path.write_text(f"arms:\n  a: {GOOD}\n  b: {GOOD}\n")
    assert list(load_arms(path)) == ["a", "b"]
    assert remote(load_arms(path)) and not remote(load_arms())
    path.write_text(f"arms:\n  a: {GOOD}\n  b: {{kind: max_gram}}\n")
    with pytest.raises(DraftpickError, match=r"a answer without a target.*file of their own"):
        remote(load_arms(path))


def test_what_the_fingerprint_covers(server: FakeEndpoint) -> None:
    plain = engine_of(server).arms_fingerprint(["a"])
    moved = engine_of(server, timeout_s=5, limit_field="max_completion_tokens")
    assert moved.arms_fingerprint(["a"]) == plain
    assert engine_of(server, extra_body={"n": 1}).arms_fingerprint(["a"]) != plain


def test_a_missing_or_impossible_key_is_told_before_anything_is_sent(
    server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_KEY", "can\r\nary")
    for name, words in (("NO_KEY", "NO_KEY, which is not set"), ("BAD_KEY", "the key in BAD_KEY")):
        with pytest.raises(UpstreamRefused, match=words) as error:
            engine_of(server, api_key_env=name).decode("a", HELLO, Request())
        assert "ary" not in "".join(traceback.format_exception(error.value)) and not server.asked


# -- what a server tells of its drafts ------------------------------------------------------------

VLLM = {
    "num_draft_tokens": 12,
    "num_accepted_draft_tokens": 5,
    "num_spec_steps": 4,
    "acceptance_histogram": [1, 2, 0, 1],
}
WRONG_SUM = {"acceptance_histogram": [1, 1]}
SGLANG = {"spec_draft_token_num": 8, "spec_accept_token_num": 3, "spec_verify_ct": 2}


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"metrics": {"speculative_decoding": VLLM}}, (12, 5, 4, [3, 1, 1])),
        ({"metrics": {"speculative_decoding": {**VLLM, **WRONG_SUM}}}, (12, 5, 4, [])),
        ({"timings": {"draft_n": 9, "draft_n_accepted": 7}}, (9, 7, 3, [])),
        ({"meta_info": SGLANG}, (8, 3, 2, [])),
        ({"timings": {"predicted_n": 4}}, (0, 0, 3, [])),
        # what makes no sense is not guessed at
        ({"timings": {"draft_n": 3, "draft_n_accepted": 7}}, (0, 0, 3, [])),
        ({"timings": {"draft_n": -1, "draft_n_accepted": -2}}, (0, 0, 3, [])),
        ({"timings": {"draft_n": True, "draft_n_accepted": True}}, (0, 0, 3, [])),
        ({"timings": {"draft_n": 3}}, (0, 0, 3, [])),
        ({"timings": [3], "metrics": None, "meta_info": "x"}, (0, 0, 3, [])),
        ({"metrics": {"speculative_decoding": {"num_drafts": 3}}}, (0, 0, 3, [])),
    ],
)
def test_acceptance_is_the_server_s_word(
    more: dict[str, Any], found: tuple[Any, ...], server: FakeEndpoint
) -> None:
    """Four words in four events, so three rounds where nobody says."""
    server.more = more
    four = chat_ids([{"role": "user", "content": "one two three four"}])
    result = engine_of(server).decode("a", four, Request())
    told = result.drafted, result.accepted, result.rounds, result.accepted_per_position
    assert told == found


BROKEN = (
    b"data: {", b"data: []", b"data: 3", b"data: null", b": ping", b"event: x", b"", b"data:",
    b"\xff\xfe", b"retry: 1", b"id: 4", b'data: {"choices": {}}', b'data: {"choices": [3]}',
    b'data: {"error": "no"}', b'data: {"error": {"code": 429, "message": "slow"}}',
    b'data: {"error": {"code": 400, "message": "no"}}', b'data: {"error": {"code": "x"}}',
)  # fmt: skip
ODD: tuple[Any, ...] = (None, -1, 0, 3, 10**30, 2.5, "4", True, [], {}, "\ud800", "nan")


def odd_stream(rng: np.random.Generator) -> bytes:
    """An answer's events, some of which no server should send."""

    def odd(usual: Any) -> Any:
        return ODD[rng.integers(len(ODD))] if rng.random() < 0.15 else usual

    lines = []
    for number in range(rng.integers(5)):
        delta = odd({"content": odd(f" w{number}"), "tool_calls": odd(None), "role": odd(None)})
        choice = odd({"delta": delta, "finish_reason": odd(None), "logprobs": odd(None)})
        lines.append(b"data: " + json.dumps({"choices": odd([choice])}).encode())
    reason = ("stop", "length", "", "tool_calls", None)[rng.integers(5)]
    lines.append(
        b"data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": odd(reason)}]}).encode()
    )
    usage = odd({"prompt_tokens": odd(3), "completion_tokens": odd(4)})
    timings = odd({"draft_n": odd(4), "draft_n_accepted": odd(2)})
    lines.append(
        b"data: " + json.dumps({"choices": odd([]), "usage": usage, "timings": timings}).encode()
    )
    lines.append(b"data: [DONE]")
    for _ in range(rng.integers(3)):
        lines.insert(rng.integers(len(lines) + 1), BROKEN[rng.integers(len(BROKEN))])
    whole = b"\n\n".join(lines) + b"\n\n"
    return whole[: rng.integers(len(whole) + 1)] if rng.random() < 0.3 else whole


def test_two_hundred_odd_answers(server: FakeEndpoint) -> None:
    """Cut streams, wrong counts, errors inside, no usage, blank reasons, redirects, other statuses
    and types: each is an answer with sound figures or a mistake of ours, at once."""
    rng, clock = np.random.default_rng(0), Clock()
    engine = engine_of(server, clock=clock)
    answered = refused = drafted = 0
    for _ in range(200):
        clock.now += 1e12  # or its breaker would keep the next ones away
        kind = "text/event-stream" if rng.random() < 0.9 else "application/json"
        server.headers = {"Content-Type": kind}
        server.status = 200
        if rng.random() < 0.1:
            server.status = int(rng.choice([204, 301, 302, 307, 400, 401, 404, 429, 500, 503]))
            server.headers["Location"] = "http://127.0.0.1:9/v1"
            server.headers["Retry-After"] = str(ODD[rng.integers(len(ODD) - 2)])
        server.raw = odd_stream(rng)
        started = time.monotonic()
        try:
            result = engine.decode("a", HELLO, Request())
        except DraftpickError:
            refused += 1
            continue
        finally:
            assert time.monotonic() - started < 30  # none is waited for
        answered += 1
        drafted += result.drafted > 0
        assert 0 <= result.accepted <= result.drafted and result.rounds >= 0
        assert result.finish_reason in ("eos", "length", "stop")
        if result.counted:
            assert 0 <= len(result.ids) < 10**6
        assert result.prompt_tokens is None or result.prompt_tokens >= 0
    assert answered > 15 and refused > 80 and drafted > 8
