"""The spans of producers and consumers, and their contexts in messages (LOOK-15)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes as semconv
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from deltamq import Message, Outbox, PopClient, Producer, PullConsumer, Result, Verdict
from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage
from deltamq.mq.client.outbox.relay import OutboxRelay
from deltamq.mq.client.tracing import spans as spans_module
from deltamq.mq.client.tracing.spans import LINKS_MAX, context_of
from deltamq.mq.errors import Forbidden, NotFound, Refused
from deltamq.mq.limits import HEADERS_MAX
from tests.traced import Recorded, traceparent_of
from tests.unit.client.orderly.orderly_consumers import Ear, Listen, fill
from tests.unit.client.orderly.orderly_consumers import listen as listen
from tests.unit.client.pop.pop_consumers import QUICK, Consume, Seen, wait_done
from tests.unit.client.stub_queue import QueueFault
from tests.unit.client.stub_service import StubService

MakeProducer = Callable[..., Producer]
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def headers_of(stub: StubService) -> dict[bytes, dict[str, str]]:
    """Return the stored headers of each message by its body."""
    topic = stub.topics["orders"]
    rows = [row for partition in topic.route.partitions for row in topic.log(partition)]
    return {row["body"]: dict(row.get("headers") or {}) for row in rows}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def trace_ids(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in spans if span.context is not None}


# Without OpenTelemetry -----------------------------------------------------------------------------------------

_PLAIN = """
import sys
from deltamq import PopConsumer, Producer

url = sys.argv[1]
with Producer(url) as producer:
    producer.send("orders", b"1")
    producer.send_batch("orders", [b"2", b"3"])
consumer = PopConsumer(url, "billing", "orders", lambda message: consumer.stop())
consumer.run()
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
_LATE = """
import sys
from deltamq import Producer

with Producer(sys.argv[1]) as producer:
    producer.send("orders", b"1")
    from opentelemetry import trace
    producer.send("orders", b"2")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    producer.send("orders", b"3")
    print([span.name for span in memory.get_finished_spans()])
"""


