"""Requests that are measured: to log those that took long, and to make spans of traced ones (SPEC LOOK-13, LOOK-17).

request ──┬── neither slow requests are logged, nor is this one traced: to the application as it is
          └── measured: application ──► Times ──┬── a line in the log, if it took `service.slow_request_ms`
                                                 └── its spans
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from deltamq.api.log.metrics import Gauge
from deltamq.api.wire.answer import WRITE_WHOLE
from deltamq.api.wire.request import STEPS, WAITED, Receive, Scope, Send
from deltamq.api.wire.steps import CallTrace, Steps, Times
from deltamq.tables.config import Config
from deltamq.tables.settings import extra_missing

log = logging.getLogger("deltamq.api")

Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class RequestTrace(Protocol):
    """One traced request."""

    def end(self, scope: Scope, times: Times) -> None:
        """Make its spans."""


class Traces(Protocol):
    """Decides which requests are traced."""

    def begin(self, scope: Scope) -> RequestTrace | None:
        """Return the trace of a request; None for most."""

    def begin_call(self) -> CallTrace:
        """Begin a call of one of Kafka's clients, of which is not known yet whether it is traced."""

    def counters(self) -> Sequence[Gauge]:
        """Return what became of the spans, for `/metrics`."""

    def close(self) -> None:
        """Send the last spans; blocks for a bounded time."""


def traces_of(config: Config) -> Traces | None:
    """Return what traces requests; None if there is no collector.

    Raises
    ------
    Refused
        There is a collector, and OpenTelemetry is not installed.
    """
    url, share = config.service.traces_url, config.service.traces_sample
    if not url:
        return None
    try:
        from deltamq.api.traces import ServiceTraces
    except ImportError as error:
        raise extra_missing("service.traces_url", "otel", error) from error
    return ServiceTraces(url, share, cluster=config.warehouse.cluster)


class MeasuredRequests:
    """Measures requests; `app` handles them. `slow_s` is 0 if slow ones are not logged."""

    def __init__(self, app: Application, slow_s: float, traces: Traces | None) -> None:
        self._app = app
        self._slow_s = slow_s
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = None
        if scope["type"] == "http" and self._traces is not None:
            trace = self._traces.begin(scope)
        if scope["type"] != "http" or (trace is None and not self._slow_s):
            await self._app(scope, receive, send)
            return
        now_s = time.perf_counter()
        times = Times(Steps(), now_s, now_s, now_s, now_s)
        scope[STEPS] = times.steps
        scope.get("extensions", {}).pop(WRITE_WHOLE, None)  # it would pass `sent` by
        try:
            await self._app(scope, *_timed(times, receive, send))
        finally:
            times.ended_s = time.perf_counter()
            if not times.status:
                times.answer_s = times.ended_s
            if self._slow_s and times.ended_s - times.began_s >= self._slow_s and not scope.get(WAITED):
                _log_slow(scope, times)
            if trace is not None:
                trace.end(scope, times)


def _timed(times: Times, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def received() -> MutableMapping[str, Any]:
        message = await receive()
        if not times.status:
            times.body_s = time.perf_counter()
        return message

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            times.answer_s, times.status = time.perf_counter(), message["status"]
        await send(message)

    return received, sent


def _log_slow(scope: Scope, times: Times) -> None:
    """Log where the time of a request went. Times in which a call was to wait do not count."""
    more = "".join(f" {name}_ms={seconds * 1_000:.0f}" for name, seconds in times.steps.longest_s().items())
    log.warning(
        "event=slow_request method=%s path=%r status=%d ms=%.0f body_ms=%.0f work_ms=%.0f%s answer_ms=%.0f",
        scope["method"],
        scope["raw_path"].decode("ascii", "replace"),
        times.status,
        (times.ended_s - times.began_s) * 1_000,
        (times.body_s - times.began_s) * 1_000,
        (times.answer_s - times.body_s) * 1_000,
        more,
        (times.ended_s - times.answer_s) * 1_000,
    )
