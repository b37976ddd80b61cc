"""What the door's calls took, and which errors it answered, for /metrics (SPEC LOOK-11)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.log.metrics import Histogram, histogram_family

_CODE: Final = "error_code"


class KafkaMeters:
    """Counts answers; used on the event loop."""

    def __init__(self, connections: Callable[[], int]) -> None:
        """`connections` returns how many are open."""
        self._connections = connections
        self._seconds: dict[str, Histogram] = {}
        self._errors: Counter[int] = Counter()

    def answered(self, call: str, seconds: float, answer: Message | None) -> None:
        """Count an answer, None if the client wanted none or the call failed; a fetch's seconds are its wait, too."""
        histogram = self._seconds.get(call)
        if histogram is None:
            histogram = self._seconds[call] = Histogram()
        histogram.observe(seconds)
        if answer is not None:
            self._errors.update(_codes(answer))

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield GaugeMetricFamily("deltamq_kafka_connections", "Open connections.", value=self._connections())
        text = "From a whole request to its answer, a fetch's wait included."
        by_call: dict[tuple[str, ...], Histogram] = {(call,): histogram for call, histogram in self._seconds.items()}
        yield histogram_family("deltamq_kafka_request_seconds", text, ["call"], by_call)
        errors = CounterMetricFamily("deltamq_kafka_errors", "Errors in answers, by Kafka's name.", labels=["error"])
        for code, count in self._errors.items():
            errors.add_metric([ErrorCode(code).name], count)
        yield errors


class _Shape(NamedTuple):
    """Where the errors of an answer, or of a structure in it, are."""

    has_code: bool
    #: Its lists of structures with errors.
    lists: tuple[str, ...]


@functools.cache
def _shape(kind: type[Message]) -> _Shape:
    hints = get_type_hints(kind)
    lists = [name for name, hint in hints.items() if (element := _element(hint)) is not None and any(_shape(element))]
    return _Shape(_CODE in hints, tuple(lists))


def _element(hint: Any) -> type[Message] | None:
    """Return the structure of which a field has a list, which may be null; None for other fields."""
    for option in (hint, *get_args(hint)):
        if get_origin(option) is list and isinstance(kind := get_args(option)[0], type) and issubclass(kind, Message):
            return kind
    return None


def _codes(message: Message) -> Iterator[int]:
    """Yield the errors in an answer."""
    shape = _shape(type(message))
    if shape.has_code and (code := getattr(message, _CODE)):
        yield code
    for name in shape.lists:
        for one in getattr(message, name) or ():
            yield from _codes(one)
