"""Requests as OpenTelemetry spans: what they tell, whose children they are, a collector that is
gone."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from endpoint_toys import serving
from serve_toys import ASKED, CHAT, Served, served, until

from decoders.common.errors import DraftpickError
from router.logs.reader import read_log
from router.serve.app import Settings
from router.serve.spans import ENDPOINTS, PROTOCOLS, Spans, sending, wanted

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Traced:
    """A server, and the spans of its requests."""

    server: Served
    kept: Any

    def spans(self, count: int = 1) -> list[Any]:
        """So many, once they are there."""
        assert until(lambda: len(self.kept.get_finished_spans()) >= count)
        found = list(self.kept.get_finished_spans())
        self.kept.clear()
        assert len(found) == count
        return found

    def ask(self, path: str = CHAT, **body: Any) -> httpx.Response:
        with self.server.http() as client:
            return client.post(path, json={**ASKED, **body})


def in_memory() -> tuple[Spans, Any]:
    kept, provider = memory.InMemorySpanExporter(), trace.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    return Spans(provider), kept


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    spans, kept = in_memory()
    log = tmp_path_factory.mktemp("log")
    with served(spans=spans, log=log, slots=2) as server:
        yield Traced(server, kept)


def test_a_span_tells_what_the_log_does(traced: Traced) -> None:
    answer = traced.ask()
    (span,) = traced.spans()
    told, body = dict(span.attributes), answer.json()
    first = f"{answer.headers['x-request-id']}/0"
    log = traced.server.scheduler.routers["default"].log
    (line,) = (each for each in read_log(log.folder).decisions if each.id == first)
    kind, status = span.kind.name, span.status.status_code.name
    assert (span.name, kind, status) == ("chat auto", "SERVER", "UNSET")
    assert span.parent is None and span.end_time > span.start_time
    assert told["draftpick.arm"] == line.arm == answer.headers["x-draftpick-arm"] == "copy"
    assert told["draftpick.propensity"] == line.propensity
    assert told["draftpick.reason"] == line.choice == "best"
    assert told["draftpick.policy.version"] == line.policy
    assert told["draftpick.request.id"] == answer.headers["x-request-id"]
    for name in ("rounds", "drafted", "accepted"):
        assert told[f"draftpick.{name}"] == getattr(line.outcome, name)
    assert told["draftpick.accepted"] > 0
    assert told["gen_ai.usage.input_tokens"] == body["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == body["usage"]["completion_tokens"]
    assert told["gen_ai.response.finish_reasons"] == (body["choices"][0]["finish_reason"],)
    assert (told["gen_ai.response.id"], told["gen_ai.request.max_tokens"]) == (body["id"], 40)
    assert 0 < told["draftpick.time_to_first_token"] <= (span.end_time - span.start_time) / 1e9
    assert "error.type" not in told


def test_no_span_holds_text(traced: Traced) -> None:
    body = {"messages": [{"role": "user", "content": "secret words"}], "stop": ["zzz"]}
    text = traced.ask(**body).json()["choices"][0]["message"]["content"]
    (span,) = traced.spans()
    assert text and not any(each in span.to_json() for each in (text, "secret", "zzz"))


def test_a_request_with_a_traceparent_is_its_child(traced: Traced) -> None:
    with traced.server.http() as client:
        for flags, count in (("01", 1), ("00", 0)):  # whoever asks may say that it is not recorded
            parent = f"00-{TRACE}-{PARENT}-{flags}"
            assert client.post(CHAT, json=ASKED, headers={"traceparent": parent}).is_success
            for span in traced.spans(count):
                assert f"{span.context.trace_id:032x}" == TRACE
                assert f"{span.parent.span_id:016x}" == PARENT
        assert client.post(CHAT, json=ASKED, headers={"traceparent": "nonsense"}).is_success
    assert traced.spans()[0].parent is None


def test_a_span_that_is_under_way_is_the_parent(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an instrumented framework."""
    begin, outer = Spans.begin, trace.TracerProvider(shutdown_on_exit=False).get_tracer("outer")

    def under_way(self: Spans, *asked: Any) -> Any:
        with outer.start_as_current_span("request") as span:
            ids.append(span.get_span_context().span_id)
            return begin(self, *asked)

    ids: list[int] = []
    monkeypatch.setattr(Spans, "begin", under_way)
    assert traced.ask().is_success
    assert [each.parent.span_id for each in traced.spans()] == ids


