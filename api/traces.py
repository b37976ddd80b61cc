"""The service's own spans: requests that are traced, with their commits, sent to a collector as OTLP (SPEC LOOK-17).

    request ── traceparent, or the share of the others ──► RequestSpan ──► spans ──► Outgoing ──► collector
                                                                                        └── full: dropped, and counted

A request whose caller is traced belongs to that trace, if it is sampled; a share of the others begins a trace.
Where a request is forwarded, its trace goes on. Spans are made when the request is over, from the times that were
measured: an untraced request pays for a look at its headers. Kafka's calls have no place for a context but the headers
of records: a call that stores some is looked through for them, and of the others the share counts. This module needs
the extra `otel`, and is imported only if a setting names a collector.
"""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deltamq.api.auth.calls import call_of
from deltamq.api.host.peers import is_forwarded
from deltamq.api.log.metrics import Gauge
from deltamq.api.wire.request import Scope
from deltamq.api.wire.steps import GROUP_FACT, TOPIC_FACT, Step, Steps, Times
from deltamq.mq.release import release
from deltamq.tables.config_sections import traces_endpoint

log = logging.getLogger("deltamq.api")

#: Most ended spans that wait to be sent; further ones are dropped.
QUEUE_SPANS_MAX: Final = 8_192
#: Most spans in one request to the collector, and for how long the first of them waits for others, in seconds.
_BATCH_SPANS_MAX: Final = 512
_BATCH_S: Final = 1.0
#: Seconds for one request with its repetitions, and for the last ones when the service stops.
_SEND_S: Final = 5
_END_S: Final = 2.0
_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"
_CONTEXT_HEADERS: Final = (_TRACEPARENT, _TRACESTATE)
_FAILED_STATUS: Final = 500
_W3C: Final = TraceContextTextMapPropagator()
#: Where a record of Kafka's has a sender's context: the header's name and value, each after its length.
_IN_RECORD: Final = re.compile(rb"\x16traceparent\x6e(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")
#: Bytes of a batch in which contexts are looked for, and most that a call links to.
_LOOKED_BYTES: Final = 64 * 1024
_LINKS_MAX: Final = 32
#: Names in a call's path that spans have an attribute for.
_NAMES: Final = {"topic": TOPIC_FACT, "group": GROUP_FACT}


class Outgoing(SpanProcessor):
    """Ended spans on their way to the collector, which may be slow or away. Safe for any number of threads."""

    def __init__(self, exporter: SpanExporter, *, spans_max: int = QUEUE_SPANS_MAX) -> None:
        self._exporter = exporter
        self._spans_max = spans_max
        self._waiting: deque[ReadableSpan] = deque()
        self._changed = threading.Condition()
        self._is_ending = False
        #: Spans that the collector has taken, that it did not take in time, and that found no room.
        self.sent = self.failed = self.dropped = 0
        #: Whether the collector did not take the last batch.
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="mq-traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; never waits for the collector."""
        with self._changed:
            if len(self._waiting) >= self._spans_max or self._is_ending:
                self.dropped += 1
                return
            self._waiting.append(span)
            if len(self._waiting) in (1, _BATCH_SPANS_MAX):
                self._changed.notify()

    def _run(self) -> None:
        while batch := self._next():
            try:
                is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
            except Exception:
                log.exception("event=traces_failed")
                is_sent = False
            self._note(len(batch), is_sent=is_sent)

    def _next(self) -> Sequence[ReadableSpan]:
        """Wait for spans, and return the next batch; return none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            self._changed.wait_for(lambda: len(self._waiting) >= _BATCH_SPANS_MAX or self._is_ending, _BATCH_S)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SPANS_MAX))]

    def _note(self, count: int, *, is_sent: bool) -> None:
        """Count a batch; the log has a line when the collector goes, and one when it is back."""
        if is_sent:
            self.sent += count
            if self._is_away:
                log.info("event=traces_sent_again failed=%d dropped=%d", self.failed, self.dropped)
        else:
            self.failed += count
            if not self._is_away:
                log.warning("event=traces_not_sent spans=%d detail='the collector does not take them'", count)
        self._is_away = not is_sent

    def shutdown(self) -> None:
        """Send what waits, for at most `_END_S`."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(_END_S)
        self._exporter.shutdown()  # ends repetitions
        if self._waiting:
            log.warning("event=traces_lost spans=%d", len(self._waiting))


