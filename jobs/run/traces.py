"""A span for each run of a job that did something, sent to a collector as OTLP: `jobs.traces_url` (SPEC LOOK-17).

A run that had nothing to do is no span: jobs look several times a second. Needs the extra `otel`; imported only if a
setting names a collector.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode

from deltamq.tables.config_sections import traces_endpoint
from deltamq.tables.ops.job_runs import LastRun

#: Seconds for one request to the collector with its repetitions.
_SEND_S: Final = 5
#: Most spans that wait; the oldest are dropped.
_SPANS_MAX: Final = 512
_SECOND_NS: Final = 1_000_000_000


class RunTraces:
    """Makes the spans of one application's runs. Safe on several threads."""

    def __init__(self, url: str, *, cluster: str) -> None:
        # Its lines about a collector that is away would come with each request.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=traces_endpoint(url), timeout=_SEND_S)
        resource = {"service.name": "deltamq-jobs", "service.namespace": cluster}
        resource |= {"host.name": socket.gethostname(), "process.pid": str(os.getpid())}
        self._provider = TracerProvider(resource=Resource.create(resource), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, _SPANS_MAX, max_export_batch_size=_SPANS_MAX))
        self._tracer = self._provider.get_tracer("deltamq.jobs")

    def ran(self, run: LastRun) -> None:
        """Make the span of a run that moved something, or failed."""
        if run.ok and not run.facts.get("rows"):
            return
        began_ns = round(run.started_at.timestamp() * _SECOND_NS)
        facts = {f"deltamq.job.{name}": value for name, value in run.facts.items()}
        about = {"deltamq.job.name": run.job, "deltamq.job.shards": list(run.shards), **facts}
        span = self._tracer.start_span(f"job {run.job}", attributes=about, start_time=began_ns)
        if not run.ok:
            span.set_status(Status(StatusCode.ERROR, run.detail))
        span.end(began_ns + round(run.seconds * _SECOND_NS))

    def close(self) -> None:
        """Send the last spans, for a few seconds at most."""
        self._provider.shutdown()