def test_a_stream_has_its_first_chunk_and_its_end(traced: Traced) -> None:
    streamed = traced.ask(stream=True)
    told = dict(traced.spans()[0].attributes)
    assert streamed.text.endswith("[DONE]\n\n") and told["gen_ai.request.stream"]
    assert told["gen_ai.response.time_to_first_chunk"] == told["draftpick.time_to_first_token"]
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert told["gen_ai.usage.output_tokens"] == 40


def test_several_answers_are_one_span(traced: Traced) -> None:
    body = traced.ask(n=2, temperature=1, seed=5).json()
    told = dict(traced.spans()[0].attributes)
    reasons = tuple(each["finish_reason"] for each in body["choices"])
    assert told["gen_ai.response.finish_reasons"] == reasons
    assert told["gen_ai.usage.output_tokens"] == body["usage"]["completion_tokens"]
    assert (told["gen_ai.request.choice.count"], told["gen_ai.request.seed"]) == (2, 5)


def test_an_arm_that_the_request_names_has_no_policy(traced: Traced) -> None:
    assert traced.ask(model="nobody").status_code == 404
    with traced.server.http() as client:
        assert client.post("/v1/completions", json={"model": "copy", "prompt": "ab"}).is_success
    (span,) = traced.spans()  # what is refused has none
    told = dict(span.attributes)
    assert (span.name, told["draftpick.reason"]) == ("text_completion copy", "forced")
    assert (told["draftpick.arm"], told["draftpick.propensity"]) == ("copy", 1.0)
    assert not [name for name in told if name.startswith("draftpick.policy")]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    spans, kept = in_memory()
    with served(Settings(timeout_s=0.2), pause_s=0.05, spans=spans) as server:
        slow = Traced(server, kept)
        assert slow.ask(max_tokens=400).status_code == 504
        (late,) = slow.spans()
        with server.http() as client, client.stream("POST", CHAT, json={**ASKED, "stream": True}):
            pass  # goes at once
        (left,) = slow.spans()
    for span, why in ((late, "timeout"), (left, "cancelled")):
        assert span.status.status_code.name == "ERROR"
        assert span.attributes["error.type"] == why
        assert span.attributes["draftpick.arm"] == "copy"
        assert "gen_ai.usage.output_tokens" not in span.attributes


# -- sending ------------------------------------------------------------------------------------


