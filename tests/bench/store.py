"""The service on an object store: `versitygw` behind a proxy that adds 50 ms to a PUT and 20 ms to all other calls.

That is what stores of the clouds take, so a commit (a data file, then a conditional PUT) is bounded by 100 ms. Clients
of which each waits for its answer send single messages of 100 B as JSON; paced ones send by the clock whether the
service keeps up or not, and their times count from when a message was due. Load, service, proxy and store share the
machine; what each of them used is printed. After each scenario the end offsets must add up to what was acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec
import numpy as np
import psutil

from tests.bench.figure import Figure
from tests.bench.load import Connection, LoadError, paced, request, together
from tests.bench.payloads import arrow_stream, json_request, record_batch
from tests.bench.registry import bench
from tests.bench.service import Service, cores_mark, cores_used, running_service
from tests.bench.session import Session, Window
from tests.s3_server import ServerUnavailable
from tests.store_proxy import Counts, StoreProxy, store_proxy

__all__ = ["GET_MS", "PUT_MS", "SETTLE_S", "usd_a_month"]

PUT_MS: Final = 50
GET_MS: Final = 20
#: Windows hold hundreds of commits of 100 ms.
_WINDOW_TIMES: Final = 5
_WINDOWS: Final = 3
_POPPED: Final = 100_000
#: Many small answers; a client has its own buffer.
_BUFFER_BYTES: Final = 8 * 1024
#: Topics and clients in a quick run are a tenth of these.
_QUICK_SHARE: Final = 10
_CREATED: Final = 200
_CREATORS: Final = 20
SETTLE_S: Final = {"quick": 0.5}
_SETTLE_MOST_S: Final = 15.0
_IDLE_S: Final = {"quick": 2.0}
_IDLE_MOST_S: Final = 30.0
#: Of S3 Standard in us-east-1; a LIST costs what a PUT costs, a DELETE nothing.
_USD_A_MILLION: Final = {"PUT": 5.0, "CONDITIONAL_PUT": 5.0, "LIST": 5.0, "GET": 0.4, "HEAD": 0.4}
_MONTH_S: Final = 30 * 86_400


class _Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    said: str
    topics: int = 1
    partitions: int = 1
    #: Each sends to one partition.
    clients: int
    #: How often a client sends; 0: when it has its answer.
    period_s: float = 0
    #: Messages of a request, and bytes of a message's body; many go as an Arrow stream.
    count: int = 1
    size: int = 100
    settings: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def is_many(self) -> bool:
        """Whether a quick run takes fewer of them."""
        return self.topics > _QUICK_SHARE

    def body(self) -> dict[str, object]:
        """The request that makes one of its topics."""
        return {"partitions": self.partitions, **self.settings}

    def data(self, topic: str, partition: str) -> bytes:
        """A client's whole request."""
        path = f"/v1/topics/{topic}/messages?partition={quote(partition)}"
        if self.count == 1:
            return request("POST", path, kind="application/json", body=json_request(1, self.size))
        body = arrow_stream(record_batch(self.count, self.size))
        return request("POST", path, kind="application/vnd.apache.arrow.stream", body=body)


_SCENARIOS: Final = (
    _Scenario(name="one_client", said="one client, one partition", clients=1),
    _Scenario(name="16_on_1", said="16 clients, one partition", clients=16),
    _Scenario(name="16_on_4", said="16 clients, four partitions", partitions=4, clients=16),
    _Scenario(name="40_on_40", said="40 clients, 40 partitions", partitions=40, clients=40),
    _Scenario(name="200_topics", said="200 topics, one client each", topics=200, clients=200),
    _Scenario(
        name="paced.200_topics",
        said="200 topics, a message every two seconds each",
        topics=200,
        clients=200,
        period_s=2,
    ),
    _Scenario(
        name="paced.1000_topics",
        said="1,000 topics, a message every ten seconds each",
        topics=1_000,
        clients=1_000,
        period_s=10,
    ),
    _Scenario(
        name="paced.10_partitions",
        said="100 messages a second over 10 partitions",
        partitions=10,
        clients=50,
        period_s=0.5,
    ),
    _Scenario(
        name="paced.window",
        said="100 messages a second over 10 partitions with a window of 1 s",
        partitions=10,
        clients=200,
        period_s=2,
        settings={"commit_window_ms": 1_000},
    ),
    _Scenario(
        name="batches",
        said="16 clients, 8 partitions, Arrow streams of 500 messages of 1 kB",
        partitions=8,
        clients=16,
        count=500,
        size=1_000,
    ),
)


