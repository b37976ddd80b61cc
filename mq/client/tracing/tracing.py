"""Whether a client makes spans: once its application has a tracer provider, and not before (SPEC LOOK-15).

    sends, handlers ──► Tracing.spans ──┬── None: no provider; nothing else is done
                                        └── Spans: `deltamq.mq.client.tracing.spans`, which alone knows OpenTelemetry

An application that has set a provider has imported OpenTelemetry, so this package never imports it first. Without it
a send or a handler pays for one look into a dictionary.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import Spans, TracerProvider

#: The module through which an application sets its tracer provider.
_API: Final = "opentelemetry.trace"
_SPANS: Final = "deltamq.mq.client.tracing.spans"


class Tracing:
    """The spans of one client. Safe for any number of threads.

    Parameters
    ----------
    provider
        Makes the spans; None for the application's, which may be set at any time.
    """

    __slots__ = ("_host", "_port", "_provider", "_spans")

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._host, self._port = "", 0
        self._spans: Spans | None = None

    def at(self, host: str, port: int) -> None:
        """Let spans name this service: the first process that the client was given."""
        self._host, self._port = host, port

    @property
    def spans(self) -> Spans | None:
        """What makes spans; None as long as there is no tracer provider."""
        if self._spans is None and (_API in sys.modules or self._provider is not None):
            provider = self._provider or import_module(_SPANS).application_provider()
            if provider is not None:
                self._spans = import_module(_SPANS).Spans(provider, host=self._host, port=self._port)
        return self._spans
