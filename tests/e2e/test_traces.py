"""One trace from a producer to the dead letter: SDK, service, revive job, and a collector that takes OTLP (LOOK-15)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq import Admin, OrderlyConsumer, PopConsumer, Producer, Verdict
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage
from deltamq.tables.config import Config
from deltamq.tables.config_sections import WarehouseSettings
from deltamq.tables.log.warehouse import Warehouse
from tests.e2e.service_process import DELTAMQ, ServiceProcess
from tests.forked import until
from tests.free_ports import free_port
from tests.otlp_receiver import OtlpReceiver
from tests.queue_engines import revive_job
from tests.traced import Recorded, traceparent_of

DELIVERIES = "GET /v1/topics/{topic}/partitions/{partition}/messages/{offset}/deliveries"
SEND = "POST /v1/topics/{topic}/messages"
QUICK = Patience(first_wait_ms=5, wait_ms_max=200)


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def service(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAMQ_SERVICE_TRACES_URL", receiver.url)
        patch.setenv("DELTAMQ_SERVICE_TRACES_SAMPLE", "0")
        service = ServiceProcess(tmp_path_factory.mktemp("traced") / "warehouse")
    yield service
    service.close()


def ids(recorded: Recorded) -> set[str]:
    return {f"{span.context.trace_id:032x}" for span in recorded.spans() if span.context is not None}


def test_look_15_from_the_producer_to_the_dead_letter_it_is_one_trace(
    service: ServiceProcess, receiver: OtlpReceiver
) -> None:
    recorded = Recorded()

    def handle(message: PoppedMessage) -> None:
        raise ValueError("no such account")

    with Admin(service.url) as admin, Producer(service.url, tracer_provider=recorded.provider) as producer:
        admin.create_topic("orders", partitions=1)
        admin.create_group("billing", max_attempts=2, retry_policy={"fixed_ms": 0})
        sent = producer.send("orders", b"12.50", headers={"region": "eu"})
        config = Config(warehouse=WarehouseSettings(uri=str(service.warehouse)))
        with (
            contextlib.closing(Warehouse.open(config.warehouse.uri)) as warehouse,
            PopConsumer(service.url, "billing", "orders", handle, patience=QUICK, tracer_provider=recorded.provider),
        ):
            revive = revive_job("local", warehouse, config)
            deadline = time.monotonic() + 60
            while not admin.dead_letters("billing").total:
                assert time.monotonic() < deadline
                revive.run(time.time_ns() // 1_000_000 + 1_000)
                threading.Event().wait(0.05)
        (letter,) = admin.dead_letters("billing").messages
    send, runs = recorded.spans("send orders")[0], recorded.spans("process orders")
    (trace,) = ids(recorded)
    assert letter.headers is not None and letter.headers["traceparent"] == traceparent_of(send)
    assert letter.headers["region"] == "eu"
    sides = [dict(span.attributes or {}) for span in runs]
    assert [side["messaging.deltamq.message.delivery_attempt"] for side in sides] == [1, 2]
    for side in sides:
        assert side["messaging.destination.partition.id"] == sent.partition, "not its retry partition"
        assert side["messaging.deltamq.message.offset"] == sent.offset == 0
        assert side["error.type"] == "ValueError"
    receiver.wait_for(lambda: SEND in receiver.of(trace))
    spans = receiver.of(trace)
    (request,), (commit,) = spans[SEND], spans["commit"]
    assert send.context is not None and request.parent_id == f"{send.context.span_id:016x}"
    assert commit.attributes["messaging.destination.partition.id"] == sent.partition
    assert {"queue", "encode", "publish", "apply"} <= spans.keys()


def test_look_15_a_message_set_aside_by_an_ordered_consumer_keeps_its_trace(service: ServiceProcess) -> None:
    recorded, heard = Recorded(), threading.Event()

    def listen(message: OrderedMessage) -> Verdict:
        heard.set()
        return Verdict.DEAD

    with Admin(service.url) as admin, Producer(service.url, tracer_provider=recorded.provider) as producer:
        admin.create_topic("ledger", partitions=1)
        producer.send("ledger", b"1", key="k")
        with OrderlyConsumer(service.url, "books", "ledger", listen, tracer_provider=recorded.provider):
            assert heard.wait(60)
            deadline = time.monotonic() + 60
            while not admin.dead_letters("books").total:
                assert time.monotonic() < deadline
                threading.Event().wait(0.05)
        (letter,) = admin.dead_letters("books").messages
    assert (letter.headers or {})["traceparent"] == traceparent_of(recorded.one("send ledger"))
    assert len(ids(recorded)) == 1


def test_look_17_a_run_of_a_job_is_a_span(service: ServiceProcess, receiver: OtlpReceiver) -> None:
    with Producer(service.url) as producer:
        producer.send("reminders", b"1", delay_ms=1)
    command = [*DELTAMQ, "jobs", "run", "delay", "--engine", "local", "--once", "--warehouse", str(service.warehouse)]
    environ = {**os.environ, "DELTAMQ_JOBS_TRACES_URL": receiver.url}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (span,) = [span for span in receiver.spans if span.name == "job delay"]
    assert span.attributes["deltamq.job.rows"] == 1 and span.resource["service.name"] == "deltamq-jobs"


def test_look_17_a_forwarded_request_goes_on_with_its_trace(receiver: OtlpReceiver, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAMQ_SERVICE_TRACES_URL", receiver.url)
        patch.setenv("DELTAMQ_SERVICE_TRACES_SAMPLE", "0")
        warehouse = tmp_path / "warehouse"
        with (
            contextlib.closing(ServiceProcess(warehouse, "--broker", "broker-a")) as first,
            contextlib.closing(ServiceProcess(warehouse, "--broker", "broker-b")) as second,
        ):
            with Admin([first.url, second.url]) as admin:
                admin.create_topic("shared", partitions=2)
                until(lambda: len(admin.cluster().hosts) == 2)
            with Producer(second.url) as producer:
                producer.send("shared", b"1", partition="shared@broker-b")
            trace = f"{101:032x}"
            path = "/v1/topics/shared/partitions/shared%40broker-b/messages/0/deliveries"
            request = urllib.request.Request(first.url + path, headers={"Accept": "application/json"})
            request.add_header("traceparent", f"00-{trace}-b7ad6b7169203331-01")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200
            receiver.wait_for(lambda: len(receiver.of(trace).get(DELIVERIES, ())) == 2)
    outer, inner = sorted(receiver.of(trace)[DELIVERIES], key=lambda span: span.begin_ns)
    assert (outer.parent_id, inner.parent_id) == ("b7ad6b7169203331", outer.span_id)
    assert outer.resource["process.pid"] != inner.resource["process.pid"]


# A real collector ----------------------------------------------------------------------------------------------

COLLECTOR = Path(__file__).parent.parent / "collector"


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(shutil.which("go") is None, reason="go, which builds the collector, is not installed")
def test_look_17_a_real_collector_takes_the_spans(tmp_path: Path) -> None:
    program = tmp_path / "collector"
    built = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=COLLECTOR,
        capture_output=True,
        text=True,
        timeout=1_500,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    port, out = free_port(), tmp_path / "spans.jsonl"
    configuration = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"file": {"path": str(out), "flush_interval": "100ms"}},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (tmp_path / "collector.yaml").write_text(json.dumps(configuration))
    collector = subprocess.Popen([str(program), "--config", f"file:{tmp_path / 'collector.yaml'}"])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DELTAMQ_SERVICE_TRACES_URL", f"http://127.0.0.1:{port}")
            patch.setenv("DELTAMQ_SERVICE_TRACES_SAMPLE", "1")
            service = ServiceProcess(tmp_path / "warehouse")
        try:
            deadline = time.monotonic() + 60
            with Producer(service.url) as producer:
                while not {SEND, "commit", "publish"} <= names_in(out):
                    assert time.monotonic() < deadline and collector.poll() is None, names_in(out)
                    producer.send("orders", b"1")  # the collector may not listen yet
                    threading.Event().wait(0.2)
        finally:
            service.close()
    finally:
        collector.terminate()
        collector.wait(30)


def names_in(out: Path) -> set[str]:
    """Return the names of the spans that the collector has written."""
    lines = out.read_text().splitlines() if out.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return {
        span["name"]
        for request in whole
        for of_resource in request["resourceSpans"]
        for of_scope in of_resource["scopeSpans"]
        for span in of_scope["spans"]
    }
