"""A service with very many topics: what 12,001 partitions cost that nobody uses.

The warehouse is made through `tables/`, not by requests: topics as events in the metadata log, their tables with one
message each. Then the service starts on it as users start it, every partition is touched once over HTTP, as clients do
that all connect again, and it is left alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.mq.meta.topic_settings import TopicRequest
from deltamq.mq.meta.topics import Topic, decide_put_topic
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.metadata import MetaLog
from deltamq.tables.settings import Flush
from tests.bench.figure import Figure
from tests.bench.load import Connection, LoadError, request
from tests.bench.payloads import record_batch
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session
from tests.bench.store_calls import run_job

__all__ = ["build", "sizes"]

_TOPICS: Final = {"quick": 100}
_TOPICS_MOST: Final = 3_000
#: Partitions of each topic; the first has one more.
_PARTITIONS: Final = 4
_EVENTS: Final = 250
_BROKERS: Final = ("broker-a",)
_IDLE_S: Final = {"quick": 2.0}
_IDLE_MOST_S: Final = 20.0
#: Until what was opened at once is let go again.
_SETTLED_S: Final = {"quick": 0.0}
_SETTLED_MOST_S: Final = 90.0


def sizes(topics: int) -> dict[str, int]:
    """The partitions of each topic."""
    return {f"topic-{at:05d}": _PARTITIONS + (at == 0) for at in range(topics)}


def build(warehouse: Warehouse, partitions: dict[str, int]) -> None:
    """Make these topics with their tables, one message in each partition."""
    meta = MetaLog(warehouse)
    names = list(partitions)
    for start in range(0, len(names), _EVENTS):
        _put(meta, names[start : start + _EVENTS], partitions)
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda name: _fill(warehouse, meta.meta.topics.topics[name]), names):
            pass


def _put(meta: MetaLog, names: Sequence[str], partitions: dict[str, int]) -> None:
    """Create topics in one append."""

    def decide(state: Meta) -> Sequence[AnyEvent]:
        topics, events = state.topics, list[AnyEvent]()
        for name in names:
            wanted = TopicRequest(partitions=partitions[name])
            now_ms = time.time_ns() // 1_000_000
            events += decide_put_topic(topics, name, wanted, _BROKERS, str(uuid.uuid4()), now_ms)
        return events

    meta.submit_any(decide)


def _fill(warehouse: Warehouse, topic: Topic) -> None:
    for name in topic.route.partitions:
        ref = PartitionRef(Space.TOPICS, topic.name, name, topic.generation)
        log = warehouse.create(ref, table_id=str(uuid.uuid5(uuid.UUID(topic.id), name)))
        log.append([Batch(record_batch(1, 100))], flush=Flush.ASYNC)


def _timed(service: Service, path: str) -> tuple[float, int]:
    """Milliseconds and bytes of the answer to a GET."""
    connection = Connection(service.address)
    try:
        began = time.perf_counter()
        answer = connection.exchange(request("GET", path))
        took = (time.perf_counter() - began) * 1e3
        if answer.status != 200:
            raise LoadError(f"GET {path}: {answer.status}")
        return took, len(answer.body)
    finally:
        connection.close()


def _touch(service: Service, topics: Sequence[str]) -> None:
    """Let the service see every partition."""
    connection = Connection(service.address)
    try:
        for topic in topics:
            connection.exchange(request("GET", f"/v1/topics/{topic}"))
    finally:
        connection.close()


def _idle(service: Service, seconds: float) -> dict[str, float]:
    """Percent of a core and MiB of a service that is left alone."""
    began, cpu = time.perf_counter(), service.cpu_s()
    time.sleep(seconds)  # the length of the measurement, not a wait for anything
    return {"cpu": 100 * (service.cpu_s() - cpu) / (time.perf_counter() - began), "rss": service.rss_mib()}


@bench("many")
def many(session: Session) -> Iterator[Figure]:
    """Idle cost, restart and the sizes of answers with 3,000 topics."""
    effort = session.effort.name
    partitions = sizes(_TOPICS.get(effort, _TOPICS_MOST))
    folder = session.fresh("many")
    warehouse = Warehouse.open(str(folder / "warehouse"))
    try:
        build(warehouse, partitions)
    finally:
        warehouse.close()
    yield from _measured(session, folder, partitions, _IDLE_S.get(effort, _IDLE_MOST_S))


def _measured(session: Session, folder: Path, partitions: dict[str, int], idle_s: float) -> Iterator[Figure]:
    of = f"{sum(partitions.values()):,} partitions of {len(partitions):,} topics"
    settle_s = _SETTLED_S.get(session.effort.name, _SETTLED_MOST_S)
    with running_service(folder):
        pass
    began = time.perf_counter()
    with running_service(folder) as service:
        yield session.figure("many.start", f"a start on {of}", "s", [time.perf_counter() - began])
        yield session.figure("many.fresh.rss", f"memory after a start on {of}", "MiB", [_idle(service, 1)["rss"]])
        _touch(service, list(partitions))
        yield session.figure("many.touched.rss", f"memory when each of {of} was just read", "MiB", [service.rss_mib()])
        _idle(service, settle_s)
        found = _idle(service, idle_s)
        yield session.figure("many.idle.cpu", f"of a core, with {of} that nobody uses", "%", [found["cpu"]])
        yield session.figure("many.idle.rss", f"memory with {of} that nobody uses", "MiB", [found["rss"]])
        for name, path in (
            ("metrics", "/metrics"),
            ("topics", "/v1/topics"),
            ("page", "/v1/topics?limit=100"),
            ("groups", "/v1/groups"),
            ("cluster", "/v1/cluster"),
        ):
            times, nbytes = zip(*(_timed(service, path) for _ in range(5)), strict=True)
            yield session.figure(f"many.{name}.took", f"GET {path} with {of}", "ms", times, bytes=nbytes[-1])
            yield session.figure(f"many.{name}.bytes", f"GET {path} with {of}", "KB", [nbytes[-1] / 1e3])
    for job in ("merge", "compact", "retain", "verify"):
        began = time.perf_counter()
        run_job(job, str(folder / "warehouse"), {})
        yield session.figure(f"many.{job}", f"a run of {job} over {of}", "s", [time.perf_counter() - began])
