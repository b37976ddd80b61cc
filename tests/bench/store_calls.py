"""What readers and jobs cost on an object store: the calls that each makes, which are what a store is paid for.

Counted, not timed: a fetch of what the service has in memory and of history, a reader that waits, one behind another
process, a pop with its acknowledgement, a run of each job, and Spark's readers, over ten partitions with a hundred
commits each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deltamq.jobs.setup.jars import S3A, jars_folder, wrong_jars
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.registry import bench
from tests.bench.service import Service, fetch_path, running_service
from tests.bench.session import Session
from tests.store_proxy import Counts, StoreProxy, store_proxy

__all__ = ["run_job"]

_PARTITIONS: Final = 10
_COMMITS: Final = 100
_FETCHES: Final = 20
_WAIT_S: Final = 20
_JOBS: Final = ("merge", "revive", "delay", "retain", "compact", "verify")
_PUTS: Final = ("PUT", "CONDITIONAL_PUT")
_OTHERS: Final = ("GET", "HEAD", "LIST", "DELETE")
#: Does what each line of its input names, and answers with a line.
_SPARK: Final = """
import sys
from deltamq.jobs.sql import spark_session
from deltamq.tables.config import load

uri, table, checkpoint = sys.argv[1:]
spark = spark_session("calls", conf=load(overrides={"warehouse.uri": uri}))
topic = spark.readStream.format("mq").option("topic", "bench").load()
queries = []


def stream():
    queries.append(topic.writeStream.format("noop").option("checkpointLocation", checkpoint).start())
    queries[0].processAllAvailable()


steps = {
    "started": lambda: None,
    "mq": lambda: spark.read.format("mq").option("topic", "bench").load().count(),
    "delta": lambda: spark.read.format("delta").load(table).count(),
    "stream": stream,
    "batch": lambda: queries[0].processAllAvailable(),
}
for line in sys.stdin:
    print("answer", steps[line.strip()](), flush=True)