class RequestSpan:
    """One traced request."""

    def __init__(self, tracer: trace.Tracer, span: Span, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._began_ns = began_ns

    def end(self, scope: Scope, times: Times) -> None:
        """End the span, with those of the request's steps within it."""
        self._describe(scope, times.status)
        # What was measured by another clock is as far from the begin as there.
        offset_ns = self._began_ns - round(times.began_s * 1e9)
        steps = [
            Step("read body", times.began_s, times.body_s),
            *times.steps,
            Step("send answer", times.answer_s, times.ended_s),
        ]
        _end(self._tracer, self._span, steps, offset_ns, times.ended_s)

    def _describe(self, scope: Scope, status: int) -> None:
        call = call_of(scope["method"], scope["raw_path"])
        if call is not None:
            self._span.update_name(call.name)
            self._span.set_attribute("http.route", call.name.partition(" ")[2])
            for name, attribute in _NAMES.items():
                if name in call.values:
                    self._span.set_attribute(attribute, call.values[name])
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if not status or status >= _FAILED_STATUS:
            self._span.set_attribute("error.type", str(status or "no_answer"))
            self._span.set_status(Status(StatusCode.ERROR))


def _end(tracer: trace.Tracer, span: Span, steps: Iterable[Step], offset_ns: int, ended_s: float) -> None:
    """End a span, with those of its steps within it; `offset_ns` is added to the times of steps."""
    inside = trace.set_span_in_context(span, Context())
    for step in steps:
        begin_ns = offset_ns + round(step.began_s * 1e9)
        within = tracer.start_span(step.name, inside, attributes=step.facts, start_time=begin_ns)
        _end(tracer, within, step.parts, offset_ns, step.ended_s)
    span.end(offset_ns + round(ended_s * 1e9))


class CallSpan:
    """One call of a Kafka client: the child of the context in its records, or linked to those, if there are several."""

    def __init__(self, tracer: trace.Tracer, *, is_drawn: bool) -> None:
        """`is_drawn` says that it is traced if no record of it has a context."""
        self._tracer = tracer
        self._is_drawn = is_drawn
        self._contexts: dict[bytes, SpanContext] = {}
        self._topics: set[str] = set()
        self._steps = Steps()
        self._error = ""

    @property
    def _is_traced(self) -> bool:
        contexts = self._contexts.values()
        return any(context.trace_flags.sampled for context in contexts) if contexts else self._is_drawn

    def steps_of(self, topic: str, records: bytes | memoryview) -> Steps | None:
        """Note uncompressed records that the call stores; return where to note steps, None if it is not traced.

        Contexts are looked for in the first 64 KiB of each batch.
        """
        self._topics.add(topic)
        for found in _IN_RECORD.finditer(records[:_LOOKED_BYTES]):
            if len(self._contexts) == _LINKS_MAX:
                break
            context = _W3C.extract({_TRACEPARENT.decode(): found[1].decode()}, Context())
            of_sender = trace.get_current_span(context).get_span_context()
            if of_sender.is_valid:
                self._contexts[found[1]] = of_sender
        return self._steps if self._is_traced else None

    def fail(self, error: str) -> None:
        """Note an error of the call; the first counts."""
        self._error = self._error or error

    def end(self, call: str, client: str | None, group: str, began_s: float) -> None:
        """Make the spans, if the call is traced; `began_s` is a time of `time.perf_counter`, `group` may be empty."""
        if not self._is_traced:
            return
        ended_s = time.perf_counter()
        offset_ns = time.time_ns() - round(ended_s * 1e9)
        about = {"network.protocol.name": "kafka"}
        about |= {name: text for name, text in (("messaging.client.id", client), (GROUP_FACT, group)) if text}
        if len(self._topics) == 1:
            (about[TOPIC_FACT],) = self._topics
        parent, links = Context(), list(self._contexts.values())
        if len(links) == 1:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(links.pop()), parent)
        span = self._tracer.start_span(
            call,
            parent,
            SpanKind.SERVER,
            about,
            [trace.Link(context) for context in links],
            offset_ns + round(began_s * 1e9),
        )
        if self._error:
            span.set_attribute("error.type", self._error)
            span.set_status(Status(StatusCode.ERROR))
        _end(self._tracer, span, self._steps, offset_ns, ended_s)


class ServiceTraces:
    """Decides which requests are traced, and sends their spans. Used on the event loop."""

    def __init__(self, url: str, share: float, *, cluster: str, draw: Callable[[], float] = random.random) -> None:
        """`share` of the requests without a context, from 0 to 1, begin a trace; `url` is the collector's."""
        self._share = share
        self._draw = draw
        # Its own log lines would come with each request that fails.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._outgoing = Outgoing(OTLPSpanExporter(endpoint=traces_endpoint(url), timeout=_SEND_S))
        resource = {"service.name": "deltamq", "service.namespace": cluster, "service.version": release()}
        resource |= {"host.name": socket.gethostname(), "process.pid": str(os.getpid())}
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(self._outgoing)
        self._tracer = self._provider.get_tracer("deltamq.api", release())

    def begin(self, scope: Scope) -> RequestSpan | None:
        """Begin the span of a request that is traced; its headers then name this span to whom it is forwarded."""
        given = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CONTEXT_HEADERS}
        context = _W3C.extract(given, Context()) if given else Context()
        parent = trace.get_current_span(context).get_span_context()
        if parent.is_valid:
            if not parent.trace_flags.sampled:
                return None
        elif is_forwarded(scope["headers"]) or self._draw() >= self._share:
            return None  # of a request that is forwarded, the first process has decided
        about = {
            "http.request.method": scope["method"],
            "url.path": scope["raw_path"].decode("ascii", "replace"),
            "url.scheme": scope["scheme"],
        }
        began_ns = time.time_ns()
        span = self._tracer.start_span(scope["method"], context, SpanKind.SERVER, about, start_time=began_ns)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        ours = [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]
        scope["headers"] = [*(one for one in scope["headers"] if one[0] not in _CONTEXT_HEADERS), *ours]
        return RequestSpan(self._tracer, span, began_ns)

    def begin_call(self) -> CallSpan:
        """Begin a call of one of Kafka's clients, of which is not known yet whether it is traced."""
        return CallSpan(self._tracer, is_drawn=self._draw() < self._share)

    def counters(self) -> list[Gauge]:
        """Return what became of the spans, for `/metrics`."""
        outgoing = self._outgoing
        return [
            Gauge("deltamq_trace_spans_sent", "Spans that the collector has taken.", lambda: outgoing.sent),
            Gauge("deltamq_trace_spans_failed", "Spans that it did not take in time.", lambda: outgoing.failed),
            Gauge("deltamq_trace_spans_dropped", "Spans for which there was no room.", lambda: outgoing.dropped),
        ]

    def close(self) -> None:
        """Send the last spans, for two seconds at most; blocks."""
        self._provider.shutdown()