def usd_a_month(counts: Counts) -> float:
    """What the counted calls cost if they go on for a month."""
    spent = sum(_USD_A_MILLION.get(name, 0) * calls / 1e6 for name, calls in counts.calls.items())
    return spent / counts.seconds * _MONTH_S


@contextmanager
def _serving(session: Session, name: str) -> Iterator[tuple[Service, StoreProxy]]:
    """A service on a store of its own, which has no latency yet."""
    folder = session.fresh(name)
    with (
        store_proxy(folder / "store") as proxy,
        running_service(folder, proxy.environment(), warehouse=proxy.uri("bench")) as service,
    ):
        yield service, proxy


def _made(service: Service, topics: int, body: Mapping[str, object]) -> dict[str, list[str]]:
    """Make topics, many at once; their names, with their partitions'."""
    names = [f"bench-{at:04d}" for at in range(topics)]
    with ThreadPoolExecutor(_CREATORS) as threads:
        views = threads.map(lambda name: service.call("PUT", f"/v1/topics/{name}", body), names)
        return {name: [p["partition"] for p in view["partitions"]] for name, view in zip(names, views, strict=True)}


def _stored(service: Service, topics: Iterable[str]) -> int:
    return sum(sum(service.stored(topic).values()) for topic in topics)


# Sending --------------------------------------------------------------------------------------------------------


class _Load:
    """The clients of a scenario, and what they measure."""

    def __init__(self, scenario: _Scenario, service: Service, proxy: StoreProxy, requests: Sequence[bytes]) -> None:
        self._scenario = scenario
        self._service = service
        self._proxy = proxy
        self._store = [psutil.Process(pid) for pid in (proxy.pid, proxy.server.pid)]
        clients = len(requests) if scenario.is_many else scenario.clients
        self._requests = requests
        self._connections = [Connection(service.address, _BUFFER_BYTES) for _ in range(clients)]
        self.acknowledged = 0

    def window(self, seconds: float) -> dict[str, float]:
        """Send for so long."""
        self._proxy.reset()
        mark, cpu, store = cores_mark(self._service), self._service.cpu_s(), self._store_cpu_s()
        took, elapsed = self._sent(seconds)
        counts = self._proxy.counts()
        messages = len(took) * self._scenario.count
        self.acknowledged += messages
        cpu_ms = (self._service.cpu_s() - cpu) * 1e3
        return {
            "p50": float(np.percentile(took, 50)),
            "p99": float(np.percentile(took, 99)),
            "rate": messages / elapsed,
            "mb": messages * self._scenario.size / elapsed / 1e6,
            "puts": counts.puts / messages,
            "gets": sum(counts.calls.get(name, 0) for name in ("GET", "HEAD", "LIST")) / messages,
            "in_flight": counts.in_flight_most,
            "cpu": cpu_ms / messages,
            "commit_cpu": cpu_ms / max(1, counts.calls.get("CONDITIONAL_PUT", 0)),
            "rss": self._service.rss_mib(),
            **cores_used(self._service, mark),
            "store_cores": (self._store_cpu_s() - store) / elapsed,
        }

    def _sent(self, seconds: float) -> tuple[list[float], float]:
        period_s = self._scenario.period_s
        if period_s:
            return paced(self._connections, self._request, period_s, max(seconds, period_s))
        return together(self._connections, self._request, seconds, lambda _client, _answer: None)

    def _request(self, client: int) -> bytes:
        return self._requests[client % len(self._requests)]

    def _store_cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._store)

    def close(self) -> None:
        """Hang up."""
        for connection in self._connections:
            connection.close()


