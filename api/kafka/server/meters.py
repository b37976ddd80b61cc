"""What the door's calls took, and which errors it answered, for /metrics (SPEC LOOK-11)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.log.metrics import Histogram, histogram_family

_CODE: Final = "error_code"
_Count: TypeAlias = Callable[[Any, Counter[int]], None]


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
        count_errors(answer, self._errors)

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


def count_errors(answer: Message | None, errors: Counter[int]) -> None:
    """Add the errors in an answer, by code."""
    count = None if answer is None else _counting(type(answer))
    if count is not None:
        count(answer, errors)


@functools.cache
def _counting(kind: type[Message]) -> _Count | None:
    """Return what counts the errors in an answer, or in a structure of it; None if it has none."""
    hints = get_type_hints(kind)
    has_code = _CODE in hints
    elements = {name: element for name, hint in hints.items() if (element := _element(hint)) is not None}
    inner = [(name, count) for name, element in elements.items() if (count := _counting(element)) is not None]
    if not has_code and not inner:
        return None

    def count_in(message: Any, errors: Counter[int]) -> None:
        if has_code and message.error_code:
            errors[message.error_code] += 1
        for name, count in inner:
            for one in getattr(message, name) or ():
                count(one, errors)

    return count_in


def _element(hint: Any) -> type[Message] | None:
    """Return the structure of which a field has a list, which may be null; None for other fields."""
    for option in (hint, *get_args(hint)):
        if get_origin(option) is list and isinstance(kind := get_args(option)[0], type) and issubclass(kind, Message):
            return kind
    return None
