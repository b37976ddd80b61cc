"""Spans in memory, for tests: a tracer provider of their own, and what it has recorded."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

__all__ = ["Recorded", "traceparent_of"]


class Recorded:
    """A tracer provider, and the spans that it has ended."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the ended spans, or those of this name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if name is None or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    @property
    def names(self) -> Sequence[str]:
        return sorted(span.name for span in self.spans())


def traceparent_of(span: ReadableSpan) -> str:
    """Return the header that names a span."""
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
