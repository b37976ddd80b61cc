"""Metrics of an application of jobs for Prometheus, and whether it is well: `jobs run --metrics-port` (SPEC LOOK-7).

    each run --ran--> counters --GET /metrics--> Prometheus
                      last run of each job --GET /readyz--> 200 ready, degraded or standby; 503 failing

The process's own memory, processor time and open files are metrics of the library.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from deltamq.jobs.tasks.warehouses import store_calls
from deltamq.mq.errors import Unavailable
from deltamq.mq.release import release
from deltamq.tables.ops.job_runs import LastRun

_JOB: Final = ("job",)
#: Upper bounds in seconds, from a look that finds nothing to an hour of compaction.
_BUCKETS_S: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 3_600.0)
_JSON: Final = ("Content-Type", "application/json")


class _StoreCalls(Collector):
    """Calls of object stores by this process; not those of Spark's JVM and of tasks."""

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("deltamq_store_requests", "Calls of the object store.", labels=["operation"])
        nbytes = CounterMetricFamily("deltamq_store_bytes", "Bytes put or got by them.", labels=["operation"])
        failures = CounterMetricFamily(
            "deltamq_store_failures", "Those that failed, or were late and given up.", labels=["operation"]
        )
        stores = store_calls()
        for operation in sorted({operation for store in stores for operation in store.calls}):
            requests.add_metric([operation], sum(store.calls[operation].requests for store in stores))
            failures.add_metric([operation], sum(store.failures[operation] for store in stores))
            nbytes.add_metric([operation], sum(store.calls[operation].bytes for store in stores))
        yield from (requests, failures, nbytes)


class Meters:
    """What the runs of this application did. Safe on several threads: each job runs on its own."""

    def __init__(self, jobs: Sequence[str]) -> None:
        registry = self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        build = Gauge("deltamq_build_info", "The release, always 1.", ("version",), registry=registry)
        build.labels(release()).set(1)
        self._runs = Counter("deltamq_job_runs", "Runs that ended.", ("job", "outcome"), registry=registry)
        self._seconds = Histogram(
            "deltamq_job_run_seconds", "Time of a run.", _JOB, registry=registry, buckets=_BUCKETS_S
        )
        self._rows = Counter("deltamq_job_rows", "Rows that runs moved, merged or removed.", _JOB, registry=registry)
        self._ok_at = Gauge(
            "deltamq_job_last_success_timestamp_seconds", "Start of the last good run.", _JOB, registry=registry
        )
        self._behind = Gauge(
            "deltamq_job_behind_seconds",
            "How long what is due has waited, after the last run.",
            _JOB,
            registry=registry,
        )
        self._failures = Gauge("deltamq_job_failures", "Failed runs since the last good one.", _JOB, registry=registry)
        self._shards = Gauge("deltamq_job_shards", "Shards in the last run here.", _JOB, registry=registry)
        registry.register(_StoreCalls())
        self._errors: dict[str, str | None] = {}
        self._lock = threading.Lock()
        for job in jobs:
            for outcome in ("ok", "failed"):
                self._runs.labels(job, outcome)
            self._failures.labels(job).set(0)
            self._shards.labels(job).set(0)

    def ran(self, run: LastRun) -> None:
        """Count a run that ended."""
        job = run.job
        self._runs.labels(job, "ok" if run.ok else "failed").inc()
        self._seconds.labels(job).observe(run.seconds)
        self._shards.labels(job).set(len(run.shards))
        rows, behind_ms = run.facts.get("rows"), run.facts.get("behind_ms")
        if isinstance(rows, int):
            self._rows.labels(job).inc(rows)
        if isinstance(behind_ms, int):
            self._behind.labels(job).set(behind_ms / 1_000)
        if run.ok:
            self._ok_at.labels(job).set(run.started_at.timestamp())
            self._failures.labels(job).set(0)
        else:
            self._failures.labels(job).inc()
        with self._lock:
            self._errors[job] = None if run.ok else run.detail

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether some job is well, or none has run here, and what `/readyz` answers."""
        with self._lock:
            errors = dict(self._errors)
        failing = {job: error for job, error in errors.items() if error is not None}
        if not errors:
            return True, {"status": "standby", "failing": {}}
        if len(failing) == len(errors):
            return False, {"status": "failing", "failing": failing}
        return True, {"status": "degraded" if failing else "ready", "failing": failing}


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Logs nothing: a scrape every few seconds is no news."""

    timeout = 30  # a client that says nothing does not keep its thread

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def serving(meters: Meters, host: str, port: int) -> Iterator[int]:
    """Serve `/metrics` and `/readyz`; yields the port, which the system chooses if `port` is 0.

    Raises
    ------
    Unavailable
        `port_in_use`, or another error of the address.
    """
    try:
        server = make_server(host, port, _answering(meters), server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        detail = f"jobs.metrics_port: {host}:{port} cannot be opened ({error.strerror}): give another --metrics-port"
        raise Unavailable(detail, code="port_in_use", field="jobs.metrics_port") from error
    thread = threading.Thread(target=server.serve_forever, name="mq-jobs-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answering(meters: Meters) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(meters.registry)

    # The library adds headers to the list that it gets, so each answer has its own.
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start)
        if path in ("/readyz", "/healthz"):
            is_well, shown = meters.readiness()
            start("200 OK" if is_well or path == "/healthz" else "503 Service Unavailable", [_JSON])
            return [msgspec.json.encode(shown)]
        start("404 Not Found", [_JSON])
        return [b'{"code":"not_found","detail":"there are /metrics, /readyz and /healthz"}']

    return answer