def _sending(session: Session, scenario: _Scenario) -> Iterator[Figure]:
    name = f"store.{scenario.name}"
    topics = scenario.topics
    if session.effort.name == "quick" and scenario.is_many:
        topics //= _QUICK_SHARE
    with _serving(session, name) as (service, proxy):
        try:
            made = _made(service, topics, scenario.body())
        except LoadError as error:
            if not scenario.settings:
                raise
            session.say(f"{name}: not measured, the service does not take {dict(scenario.settings)}: {error}")
            return
        proxy.set_latency(put_ms=PUT_MS, get_ms=GET_MS)
        requests = [scenario.data(topic, partition) for topic, partitions in made.items() for partition in partitions]
        load = _Load(scenario, service, proxy, requests)
        try:
            windows = session.windows(load.window, times=_WINDOW_TIMES, most=_WINDOWS)
        finally:
            load.close()
        proxy.set_latency()
        stored = _stored(service, made)
        if stored != load.acknowledged:
            raise LoadError(f"{load.acknowledged} messages were acknowledged, {stored} are stored")
    yield from _figures(session, name, scenario, windows)


def _figures(session: Session, name: str, scenario: _Scenario, windows: Sequence[Window]) -> Iterator[Figure]:
    figure = partial(session.figure_of, windows=windows)
    said = f"object store, {scenario.said}"
    shown = [
        figure(f"{name}.rate", said, "msg/s", "rate"),
        figure(f"{name}.p50", f"{said}: request to answer", "ms", "p50"),
        figure(f"{name}.p99", f"{said}: 99th percentile", "ms", "p99"),
        figure(f"{name}.puts", f"{said}: PUTs a message", "", "puts"),
        figure(f"{name}.in_flight", f"{said}: most store calls in flight", "", "in_flight"),
        figure(f"{name}.cpu", f"{said}: the service's CPU a message", "ms", "cpu"),
        figure(f"{name}.commit_cpu", f"{said}: the service's CPU a conditional PUT", "ms", "commit_cpu"),
    ]
    if scenario.count > 1:
        shown.append(figure(f"{name}.mb", f"{said}: bodies", "MB/s", "mb"))
    also = shown[0].extra
    session.say(
        f"{name}: "
        + " · ".join(f"{f.name.removeprefix(name + '.')} {f.median:.4g}" for f in shown)
        + f" · gets {also['gets']:.3g} · rss {also['rss']:.0f} MiB · cores: service {also['server_cores']:.2f},"
        f" load {also['client_cores']:.2f}, proxy and store {also['store_cores']:.2f}"
    )
    yield from shown


def _register() -> None:
    for scenario in _SCENARIOS:

        def run(session: Session, scenario: _Scenario = scenario) -> Iterator[Figure]:
            try:
                yield from _sending(session, scenario)
            except ServerUnavailable as error:
                session.say(f"store.{scenario.name}: not measured: {error}")

        bench(f"store.{scenario.name}")(run)


_register()


# Topics, and nothing --------------------------------------------------------------------------------------------


@bench("store.create")
def create(session: Session) -> Iterator[Figure]:
    """Making many topics, twenty at a time."""
    topics = _CREATED // (_QUICK_SHARE if session.effort.name == "quick" else 1)
    with _serving(session, "store.create") as (service, proxy):
        proxy.set_latency(put_ms=PUT_MS, get_ms=GET_MS)
        proxy.reset()
        began = time.perf_counter()
        _made(service, topics, {"partitions": 1})
        took, counts = time.perf_counter() - began, proxy.counts()
        proxy.set_latency()
    said = f"object store: making {topics} topics of one partition, {_CREATORS} at a time"
    yield session.figure("store.create.took", said, "s", [took])
    yield session.figure("store.create.puts", f"{said}: PUTs a topic", "", [counts.puts / topics])


