"""Spans by OpenTelemetry's conventions for messaging, and their contexts in the headers of messages (SPEC LOOK-15).

    send orders ──traceparent──► the message's headers ──► process orders       (one message: the same trace)
                                                      └──► receive orders, or a batch: links to the messages' spans

The context of a sampled send goes by the W3C's headers `traceparent` and `tracestate`. Retries and dead letters keep
the headers of their message, so that all deliveries are one trace. Batches have links instead of a parent, `LINKS_MAX`
at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace import TracerProvider as TracerProvider  # for annotations elsewhere
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.limits import HEADERS_MAX
from deltamq.mq.release import release

#: Most contexts of messages to which the span of a batch has links.
LINKS_MAX: Final = 128
TRACEPARENT: Final = "traceparent"
_TRACESTATE: Final = "tracestate"
#: Bytes of a header whose context is not used: the W3C lets who passes it on drop a longer `tracestate`.
_TRACESTATE_LENGTH_MAX: Final = 512

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
GROUP: Final = "messaging.consumer.group.name"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
#: Of this system alone, named as the conventions ask for.
OFFSET: Final = "messaging.deltamq.message.offset"
ATTEMPT: Final = "messaging.deltamq.message.delivery_attempt"
BATCH_ID: Final = "messaging.deltamq.batch.id"

OperationType = Literal["create", "send", "receive", "process", "settle"]
Attributes = dict[str, str | int]
#: The headers of a message.
Carrier = Mapping[str, str]
#: The headers of messages, or rows with messages, which may have a column `headers`.
Carriers = Iterable[Carrier | pa.Table | None]

_W3C: Final = TraceContextTextMapPropagator()


def application_provider() -> TracerProvider | None:
    """Return the tracer provider that the application has set; None if it has set none."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def context_of(carrier: Carrier | None) -> Context | None:
    """Return the context that a message's headers name; None if they name none, or no valid one."""
    if not carrier or TRACEPARENT not in carrier:
        return None
    context = _W3C.extract(carrier, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def links_of(carriers: Carriers) -> list[Link]:
    """Return links to the first `LINKS_MAX` different contexts that headers of messages name."""
    different: dict[str, Carrier] = {}
    for carrier in _single(carriers):
        if carrier and TRACEPARENT in carrier:
            different.setdefault(carrier[TRACEPARENT], carrier)
            if len(different) == LINKS_MAX:
                break
    contexts = [context for carrier in different.values() if (context := context_of(carrier)) is not None]
    return [Link(trace.get_current_span(context).get_span_context()) for context in contexts]


def _single(carriers: Carriers) -> Iterator[Carrier | None]:
    for carrier in carriers:
        if not isinstance(carrier, pa.Table):
            yield carrier
        elif "headers" in carrier.column_names:
            found = pc.map_lookup(carrier.column("headers"), TRACEPARENT, "first")
            for traceparent in pc.unique(found.drop_null()).to_pylist():
                yield {TRACEPARENT: traceparent}


def carrier_of(span: Span) -> dict[str, str]:
    """Return the headers that name a span; empty if its context is not valid."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
    if len(carrier.get(_TRACESTATE, "")) > _TRACESTATE_LENGTH_MAX:
        del carrier[_TRACESTATE]
    return carrier


def error_type(error: BaseException) -> str:
    """Return what `error.type` says of an error: the API's code if it has one, else the name of its class."""
    return error.code if isinstance(error, DeltaMQError) else type(error).__qualname__


def fail(span: Span, error: BaseException) -> None:
    """Note on a span that its operation failed."""
    if span.is_recording():
        span.set_attribute(ERROR_TYPE, error_type(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))
        if not isinstance(error, DeltaMQError):
            span.record_exception(error)


class SendSpan:
    """The span of one message on its way to the service; whoever learns the outcome ends it."""

    __slots__ = ("_carrier", "_span")

    def __init__(self, span: Span, *, is_injected: bool) -> None:
        """`is_injected` says that the message is to carry this span's context, since it has no other.

        It does only if the span is sampled: headers take room in each message, and time in each small commit.
        """
        self._span = span
        self._carrier = carrier_of(span) if is_injected and self.is_sampled else {}

    @property
    def is_sampled(self) -> bool:
        """Whether the span is recorded and sent."""
        return self._span.get_span_context().trace_flags.sampled

    def headers(self, given: Carrier | None) -> dict[str, str] | None:
        """Return a message's headers with the context; those that name one already, or have no room, as they are."""
        if not self._carrier or (given is not None and TRACEPARENT in given):
            return None if given is None else dict(given)
        merged = {**(given or {}), **self._carrier}
        return merged if len(merged) <= HEADERS_MAX else dict(given or {})

    def current(self) -> AbstractContextManager[object]:
        """Make this the current span of a thread: requests name it, and so do spans that others make of them."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def stored(self, partition: str, offset: int) -> None:
        """End the span of a stored message; an `offset` below 0 is not known yet."""
        if self._span.is_recording():
            self._span.set_attribute(PARTITION, partition)
            if offset >= 0:
                self._span.set_attribute(OFFSET, offset)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """End the span of a message that is not known to be stored."""
        fail(self._span, error)
        self._span.end()


class BatchSpan(SendSpan):
    """The span of a whole batch, as a context manager; its requests only name it."""

    def stored(self, partition: str, offset: int) -> None:
        """Do nothing: this is the outcome of one request."""

    def failed(self, error: BaseException) -> None:
        """Do nothing: the error of the batch is raised to its sender."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            fail(self._span, error)
        self._span.end()


class ProcessSpan:
    """The span of a handler's run, which is the current span meanwhile."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def link(self, contexts: Callable[[int], Carriers]) -> None:
        """Add links to contexts that are worth reading only if the span is recorded."""
        if self._span.is_recording():
            for link in links_of(contexts(LINKS_MAX)):
                self._span.add_link(link.context)

    def ended(self, error: BaseException | None, outcome: str) -> None:
        """Note how the handler ended: by an `error`, or with an `outcome`, empty for a success."""
        if error is not None:
            fail(self._span, error)
        elif outcome:
            self._span.set_attribute(ERROR_TYPE, outcome)
            self._span.set_status(Status(StatusCode.ERROR, f"the handler returned {outcome}"))


class Spans:
    """Makes the spans of one client."""

    def __init__(self, provider: TracerProvider, *, host: str, port: int) -> None:
        self._tracer = provider.get_tracer("deltamq", release())
        self._server: Attributes = {SERVER_ADDRESS: host, SERVER_PORT: port} if host else {}

    def with_current(self, headers: Carrier | None) -> Carrier:
        """Return headers of HTTP that name the caller's current span, if there is one and they name no other."""
        if headers is not None and TRACEPARENT in headers:
            return headers
        return {**carrier_of(trace.get_current_span()), **(headers or {})}

    def create(self, topic: str, given: dict[str, str] | None, *, body_size: int) -> dict[str, str] | None:
        """Return the headers of a message that is stored to be sent later, with the context of a span of its own.

        A message that has a context keeps it.
        """
        if given is not None and TRACEPARENT in given:
            return given
        about = self._about("create", "create", topic) | {BODY_SIZE: body_size}
        with self._tracer.start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=about) as span:
            return SendSpan(span, is_injected=True).headers(given)

    def send(self, topic: str, given: Carrier | None, *, body_size: int, message_id: str | None) -> SendSpan:
        """Begin the span of one message, whose headers are `given`; a context in them stays, and is linked to."""
        about = self._about("send", "send", topic) | {BODY_SIZE: body_size}
        if message_id is not None:
            about[MESSAGE_ID] = message_id
        links = links_of([given])
        kind = SpanKind.CLIENT if links else SpanKind.PRODUCER
        span = self._tracer.start_span(f"send {topic}", kind=kind, attributes=about, links=links)
        return SendSpan(span, is_injected=not links)

    def send_many(self, topic: str, count: int, carriers: Carriers, *, is_injected: bool = True) -> BatchSpan:
        """Begin the span of a batch, with links to the contexts that its messages have already.

        `is_injected` says that messages without a context are to carry this span's.
        """
        kind = SpanKind.PRODUCER if is_injected else SpanKind.CLIENT
        return BatchSpan(self._send_many(topic, count, carriers, kind), is_injected=is_injected)

    def send_stored(self, topic: str, carriers: Sequence[Carrier | None]) -> SendSpan:
        """Begin the span of a request of messages that `create` has given their contexts."""
        span = self._send_many(topic, len(carriers), carriers, SpanKind.CLIENT)
        return SendSpan(span, is_injected=False)

    def _send_many(self, topic: str, count: int, carriers: Carriers, kind: SpanKind) -> Span:
        about = self._about("send", "send", topic) | {MESSAGE_COUNT: count}
        return self._tracer.start_span(f"send {topic}", kind=kind, attributes=about, links=links_of(carriers))

    def process(
        self,
        topic: str,
        group: str,
        carrier: Carrier | None,
        *,
        partition: str | None,
        offset: int | None,
        message_id: str | None,
        body_size: int,
        attempt: int,
    ) -> AbstractContextManager[ProcessSpan]:
        """Return the span of a handler's run with one message, as the child of the message's own."""
        about: Attributes = {GROUP: group, BODY_SIZE: body_size, ATTEMPT: attempt}
        for name, value in ((PARTITION, partition), (OFFSET, offset), (MESSAGE_ID, message_id)):
            if value is not None:
                about[name] = value
        return self._process(topic, about, context_of(carrier) or Context(), ())

    def process_batch(
        self, topic: str, group: str, carriers: Carriers, count: int
    ) -> AbstractContextManager[ProcessSpan]:
        """Return the span of a handler's run with a batch, with links to the spans of its messages."""
        return self._process(topic, {GROUP: group, MESSAGE_COUNT: count}, Context(), links_of(carriers))

    @contextmanager
    def process_rows(
        self, topic: str, group: str | None, batch_id: int, contexts: Callable[[int], Carriers]
    ) -> Iterator[None]:
        """Run a batch of a stream in a span; it is noted if that fails.

        `contexts` reads at most so many contexts of its messages, and is called only if the span is recorded.
        """
        about: Attributes = {BATCH_ID: batch_id}
        if group is not None:
            about[GROUP] = group
        with self._process(topic, about, Context(), ()) as span:
            span.link(contexts)
            try:
                yield
            except BaseException as error:
                span.ended(error, "")
                raise

    @contextmanager
    def _process(self, topic: str, about: Attributes, parent: Context, links: Sequence[Link]) -> Iterator[ProcessSpan]:
        with self._tracer.start_as_current_span(
            f"process {topic}",
            parent,
            SpanKind.CONSUMER,
            self._about("process", "process", topic) | about,
            links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield ProcessSpan(span)

    def received(self, topic: str, group: str | None, carriers: Carriers, count: int, began_ns: int) -> None:
        """Make the span of a call that has brought messages, and began at this time (`time.time_ns`)."""
        about = self._about("receive", "receive", topic) | {MESSAGE_COUNT: count}
        if group is not None:
            about[GROUP] = group
        self._tracer.start_span(f"receive {topic}", None, SpanKind.CLIENT, about, links_of(carriers), began_ns).end()

    @contextmanager
    def settle(self, verb: str, group: str, count: int) -> Iterator[None]:
        """Run a call that settles messages, such as `ack`, in a span; they may be of several topics."""
        about: Attributes = {GROUP: group, MESSAGE_COUNT: count}
        about |= self._about("settle", verb)
        with self._tracer.start_as_current_span(
            verb, None, SpanKind.CLIENT, about, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                fail(span, error)
                raise

    def _about(self, kind: OperationType, name: str, topic: str | None = None) -> Attributes:
        about: Attributes = {SYSTEM: "deltamq", OPERATION_TYPE: kind, OPERATION_NAME: name, **self._server}
        if topic is not None:
            about[DESTINATION] = topic
        return about
