"""Requests as OpenTelemetry spans, which a thread of the SDK sends to a collector.

Attributes have the names of OpenTelemetry's conventions for generative AI where there is one, and
begin with `draftpick.` else. None holds text of a prompt or an answer.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from decoders.common.errors import DraftpickError

from .answers import Answers

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from starlette.datastructures import Headers

    from .replies import Reply

logger = logging.getLogger(__name__)

NAME = "draftpick"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
FLUSH_S = 3.0  # in which a server that ends sends its last spans

End = Callable[["Reply", Answers], None]


def wanted(endpoint: str | None) -> bool:
    """Whether spans are sent: where an address is given, here or in the environment, and the
    environment does not turn them off. Raises DraftpickError for what cannot be had."""
    given = endpoint or next(filter(None, map(os.environ.get, ENDPOINTS)), None)
    off = (
        os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none"
    )
    if given is None or off:
        return False
    if not re.match(r"https?://[^/\s]", given):
        raise DraftpickError(
            "the address that spans are sent to is one of http or https, such as "
            f"http://localhost:4318/v1/traces, not {given!r}"
        )
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), SPOKEN)
    if protocol != SPOKEN:
        raise DraftpickError(
            f"spans are sent by {SPOKEN}, not {protocol}; set {PROTOCOLS[0]}={SPOKEN} and the "
            "collector's address for it, whose usual port is 4318"
        )
    if not _installed("opentelemetry.exporter.otlp.proto.http"):
        raise DraftpickError(
            "sending spans needs OpenTelemetry's exporter; install draftpick with it: `pip install "
            "'draftpick[otel]'`, or set OTEL_SDK_DISABLED=true"
        )
    return True


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not there either
        return False


def sending(endpoint: str | None) -> Spans | None:
    """Make what sends spans; None where they are not wanted. Raises as `wanted`.

    endpoint: the collector's whole address; None where the environment has it. All else is
    configured by the environment variables of OpenTelemetry's SDK.
    """
    if not wanted(endpoint):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    usual = Resource.create({"service.name": NAME})
    resource = usual.merge(OTELResourceDetector().detect())  # the environment's names come first
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Spans(provider)


def given_trace(headers: Headers) -> dict[str, str]:
    """The trace that a request belongs to, by W3C's headers as they came; none where they are no
    such ones."""
    parent, state = headers.get("traceparent", ""), ",".join(headers.getlist("tracestate"))
    if not TRACEPARENT.fullmatch(parent):
        return {}
    told = state and state.isascii() and state.isprintable()
    return {"traceparent": parent} | ({"tracestate": state} if told else {})


class Spans:
    """A span for every request that was accepted. What goes wrong here never reaches an answer.

    provider: whose processors get the spans; they must not block.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(NAME, version(NAME))

    def begin(
        self, operation: str, model: str, headers: Headers
    ) -> tuple[dict[str, str], End | None]:
        """A request came: headers by which what it asks elsewhere is a child of its span, and what
        to call once its response has ended.

        headers: `traceparent` says whose child the span is, unless a span of this process is under
            way, such as an instrumented framework's.
        """
        from opentelemetry import context, propagate, trace

        here = trace.get_current_span().get_span_context().is_valid
        try:
            parent = context.get_current() if here else propagate.extract(headers)
            told = {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": NAME,
                "gen_ai.request.model": model,
            }
            name = f"{operation} {model}"
            span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, told)
            on = dict[str, str]()
            propagate.inject(on, trace.set_span_in_context(span, parent))
        except Exception:
            logger.exception("a span could not be made")
            return given_trace(headers), None
        on.pop("baggage", None)  # it may tell of a client what endpoints should not know
        return on, partial(self._end, span)

    def _end(self, span: Span, reply: Reply, answers: Answers) -> None:
        from opentelemetry.trace import StatusCode

        try:
            told = attributes(reply, answers)
            span.set_attributes(told)
            if "error.type" in told:
                span.set_status(StatusCode.ERROR)
            span.end()
        except Exception:
            logger.exception("a span could not be made")

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(FLUSH_S)


def attributes(reply: Reply, answers: Answers) -> dict[str, Any]:
    """Tell what the span of a request gets, once its response has ended. Where there are several
    answers, counts are of all and the arm is that of the one that began first, as in the response's
    headers."""
    body, asked = reply.body, reply.requests[0].request
    told: dict[str, Any] = {
        "gen_ai.request.max_tokens": asked.max_new_tokens,
        "gen_ai.request.temperature": asked.sampling.temperature,
        "gen_ai.request.top_p": asked.sampling.top_p,
        "gen_ai.request.stream": bool(body.stream),
        "gen_ai.request.choice.count": len(reply.answers),
        "gen_ai.response.id": reply.id,
        "gen_ai.response.finish_reasons": [reply.finished[at] for at in sorted(reply.finished)],
        "draftpick.request.id": reply.request_id,
    }
    if reply.seeds:
        told["gen_ai.request.seed"] = reply.seeds[0]
    first = answers.first
    if first is not None and first.decision is not None:
        decision = first.decision
        told |= {
            "draftpick.arm": decision.arm,
            "draftpick.propensity": decision.propensity,
            "draftpick.reason": reply.route.reason_for(decision),
            "draftpick.running": decision.context.running,
        }
        if decision.policy is not None:
            told |= {
                "draftpick.policy.name": reply.route.policy,
                "draftpick.policy.version": decision.policy,
            }
    if first is not None and first.first_s is not None:
        told["draftpick.time_to_first_token"] = first.first_s
        if body.stream:
            told["gen_ai.response.time_to_first_chunk"] = first.first_s
    results = [each.result.result for each in reply.answers if each.result is not None]
    if len(results) == len(reply.answers):
        usage = reply.usage()
        told |= {
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.cache_read.input_tokens": usage.get("prompt_tokens_details", {}).get(
                "cached_tokens", 0
            ),
            "draftpick.rounds": sum(each.rounds for each in results),
            "draftpick.drafted": sum(each.drafted for each in results),
            "draftpick.accepted": sum(each.accepted for each in results),
        }
        if all(each.counted for each in results):
            told["gen_ai.usage.output_tokens"] = usage["completion_tokens"]
    else:
        why = answers.error  # None where the client went
        told["error.type"] = "cancelled" if why is None else why.code or str(why.status)
    return told