class Never:
    """An exporter whose collector does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    def export(self, spans: Any) -> Any:
        self.asked += 1
        threading.Event().wait(60)

    def shutdown(self) -> None:
        pass


def test_a_dead_collector_slows_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.serve.spans.FLUSH_S", 0.2)
    never, provider = Never(), trace.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        export.BatchSpanProcessor(
            never, max_queue_size=4, max_export_batch_size=1, schedule_delay_millis=1
        )
    )
    spans = Spans(provider)
    with served(spans=spans) as server, server.http() as client:
        for _ in range(10):  # more than may wait
            assert client.post(CHAT, json=ASKED).is_success
        assert until(lambda: never.asked == 1)
    started = time.monotonic()
    spans.close()
    assert time.monotonic() - started < 2


def test_spans_that_cannot_be_made_fail_no_answer(
    traced: Traced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.serve.spans.attributes", lambda *_: 1 / 0)
    assert traced.ask().is_success
    assert until(lambda: "a span could not be made" in caplog.text)


def test_what_reaches_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    came: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{collector.server_port}"
    try:
        for variable in (None, "OTEL_EXPORTER_OTLP_ENDPOINT"):
            if variable is not None:
                monkeypatch.setenv(variable, address)
                monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
            spans = sending(None if variable else f"{address}/v1/traces")
            with served(spans=spans) as server, server.http() as client:
                assert client.post(CHAT, json=ASKED).is_success
            spans.close()
    finally:
        collector.shutdown()
        collector.server_close()
    names = []
    for path, request in came:
        (each,) = request.resource_spans
        resource = {one.key: one.value.string_value for one in each.resource.attributes}
        names.append((path, resource["service.name"], each.scope_spans[0].spans[0].name))
    assert names == [("/v1/traces", "draftpick", "chat auto"), ("/v1/traces", "mine", "chat auto")]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of spans, with the exporter installed."""
    for name in (*ENDPOINTS, *PROTOCOLS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("router.serve.spans.find_spec", lambda name: True)
    return monkeypatch


def test_spans_are_sent_where_an_address_is_given(plain: pytest.MonkeyPatch) -> None:
    assert not wanted(None) and wanted("http://localhost:4318/v1/traces")
    for name in ENDPOINTS:
        with plain.context() as patch:
            patch.setenv(name, "http://localhost:4318")
            assert wanted(None)
            patch.setenv("OTEL_TRACES_EXPORTER", "none")
            assert not wanted(None)
    plain.setenv("OTEL_SDK_DISABLED", "true")
    assert not wanted("http://localhost:4318/v1/traces") and sending("http://a") is None


def test_what_cannot_be_had_is_one_sentence(plain: pytest.MonkeyPatch) -> None:
    with pytest.raises(DraftpickError, match="one of http or https"):
        wanted("localhost:4317")
    for found in (lambda name: None, lambda name: (_ for _ in ()).throw(ModuleNotFoundError())):
        plain.setattr("router.serve.spans.find_spec", found)
        with pytest.raises(DraftpickError, match=r"pip install 'draftpick\[otel\]'"):
            wanted("http://localhost:4318/v1/traces")
    plain.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(DraftpickError, match="sent by http/protobuf, not grpc"):
        wanted("http://localhost:4317")


def test_an_endpoints_counts_are_told() -> None:
    spans, kept = in_memory()
    with serving(spans=spans) as (server, _, _):
        proxy = Traced(server, kept)
        body = proxy.ask(temperature=0).json()
        told = dict(proxy.spans()[0].attributes)
    assert told["gen_ai.usage.input_tokens"] == body["usage"]["prompt_tokens"]
    assert told["draftpick.arm"] == "first"


@pytest.mark.parametrize("flags", ["01", "00"])
def test_an_endpoints_request_is_the_spans_child(flags: str) -> None:
    """That of the arm which was left for another, too, and where nothing is recorded."""
    given = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "a=1", "baggage": "b=2"}
    spans, kept = in_memory()
    with serving(spans=spans) as (server, first, second), server.http() as client:
        first.dies_after = 0
        assert client.post(CHAT, json=ASKED, headers=given).is_success
        assert client.post(CHAT, json=ASKED).is_success
        spans = [each.context for each in Traced(server, kept).spans(1 + (flags == "01"))]
    asked = {head["traceparent"] for head in (*first.heads, *second.heads)}
    told = {f"00-{s.trace_id:032x}-{s.span_id:016x}-{s.trace_flags:02x}" for s in spans}
    assert len(first.heads) and len(second.heads) == len(asked) == 2 and told <= asked
    assert all(each[3:35] == TRACE and PARENT not in each for each in asked - told)
    assert [head["tracestate"] for head in second.heads] == ["a=1", None]
    assert not any(head["baggage"] for head in (*first.heads, *second.heads))


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_span_a_trace_goes_on_as_it_came(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = in_memory()[0] if broken else None
    monkeypatch.setattr("opentelemetry.propagate.extract", lambda _: 1 / 0)
    parent = f"00-{TRACE}-{PARENT}-01"
    cases = [
        ({"traceparent": parent, "tracestate": "a=1,b=2"}, (parent, "a=1,b=2")),
        ({"traceparent": parent}, (parent, None)),
        ({"tracestate": "a=1"}, (None, None)),
        ({"traceparent": parent.upper(), "tracestate": "a=1"}, (None, None)),
        ({"traceparent": parent + "é"}, (None, None)),
        ({"traceparent": parent, "tracestate": "é=1"}, (parent, None)),
        ({}, (None, None)),
    ]
    with serving(spans=spans) as (server, first, _), server.http() as client:
        for headers, told in cases:
            sent = {name.encode(): each.encode() for name, each in headers.items()}
            assert client.post(CHAT, json=ASKED, headers=sent).is_success
            assert (first.heads[-1]["traceparent"], first.heads[-1]["tracestate"]) == told