def _idle(session: Session, topics: int) -> Iterator[Figure]:
    name, effort = f"store.idle.{topics}", session.effort.name
    with _serving(session, name) as (service, proxy):
        for topic in _made(service, topics, {"partitions": 1}):
            service.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"body": "x"}]})
        proxy.set_latency(put_ms=PUT_MS, get_ms=GET_MS)
        time.sleep(SETTLE_S.get(effort, _SETTLE_MOST_S))  # until what began with the topics has ended
        proxy.reset()
        cpu = service.cpu_s()
        time.sleep(_IDLE_S.get(effort, _IDLE_MOST_S))  # the length of the measurement, not a wait for anything
        counts, cpu = proxy.counts(), service.cpu_s() - cpu
        proxy.set_latency()
    of = f"object store: an idle process, {topics} topics"
    rates = {name: calls / counts.seconds for name, calls in sorted(counts.calls.items())}
    session.say(f"{name}: " + ", ".join(f"{name} {rate:.2f}/s" for name, rate in rates.items()))
    puts = sum(rates.get(operation, 0) for operation in ("PUT", "CONDITIONAL_PUT"))
    yield session.figure(f"{name}.gets", f"{of}: GETs a second", "/s", [rates.get("GET", 0)], **rates)
    yield session.figure(f"{name}.puts", f"{of}: PUTs a second", "/s", [puts])
    yield session.figure(f"{name}.usd", f"{of}: a month of its calls", "$", [usd_a_month(counts)])
    yield session.figure(f"{name}.cpu", f"{of}: of a core", "%", [100 * cpu / counts.seconds])


for _topics in (1, 200):

    def _run_idle(session: Session, topics: int = _topics) -> Iterator[Figure]:
        return _idle(session, topics)

    bench(f"store.idle.{_topics}")(_run_idle)


# Popping --------------------------------------------------------------------------------------------------------


@bench("store.pop")
def pop(session: Session) -> Iterator[Figure]:
    """A message at a time: popped, then acknowledged by a call of its own."""
    with _serving(session, "store.pop") as (service, proxy):
        service.call("PUT", "/v1/topics/bench", {"partitions": 1})
        service.call("PUT", "/v1/groups/bench", {})
        for _ in range(_POPPED // 1_000):  # more than the windows take
            service.call("POST", "/v1/topics/bench/messages", {"messages": [{"body": "x" * 100}] * 1_000})
        proxy.set_latency(put_ms=PUT_MS, get_ms=GET_MS)

        def window(seconds: float) -> dict[str, float]:
            proxy.reset()
            popped, both = [], []
            began = time.perf_counter()
            while time.perf_counter() < began + seconds:
                at = time.perf_counter()
                taken = service.call("POST", "/v1/groups/bench/topics/bench/pop", {"max_messages": 1})
                popped.append(1e3 * (time.perf_counter() - at))
                handles = [message["handle"] for message in taken["messages"]]
                acked = service.call("POST", "/v1/groups/bench/ack", {"handles": handles})
                both.append(1e3 * (time.perf_counter() - at))
                if len(handles) != 1 or acked["acked"] != 1:
                    raise LoadError(f"not one message, acknowledged: {taken}, {acked}")
            counts = proxy.counts()
            return {
                "pop": float(np.percentile(popped, 50)),
                "both": float(np.percentile(both, 50)),
                "p99": float(np.percentile(both, 99)),
                "puts": counts.puts / len(both),
                "calls": sum(counts.calls.values()) / len(both),
            }

        windows = session.windows(window, times=_WINDOW_TIMES, most=_WINDOWS)
        proxy.set_latency()
    said = "object store, a message popped and acknowledged"
    figure = partial(session.figure_of, windows=windows)
    shown = [
        figure("store.pop.p50", said, "ms", "both"),
        figure("store.pop.p99", f"{said}: 99th percentile", "ms", "p99"),
        figure("store.pop.pop", f"{said}: the pop of it", "ms", "pop"),
        figure("store.pop.puts", f"{said}: PUTs", "", "puts"),
        figure("store.pop.calls", f"{said}: all calls of the store", "", "calls"),
    ]
    session.say("store.pop: " + " · ".join(f"{f.name.removeprefix('store.pop.')} {f.median:.4g}" for f in shown))
    yield from shown
