"""A collector for tests: takes OTLP over HTTP, decodes it by the protocol's own types, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

__all__ = ["OtlpReceiver", "ReceivedSpan"]


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it came over the wire; ids are hexadecimal."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any] = field(repr=False)
    #: The traces that it is linked to.
    links: list[str] = field(default_factory=list)


class OtlpReceiver:
    """The server, a context manager. While `status` is not 200, it refuses what it gets."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.paths: set[str] = set()
        self.status = 200
        self.refused = 0
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                receiver.take(self.path, ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(receiver.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        with self._changed:
            self.paths.add(path)
            if self.status == 200:
                self.spans += _spans(request)
            else:
                self.refused += 1
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), [span.name for span in self.spans]

    def of(self, trace_id: str) -> dict[str, list[ReceivedSpan]]:
        """Return the spans of a trace by name."""
        named: dict[str, list[ReceivedSpan]] = {}
        with self._changed:
            for span in self.spans:
                if span.trace_id == trace_id:
                    named.setdefault(span.name, []).append(span)
        return named


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            begin_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            is_error=span.status.code == span.status.STATUS_CODE_ERROR,
            attributes=_plain(list(span.attributes)),
            resource=_plain(list(of_resource.resource.attributes)),
            links=[link.trace_id.hex() for link in span.links],
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _plain(pairs: list[KeyValue]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}
