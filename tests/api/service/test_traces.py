"""The service's own spans, as a collector gets them (SPEC LOOK-17)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from deltamq.api.app import create_app
from deltamq.api.measured import traces_of
from deltamq.api.serve import Server, bind
from deltamq.api.traces import Outgoing
from deltamq.tables.config import Config
from deltamq.tables.config_sections import ServiceSettings, traces_endpoint
from deltamq.tables.settings import SettingsDisagree
from tests.api.running import Api, config_for, running, until
from tests.free_ports import free_port
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
SERVER = 2
SEND = "POST /v1/topics/{topic}/messages"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def api(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that traces only who is traced."""
    config = config_for(tmp_path_factory.mktemp("traced"), traces_url=receiver.url, traces_sample=0.0)
    with running(config) as api:
        yield api


def one(spans: dict[str, list[ReceivedSpan]], name: str) -> ReceivedSpan:
    (span,) = spans[name]
    return span


def metric(api: Api, name: str) -> float:
    lines = api.call("GET", "/metrics").body.decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def test_look_17_a_traced_request_is_a_span_with_its_commit_and_the_commits_steps(
    api: Api, receiver: OtlpReceiver
) -> None:
    api.put_topic("orders", partitions=1)
    sent = api.call(
        "POST",
        "/v1/topics/orders/messages?ids=true",
        {"messages": [{"body": "secret body", "key": "secret key"}, {"body": "2"}]},
        traceparent=SAMPLED,
    )
    assert sent.status == 200
    receiver.wait_for(lambda: SEND in receiver.of(TRACE))
    spans = receiver.of(TRACE)
    request = one(spans, SEND)
    assert (request.parent_id, request.kind, request.is_error) == (CALLER, SERVER, False)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/topics/{topic}/messages",
        "http.response.status_code": 200,
        "url.path": "/v1/topics/orders/messages",
        "url.scheme": "http",
        "messaging.destination.name": "orders",
    }
    assert request.resource["service.name"] == "deltamq" and request.resource["service.namespace"] == "deltamq"
    commit = one(spans, "commit")
    assert commit.attributes == {
        "messaging.destination.partition.id": "orders@broker-a",
        "deltamq.commit.version": 1,
        "deltamq.commit.requests": 1,
        "deltamq.commit.messages": 2,
    }
    for name in ("read body", "store", "commit", "send answer"):
        assert one(spans, name).parent_id == request.span_id
    named = [(step, name) for name, found in spans.items() for step in found if step.parent_id == commit.span_id]
    named.sort(key=lambda pair: pair[0].begin_ns)
    steps = [step for step, _ in named]
    # the first commit syncs what it finds, which is a step of its own
    assert [name for _, name in named] == ["queue", "encode", "publish", "apply", "publish", "apply"]
    assert all(before.end_ns <= after.begin_ns for before, after in pairwise(steps))
    store = one(spans, "store")
    for inner, outer in ((commit, store), (store, request), *((step, commit) for step in steps)):
        assert outer.begin_ns <= inner.begin_ns <= inner.end_ns <= outer.end_ns
    assert "secret" not in repr(spans)
    assert receiver.paths == {"/v1/traces"}


