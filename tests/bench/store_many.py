"""1,000 topics on an object store: a start, what a process costs that nobody asks, and a run of each job over them.

Each topic has one partition of ten commits with one message each, made before latencies are switched on. The times are
of a store that takes 50 ms for a PUT and 20 ms for other calls; the calls are what is paid for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.figure import Figure
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session
from tests.bench.store import GET_MS, PUT_MS, SETTLE_S, usd_a_month
from tests.bench.store_calls import run_job
from tests.store_proxy import Counts, StoreProxy, store_proxy

__all__: list[str] = []

_TOPICS: Final = {"quick": 20}
_TOPICS_MOST: Final = 1_000
_MESSAGES: Final = 10
_CREATORS: Final = 20
_IDLE_S: Final = {"quick": 2.0}
_IDLE_MOST_S: Final = 60.0
#: Until what was opened at the start is let go again.
_RESTED_MOST_S: Final = 60.0
_JOBS: Final = ("merge", "compact", "retain", "verify")


@bench("store.many")
def many(session: Session) -> Iterator[Figure]:
    """A start on many topics, an idle process, and the jobs."""
    effort, folder = session.effort.name, session.fresh("store.many")
    topics = _TOPICS.get(effort, _TOPICS_MOST)
    of = f"object store, {topics:,} topics"
    with store_proxy(folder / "store") as proxy:
        uri, environment = proxy.uri("bench"), proxy.environment()
        with running_service(folder, environment, warehouse=uri) as service:
            _fill(service, topics)
        proxy.set_latency(put_ms=PUT_MS, get_ms=GET_MS)
        proxy.reset()
        began = time.perf_counter()
        with running_service(folder, environment, warehouse=uri) as service:
            service.call("GET", "/readyz")
            took, counts = time.perf_counter() - began, proxy.counts()
            yield session.figure("store.many.start", f"{of}: until a service is ready", "s", [took], **counts.calls)
            time.sleep(SETTLE_S.get(effort, _RESTED_MOST_S))  # until what began with the start has ended
            yield from _idle(session, of, service, proxy, _IDLE_S.get(effort, _IDLE_MOST_S))
        for job in _JOBS:
            proxy.reset()
            began = time.perf_counter()
            run_job(job, uri, environment)
            took, counts = time.perf_counter() - began, proxy.counts()
            yield session.figure(f"store.many.{job}", f"{of}: a run of {job}", "s", [took], **counts.calls)
            session.say(f"store.many.{job}: {took:.1f} s, {_shown(counts)}")
        proxy.set_latency()


def _fill(service: Service, topics: int) -> None:
    def topic(number: int) -> None:
        name = f"topic-{number:04d}"
        service.call("PUT", f"/v1/topics/{name}", {"partitions": 1})
        for _ in range(_MESSAGES):
            service.call("POST", f"/v1/topics/{name}/messages", {"messages": [{"body": "x" * 100}]})

    with ThreadPoolExecutor(_CREATORS) as threads:
        list(threads.map(topic, range(topics)))


def _idle(session: Session, of: str, service: Service, proxy: StoreProxy, seconds: float) -> Iterator[Figure]:
    proxy.reset()
    cpu = service.cpu_s()
    time.sleep(seconds)  # the length of the measurement, not a wait for anything
    counts, cpu = proxy.counts(), service.cpu_s() - cpu
    rates = {name: calls / counts.seconds for name, calls in counts.calls.items()}
    session.say(f"store.many.idle: {_shown(counts)} in {counts.seconds:.0f} s")
    yield session.figure("store.many.idle.calls", f"{of}: calls a second at rest", "/s", [sum(rates.values())], **rates)
    yield session.figure("store.many.idle.usd", f"{of}: a month of them", "$", [usd_a_month(counts)])
    yield session.figure("store.many.idle.cpu", f"{of}: at rest, of a core", "%", [100 * cpu / counts.seconds])
    yield session.figure("store.many.idle.rss", f"{of}: memory", "MiB", [service.rss_mib()])


def _shown(counts: Counts) -> str:
    return ", ".join(f"{name} {calls}" for name, calls in sorted(counts.calls.items()))