"""


@bench("store.calls")
def calls(session: Session) -> Iterator[Figure]:
    """The calls of the store that readers and jobs make."""
    folder = session.fresh("store.calls")
    folders = [folder / name for name in ("one", "two")]
    for of_process in folders:
        of_process.mkdir()
    with store_proxy(folder / "store") as proxy:
        uri, environment = proxy.uri("bench"), proxy.environment()
        with running_service(folders[0], environment, warehouse=uri) as service:
            names = _filled(service)
            yield from _of_readers(session, proxy, service, names[0])
            with running_service(folders[1], environment, warehouse=uri) as other:
                yield from _of_a_follower(session, proxy, service, other, names[0])
            yield from _of_spark(session, proxy, service, names[0], (uri, environment, str(folder / "checkpoint")))
        for job in _JOBS:
            counts = _counted(proxy, partial(run_job, job, uri, environment))
            yield _noted(session, f"job.{job}", f"a run of the job {job}", 1, counts)


def _filled(service: Service) -> list[str]:
    names = service.make_topic("bench", _PARTITIONS)
    service.call("PUT", "/v1/groups/bench", {})

    def send(name: str) -> None:
        for _ in range(_COMMITS):
            service.call(
                "POST", f"/v1/topics/bench/messages?partition={quote(name)}", {"messages": [{"body": "x" * 100}] * 10}
            )

    with ThreadPoolExecutor(_PARTITIONS) as threads:
        list(threads.map(send, names))
    if sum(service.stored("bench").values()) != _PARTITIONS * _COMMITS * 10:
        raise LoadError("not all that was sent is stored")
    return names


def _of_readers(session: Session, proxy: StoreProxy, service: Service, name: str) -> Iterator[Figure]:
    def fetch(offset: int) -> None:
        for at in range(_FETCHES):
            service.call("GET", fetch_path("bench", name, offset=offset + at, max_messages=10))

    def pop() -> None:
        for _ in range(_FETCHES):
            taken = service.call("POST", "/v1/groups/bench/topics/bench/pop", {"max_messages": 1})
            service.call("POST", "/v1/groups/bench/ack", {"handles": [one["handle"] for one in taken["messages"]]})

    yield _noted(session, "fetch", "a fetch of ten messages", _FETCHES, _counted(proxy, lambda: fetch(0)))
    yield _noted(session, "pop", "a pop and its acknowledgement", _FETCHES, _counted(proxy, pop))
    yield _noted(
        session, "wait", "a second of a reader that waits", _WAIT_S, _counted(proxy, lambda: _wait(service, name))
    )


def _wait(service: Service, name: str) -> None:
    until = time.monotonic() + _WAIT_S
    end = service.stored("bench")[name]
    while (left_s := until - time.monotonic()) > 0:
        service.call("GET", fetch_path("bench", name, offset=end, wait_ms=min(10_000, int(1e3 * left_s) + 1)))


def _of_a_follower(
    session: Session, proxy: StoreProxy, service: Service, other: Service, name: str
) -> Iterator[Figure]:
    """A reader of another process, which has to see the commits of the owner."""

    def follow() -> None:
        end = service.stored("bench")[name]
        for at in range(_FETCHES):
            service.call("POST", f"/v1/topics/bench/messages?partition={quote(name)}", {"messages": [{"body": "x"}]})
            while not other.call("GET", fetch_path("bench", name, offset=end + at, wait_ms=10_000))["messages"]:
                pass

    yield _noted(
        session,
        "follow",
        "a message that a reader of another process awaits, its commit included",
        _FETCHES,
        _counted(proxy, follow),
    )


def _of_spark(
    session: Session, proxy: StoreProxy, service: Service, name: str, where: tuple[str, Mapping[str, str], str]
) -> Iterator[Figure]:
    """Spark's readers, after a first look of each: that one makes its connections and loads its classes."""
    uri, environment, checkpoint = where
    if not session.effort.spark:
        return
    if wrong_jars(jars_folder(), S3A):
        session.say("store.calls.spark: not measured, the jars for S3 are not there: make setup S3=1")
        return
    arguments = (uri, f"{uri.replace('s3://', 's3a://')}/topics/bench/{name}", checkpoint)
    with subprocess.Popen(
        [sys.executable, "-c", _SPARK, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as spark:

        def ask(step: str) -> None:
            assert spark.stdin is not None and spark.stdout is not None, "they are pipes"
            spark.stdin.write(f"{step}\n")
            spark.stdin.flush()
            while not (line := spark.stdout.readline()).startswith("answer"):
                if not line:
                    raise LoadError(f"Spark ended at the step {step}")

        def batch() -> None:
            service.call("POST", f"/v1/topics/bench/messages?partition={quote(name)}", {"messages": [{"body": "x"}]})
            ask("batch")

        def batches() -> None:
            for _ in range(_FETCHES):
                batch()

        for step in ("started", "mq", "delta"):
            ask(step)
        for step, said in (
            ("mq", 'a count of the topic by Spark, `format("mq")`'),
            ("delta", 'a count of one partition by Spark, `format("delta")`'),
            ("stream", "a stream's begin, and its first batch"),
        ):
            yield _noted(session, f"spark.{step}", said, 1, _counted(proxy, partial(ask, step)))
        batches()
        said = "a message that a stream of Spark awaits, its commit included"
        yield _noted(session, "spark.batch", said, _FETCHES, _counted(proxy, batches))
        # The length of the measurement; the service at rest is counted, too.
        idle = _counted(proxy, lambda: time.sleep(_WAIT_S))
        yield _noted(session, "spark.idle", "a second of a stream that finds nothing", _WAIT_S, idle)
        spark.kill()


def run_job(job: str, uri: str, environment: Mapping[str, str]) -> None:
    command = [str(Path(sys.executable).with_name("deltamq")), "jobs", "run", job, "--once", "--engine", "local"]
    ran = subprocess.run(
        [*command, "--warehouse", uri], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise LoadError(f"job {job} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")


def _counted(proxy: StoreProxy, work: Callable[[], None]) -> Counts:
    proxy.reset()
    work()
    return proxy.counts()


def _noted(session: Session, name: str, said: str, times: int, counts: Counts) -> Figure:
    of = {kind: counts.calls.get(kind, 0) / times for kind in (*_PUTS, *_OTHERS)}
    session.say(f"store.calls.{name}: " + ", ".join(f"{kind} {count:.3g}" for kind, count in of.items() if count))
    return session.figure(f"store.calls.{name}", f"object store: all calls of {said}", "", [sum(of.values())], **of)