def test_look_17_each_traced_request_shows_the_commit_that_holds_it(api: Api, receiver: OtlpReceiver) -> None:
    api.put_topic("busy", partitions=1)
    traces = [f"{n:032x}" for n in range(1, 9)]
    threads = [
        threading.Thread(
            target=api.produce,
            args=("busy", '{"messages": [{"body": "1"}]}', "application/json"),
            kwargs={"traceparent": f"00-{trace}-{CALLER}-01"},
        )
        for trace in traces
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    receiver.wait_for(lambda: all(SEND in receiver.of(trace) for trace in traces))
    commits = [one(receiver.of(trace), "commit").attributes for trace in traces]
    versions = {commit["deltamq.commit.version"]: commit["deltamq.commit.requests"] for commit in commits}
    assert sum(versions.values()) == 8, "requests that were committed together are in one version"


@pytest.mark.parametrize(
    ("traceparent", "share", "begins"),
    [
        (f"00-{TRACE}-{CALLER}-00", 1.0, None),
        (None, 0.0, None),
        (None, 1.0, "a trace"),
        ("00-nonsense", 1.0, "a trace"),
        (SAMPLED, 0.0, "its caller's"),
    ],
)
def test_look_17_a_callers_trace_is_followed_and_of_the_others_a_share_begins_one(
    receiver: OtlpReceiver, traceparent: str | None, share: float, begins: str | None
) -> None:
    traces = traces_of(Config(service=ServiceSettings(traces_url=receiver.url, traces_sample=share)))
    assert traces is not None
    given = [(b"host", b"x"), *([] if traceparent is None else [(b"traceparent", traceparent.encode())])]
    scope = {"headers": given, "method": "GET", "raw_path": b"/healthz", "scheme": "http"}
    begun = traces.begin(scope)
    assert (begun is not None) is (begins is not None)
    shown = dict(scope["headers"]).get(b"traceparent", b"").decode()  # type: ignore[call-overload] # as given above
    if begins is None:
        assert scope["headers"] == given
    else:
        assert (shown[3:35] == TRACE) is (begins == "its caller's")
        assert int(shown[-2:], 16) & 1 and CALLER not in shown, "who gets it forwarded goes on with this span"
    forwarded = {**scope, "headers": [(b"mq-forwarded", b"h")]}
    assert traces.begin(forwarded) is None, "the process that forwarded it has decided"
    traces.close()


def test_look_17_a_request_that_failed_or_that_nothing_serves_is_a_span_too(api: Api, receiver: OtlpReceiver) -> None:
    trace = f"{77:032x}"
    context = f"00-{trace}-{CALLER}-01"
    assert api.call("GET", "/v1/nothing/here", traceparent=context).status == 404
    assert api.call("GET", "/v1/topics/none", traceparent=context).status == 404
    receiver.wait_for(lambda: len(receiver.of(trace).get("GET /v1/topics/{topic}", [])) == 1)
    spans = receiver.of(trace)
    assert "http.route" not in one(spans, "GET").attributes
    described = one(spans, "GET /v1/topics/{topic}")
    assert described.attributes["http.response.status_code"] == 404 and not described.is_error


def test_look_17_a_collector_that_is_away_holds_nothing_up_and_its_spans_are_counted(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver:
        receiver.status = 400
        config = config_for(tmp_path / "warehouse", traces_url=receiver.url, traces_sample=1.0)
        with running(config) as api:
            assert api.send("orders", "1").status == 200
            until(lambda: metric(api, "deltamq_trace_spans_failed_total") > 0)
            assert metric(api, "deltamq_trace_spans_sent_total") == 0
            receiver.status = 200
            assert api.send("orders", "2").status == 200
            until(lambda: metric(api, "deltamq_trace_spans_sent_total") > 0)
            assert metric(api, "deltamq_trace_spans_dropped_total") == 0


def test_look_17_a_service_without_its_collector_starts_serves_and_stops(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with running(config_for(tmp_path / "warehouse", traces_url=nobody, traces_sample=1.0)) as api:
        assert [api.send("orders", str(n)).status for n in range(20)] == [200] * 20


class Stuck(SpanExporter):
    """An exporter that takes spans only when the test lets it."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.gate.set()


def test_look_17_spans_for_which_there_is_no_room_are_dropped_and_counted() -> None:
    exporter = Stuck()
    outgoing = Outgoing(exporter, spans_max=10)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(outgoing)
    tracer = provider.get_tracer("test")
    tracer.start_span("first").end()
    assert exporter.entered.wait(30)
    for n in range(25):
        tracer.start_span(str(n)).end()
    assert (outgoing.sent, outgoing.dropped) == (0, 15)
    exporter.gate.set()
    until(lambda: outgoing.sent == 11)
    outgoing.shutdown()
    tracer.start_span("late").end()
    assert (outgoing.sent, outgoing.failed, outgoing.dropped) == (11, 0, 16)


def test_look_17_the_end_waits_for_no_collector() -> None:
    exporter = Stuck()
    outgoing = Outgoing(exporter)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(outgoing)
    provider.get_tracer("test").start_span("lost").end()
    assert exporter.entered.wait(30)
    outgoing.shutdown()  # the exporter never answers by itself
    assert exporter.gate.is_set(), "it is closed all the same"


# Off -----------------------------------------------------------------------------------------------------------

_WITHOUT = """
import sys
from deltamq.api.app import create_app
from deltamq.tables.config import Config
print(create_app(Config()).traces, [name for name in sys.modules if name.startswith("opentelemetry.sdk")])
sys.modules["opentelemetry.sdk"] = None  # FastAPI brings the API
from deltamq.mq.client.cli.root import main
main(sys.argv[1:])
"""


def test_look_17_nothing_is_imported_without_a_collector_and_one_without_the_extra_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", _WITHOUT, "serve", "--port", "0", "--warehouse", str(tmp_path / "w")]
    monkeypatch.setenv("DELTAMQ_SERVICE_TRACES_URL", "http://127.0.0.1:4318")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "service.traces_url" in done.stderr and "pip install 'deltamq[otel]'" in done.stderr
    assert done.stdout == "None []\n" and not (tmp_path / "w").exists()


def test_look_17_without_a_collector_nothing_is_measured(tmp_path: Path) -> None:
    config = config_for(tmp_path / "w")
    with closing(bind(config)) as listener:
        app = create_app(config)
        assert Server(app, config, listener).config.app is app, "nothing stands before the application"


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://", "http://a b"])
def test_look_17_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsDisagree, match="collector"):
        ServiceSettings(traces_url=url)


def test_look_17_a_url_without_a_path_gets_the_usual_one() -> None:
    assert traces_endpoint("http://c:4318") == traces_endpoint("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_endpoint("https://c/otlp/traces") == "https://c/otlp/traces"