def run_apart(program: str, url: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_look_15_without_a_tracer_provider_opentelemetry_is_never_imported(stub: StubService) -> None:
    stub.queue.fill("orders", 1)
    assert run_apart(_PLAIN, stub.url) == "[]"
    assert list(headers_of(stub).values()) == [{}] * 3
    assert {post.traceparent for post in stub.posts} == {None}


def test_look_15_spans_begin_when_the_application_sets_its_provider(stub: StubService) -> None:
    stub.create("orders", 1)
    assert run_apart(_LATE, stub.url) == "['send orders']"
    assert [sorted(headers) for headers in headers_of(stub).values()] == [[], [], ["traceparent"]]


# Sends ---------------------------------------------------------------------------------------------------------


def test_look_15_a_send_is_a_span_whose_context_is_in_the_message(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    sent = make_producer(tracer_provider=recorded.provider).send(
        "orders", b"12.50", key="k", headers={"region": "eu"}, message_id="m-1"
    )
    span = recorded.one("send orders")
    (headers,), (post,) = headers_of(stub).values(), stub.posts
    assert headers == {"region": "eu", "traceparent": traceparent_of(span)}
    assert post.traceparent == traceparent_of(span), "so is the request"
    assert span.kind is SpanKind.PRODUCER and span.parent is None
    assert dict(span.attributes or {}) == {
        semconv.MESSAGING_SYSTEM: "deltamq",
        semconv.MESSAGING_OPERATION_NAME: "send",
        semconv.MESSAGING_OPERATION_TYPE: semconv.MessagingOperationTypeValues.SEND.value,
        semconv.MESSAGING_DESTINATION_NAME: "orders",
        semconv.MESSAGING_DESTINATION_PARTITION_ID: sent.partition,
        semconv.MESSAGING_MESSAGE_ID: "m-1",
        semconv.MESSAGING_MESSAGE_BODY_SIZE: 5,
        "messaging.deltamq.message.offset": sent.offset,
        server_attributes.SERVER_ADDRESS: "127.0.0.1",
        server_attributes.SERVER_PORT: int(stub.url.rpartition(":")[2]),
    }


def test_look_15_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (semconv, server_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    ours = {
        value
        for name, value in vars(spans_module).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    own = {f"messaging.deltamq.{name}" for name in ("batch.id", "message.offset", "message.delivery_attempt")}
    assert ours - known == own, "a system's own attributes are named messaging.SYSTEM.*"


def test_look_15_a_send_is_a_child_of_the_callers_span(make_producer: MakeProducer, recorded: Recorded) -> None:
    producer = make_producer(tracer_provider=recorded.provider)
    with recorded.provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
        producer.send("orders", b"1")
        producer.send_soon("orders", b"2").result()
        producer.send_oneway("orders", b"3")
        producer.send_batch("orders", [b"4", b"5"])
        producer.flush()
        inside = checkout.get_span_context().span_id
    sends = recorded.spans("send orders")
    assert [parent_of(span) for span in sends] == [inside] * 4


def test_look_15_a_context_that_the_caller_gave_stays(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    make_producer(tracer_provider=recorded.provider).send("orders", b"1", headers={"traceparent": THEIRS})
    span = recorded.one("send orders")
    assert headers_of(stub)[b"1"] == {"traceparent": THEIRS}
    assert span.kind is SpanKind.CLIENT, "the message was created elsewhere"
    assert [f"{link.context.span_id:x}" for link in span.links] == ["b7ad6b7169203331"]


def test_look_15_what_is_no_context_is_replaced_by_none(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    producer = make_producer(tracer_provider=recorded.provider)
    producer.send("orders", b"1", headers={"traceparent": "00-zz"})
    full = {f"h{n}": "" for n in range(HEADERS_MAX)}
    producer.send("orders", b"2", headers=full)
    assert headers_of(stub) == {b"1": {"traceparent": "00-zz"}, b"2": full}, "a message without room is sent as it is"
    assert [len(span.links) for span in recorded.spans()] == [0, 0]
    assert context_of({"traceparent": "00-zz"}) is None


def test_look_15_a_span_ends_with_the_error_of_its_send(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    stub.auto_create = False
    producer = make_producer(tracer_provider=recorded.provider)
    with pytest.raises(NotFound):
        producer.send("orders", b"1")
    with pytest.raises(NotFound):
        producer.send_batch("orders", [b"1"])
    stub.create("orders", 1)
    stub.refuses = lambda message: True
    with pytest.raises(Refused) as refused:
        producer.send("orders", b"1")
    codes = [(span.attributes or {})[error_attributes.ERROR_TYPE] for span in recorded.spans("send orders")]
    assert codes == ["topic_not_found", "topic_not_found", refused.value.code]
    assert {span.status.status_code for span in recorded.spans()} == {StatusCode.ERROR}


def test_look_15_a_batch_is_one_span_whose_context_all_its_messages_have(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    stub.create("orders", 2)
    batch = [Message(b"1", key="a"), Message(b"2", key="b", headers={"traceparent": THEIRS}), Message(b"3", key="c")]
    make_producer(tracer_provider=recorded.provider).send_batch("orders", batch)
    span = recorded.one("send orders")
    contexts = sorted(headers["traceparent"] for headers in headers_of(stub).values())
    assert contexts == sorted([THEIRS, traceparent_of(span), traceparent_of(span)])
    assert (span.attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert [f"{link.context.span_id:x}" for link in span.links] == ["b7ad6b7169203331"]
    assert {post.traceparent for post in stub.posts} == {traceparent_of(span)}


@pytest.mark.parametrize("has_headers", [False, True])
def test_look_15_rows_get_the_batchs_context_if_it_is_sampled(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded, has_headers: bool
) -> None:
    table = pa.table({"body": [b"1", b"2", b"3"]})
    if has_headers:
        given = pa.array([None, [("traceparent", THEIRS)], [("a", "b")]], pa.map_(pa.string(), pa.string()))
        table = table.append_column("headers", given)
    make_producer(tracer_provider=recorded.provider).send_arrow("orders", table)
    span = recorded.one("send orders")
    ours = {"traceparent": traceparent_of(span)}
    if has_headers:
        assert headers_of(stub) == {b"1": ours, b"2": {"traceparent": THEIRS}, b"3": {"a": "b", **ours}}
        assert len(span.links) == 1
    else:
        assert headers_of(stub) == {b"1": ours, b"2": ours, b"3": ours}


def test_look_15_messages_stay_as_they_are_if_the_send_is_not_sampled_or_may_be_resumed(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded
) -> None:
    unsampled = make_producer(tracer_provider=Recorded(ALWAYS_OFF).provider)
    unsampled.send("orders", b"0", headers={"region": "eu"})
    unsampled.send_batch("orders", [b"5"])
    flags = {str(post.traceparent)[-2:] for post in stub.posts}
    assert flags <= {"00", "02"}, "the service knows of the decision"
    unsampled.send_arrow("orders", pa.table({"body": [b"1", b"2"]}))
    table = pa.table({"body": [b"3", b"4"]})
    make_producer(tracer_provider=recorded.provider).send_table("orders", table, progress=False)
    headers = headers_of(stub)
    assert headers.pop(b"0") == {"region": "eu"}
    assert list(headers.values()) == [{}] * 5
    assert (recorded.one("send orders").attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 2


@pytest.mark.threads
def test_look_15_a_message_of_an_outbox_has_the_context_of_where_it_was_put(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded, tmp_path: Any
) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    outbox = Outbox(tracer_provider=recorded.provider)
    with contextlib.closing(database), database:
        outbox.create(database)
        outbox.put(database, "orders", Message(b"paid"))
    created = recorded.one("create orders")
    relay = OutboxRelay(lambda: sqlite3.connect(tmp_path / "shop.db"), make_producer(tracer_provider=recorded.provider))
    with relay:
        relay.drain()
    sent = recorded.one("send orders")
    assert headers_of(stub)[b"paid"] == {"traceparent": traceparent_of(created)}
    assert [link.context.span_id for link in sent.links] == [span_id(created)]
    assert (created.kind, sent.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)


# Handlers ------------------------------------------------------------------------------------------------------


def test_look_15_deliveries_retries_and_the_dead_letter_are_one_trace(
    stub: StubService, make_producer: MakeProducer, consume: Consume, recorded: Recorded
) -> None:
    make_producer(tracer_provider=recorded.provider).send("orders", b"12.50", message_id="m-1")
    with stub.changed:
        stub.queue.twin.put_group("billing", max_attempts=3)
    inside: list[int] = []

    def handle(message: PoppedMessage) -> None:
        inside.append(get_current_span().get_span_context().span_id)
        raise ValueError("no such account")

    consume(handle, tracer_provider=recorded.provider)
    for attempt in (1, 2, 3):
        stub.queue.wait_for(lambda attempt=attempt: len(recorded.spans("process orders")) == attempt)
        stub.queue.wait_for(lambda attempt=attempt: len(stub.queue.calls_of("nack")) == attempt)
        stub.queue.let_pass(3_600_000)
    wait_done(stub)
    sent, runs = recorded.one("send orders"), recorded.spans("process orders")
    assert trace_ids([sent, *runs]) == trace_ids([sent])
    assert [parent_of(span) for span in runs] == [span_id(sent)] * 3
    assert [span_id(span) for span in runs] == inside, "a handler runs in its span"
    sides = [dict(span.attributes or {}) for span in runs]
    assert [side.pop("messaging.deltamq.message.delivery_attempt") for side in sides] == [1, 2, 3]
    assert sides[0] == sides[1] == sides[2], "each is named by the place where the message was first stored"
    assert sides[0] == {
        semconv.MESSAGING_SYSTEM: "deltamq",
        semconv.MESSAGING_OPERATION_NAME: "process",
        semconv.MESSAGING_OPERATION_TYPE: semconv.MessagingOperationTypeValues.PROCESS.value,
        semconv.MESSAGING_DESTINATION_NAME: "orders",
        semconv.MESSAGING_DESTINATION_PARTITION_ID: "orders@memory",
        semconv.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        semconv.MESSAGING_MESSAGE_ID: "m-1",
        semconv.MESSAGING_MESSAGE_BODY_SIZE: 5,
        "messaging.deltamq.message.offset": 0,
        error_attributes.ERROR_TYPE: "ValueError",
        server_attributes.SERVER_ADDRESS: "127.0.0.1",
        server_attributes.SERVER_PORT: int(stub.url.rpartition(":")[2]),
    }
    assert {span.kind for span in runs} == {SpanKind.CONSUMER}
    assert [event.name for span in runs for event in span.events] == ["exception"] * 3
    (letter,) = stub.queue.look(lambda twin: twin.dead_letters("billing"))
    assert dict(letter.headers)["traceparent"] == traceparent_of(sent), "whoever reads the dead letter goes on with it"


@pytest.mark.parametrize(
    ("result", "said"), [(Result.OK, None), (Result.RETRY(delay_ms=3_600_000), "retry"), (Result.DEAD("why"), "dead")]
)
def test_look_15_a_handlers_result_is_the_spans_status(
    stub: StubService, consume: Consume, recorded: Recorded, result: Result, said: str | None
) -> None:
    stub.queue.fill("orders", 1)
    consume(lambda message: result, tracer_provider=recorded.provider)
    stub.queue.wait_for(lambda: bool(recorded.spans("process orders")))
    span = recorded.one("process orders")
    assert (span.attributes or {}).get(error_attributes.ERROR_TYPE) == said
    assert span.status.status_code is (StatusCode.UNSET if said is None else StatusCode.ERROR)
    assert span.parent is None, "a message without a context begins a trace"


@pytest.mark.parametrize("format", ["messages", "arrow"])
def test_look_15_a_batch_has_links_to_its_messages_spans_up_to_a_bound(
    stub: StubService, consume: Consume, seen: Seen, recorded: Recorded, format: str
) -> None:
    count = LINKS_MAX + 20
    contexts = [f"00-{n:032x}-{n:016x}-01" for n in range(1, count + 1)]
    stub.queue.fill("orders", count, headers=lambda n: {"traceparent": contexts[n]})
    stub.queue.fill("orders", 10, start=count, headers={"traceparent": contexts[0]})
    consume(lambda batch: None, batch_messages=1_024, format=format, tracer_provider=recorded.provider)
    wait_done(stub)
    span = recorded.one("process orders")
    linked = {f"{link.context.trace_id:032x}" for link in span.links}
    assert len(linked) == len(span.links) == LINKS_MAX
    assert linked <= {context[3:35] for context in contexts}
    assert (span.attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == count + 10
    assert span.parent is None


def test_look_15_a_listener_runs_in_a_span_of_its_messages_trace(
    stub: StubService, listen: Listen, recorded: Recorded
) -> None:
    stub.create("orders", 1)
    fill(stub, 1, headers={"traceparent": THEIRS})
    inside: list[str] = []

    def say(message: OrderedMessage) -> Verdict:
        inside.append(f"{get_current_span().get_span_context().trace_id:032x}")
        return Verdict.SUSPEND if message.attempt == 1 else Verdict.SUCCESS

    listen(Ear(stub, say), tracer_provider=recorded.provider)
    stub.queue.wait_for(lambda: len(recorded.spans("process orders")) == 2)
    first, second = recorded.spans("process orders")
    assert inside == [THEIRS[3:35]] * 2
    assert [f"{parent_of(span):016x}" for span in (first, second)] == [THEIRS[36:52]] * 2
    assert (first.attributes or {})[error_attributes.ERROR_TYPE] == "suspend"
    assert (second.attributes or {})["messaging.deltamq.message.delivery_attempt"] == 2
    assert (second.attributes or {})[semconv.MESSAGING_CONSUMER_GROUP_NAME] == "ledger"


# Calls that an application makes itself ------------------------------------------------------------------------


@pytest.mark.parametrize("arrow", [False, True])
def test_look_15_a_pull_that_brings_messages_has_links_to_their_spans(
    stub: StubService, make_producer: MakeProducer, recorded: Recorded, arrow: bool
) -> None:
    make_producer(tracer_provider=recorded.provider).send_batch("orders", [b"1", b"2"])
    sent = recorded.one("send orders")
    with PullConsumer(stub.url, "orders", patience=QUICK, tracer_provider=recorded.provider) as consumer:
        read = 0
        while read < 2:
            read += len((consumer.poll_arrow if arrow else consumer.poll)(wait_ms=100) or ())
        consumer.poll(wait_ms=0)
    received = recorded.spans("receive orders")
    assert sum((span.attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] for span in received) == 2
    assert {link.context.span_id for span in received for link in span.links} == {span_id(sent)}
    assert {span.kind for span in received} == {SpanKind.CLIENT}


def test_look_15_pops_and_acknowledgements_of_a_loop_are_spans_of_their_caller(
    stub: StubService, recorded: Recorded
) -> None:
    stub.queue.fill("orders", 2, headers={"traceparent": THEIRS})
    with (
        PopClient(stub.url, "billing", tracer_provider=recorded.provider) as client,
        recorded.provider.get_tracer("shop").start_as_current_span("turn") as turn,
    ):
        batch = client.pop("orders")
        client.ack([message.handle for message in batch.messages])
        assert client.pop("orders").messages == []
        stub.queue.faults["ack"].append(QueueFault.FORBIDDEN)
        with pytest.raises(Forbidden) as refused:
            client.ack(["h"])
    received, (acked, failed) = recorded.one("receive orders"), recorded.spans("ack")
    assert (failed.attributes or {})[error_attributes.ERROR_TYPE] == refused.value.code
    assert [parent_of(span) for span in (received, acked)] == [turn.get_span_context().span_id] * 2
    assert len(received.links) == 1
    assert (acked.attributes or {})[semconv.MESSAGING_OPERATION_TYPE] == "settle"
    assert (acked.attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 2


def test_look_15_threads_of_a_client_share_its_spans(make_producer: MakeProducer, recorded: Recorded) -> None:
    producer = make_producer(tracer_provider=recorded.provider)
    threads = [
        threading.Thread(target=lambda: [producer.send("orders", json.dumps(n)) for n in range(20)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorded.spans("send orders")) == 160
    assert len(trace_ids(recorded.spans())) == 160
