"""A topic's settings, and the request that sets them: the edge where they are checked.

A stored setting was checked when it was asked for. It is read back without its bounds, so that a release with
other bounds can still start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from mq.errors import Refused, Unprocessable
from mq.limits import MESSAGE_TYPE_LENGTH_MAX, RETENTION_MS_DEFAULT, RETENTION_MS_MAX, RETENTION_MS_MIN
from mq.request_values import string_or_none, whole_or_none

__all__ = ["FlushMode", "OrderStrategy", "TopicRequest", "TopicSettings"]

OrderStrategy = Literal["best_tried", "strict"]
FlushMode = Literal["sync", "async"]

_ORDER_STRATEGIES: Final[tuple[str, ...]] = get_args(OrderStrategy)
_FLUSH_MODES: Final[tuple[str, ...]] = get_args(FlushMode)
# Fields of `PUT /v1/topics/{topic}` that belong to static topics (SPEC STATIC).
_STATIC_FIELDS: Final = ("static", "total_queues", "brokers")
_FIELDS: Final = frozenset({"partitions", "order_strategy", "retention_ms", "message_type", "flush", "static"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What users may set for a topic, whatever its route; what a stored one lacks has its default."""

    #: What a failed send may do to the order (SPEC SEND-2).
    order_strategy: OrderStrategy = "best_tried"
    #: Messages live this long (SPEC RETRY-6).
    retention_ms: int = RETENTION_MS_DEFAULT
    #: A word of the users' own about what the topic carries; DeltaMQ only shows it.
    message_type: str = "normal"
    #: What an acknowledgement waits for; None is the service's own setting.
    flush: FlushMode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """What a client asks a topic to be. None leaves a setting as it is; a new topic gets its default."""

    partitions: int | None = None
    order_strategy: OrderStrategy | None = None
    retention_ms: int | None = None
    message_type: str | None = None
    flush: FlushMode | None = None

    def __post_init__(self) -> None:
        """Refuse values that break a rule; the number of partitions is the route's to judge."""
        _check_word("order_strategy", self.order_strategy, _ORDER_STRATEGIES)
        _check_word("flush", self.flush, _FLUSH_MODES)
        _check_retention(self.retention_ms)
        _check_message_type(self.message_type)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TopicRequest:
        """The request of a JSON object (`PUT /v1/topics/{topic}`); null is the same as no field.

        Raises
        ------
        Refused
            `unknown_field`, or `invalid_type` for a value of another type; `field` names it.
        Unprocessable
            `static_topics_unavailable`, or `invalid_value` for a value out of bounds.
        """
        given = {name: item for name, item in value.items() if item is not None}
        _refuse_static(given)
        for name in given:
            if name not in _FIELDS:
                raise Refused(f"a topic has no field {name!r}", code="unknown_field", field=name)
        return cls(
            partitions=whole_or_none(given, "partitions"),
            order_strategy=cast(OrderStrategy | None, string_or_none(given, "order_strategy")),
            retention_ms=whole_or_none(given, "retention_ms"),
            message_type=string_or_none(given, "message_type"),
            flush=cast(FlushMode | None, string_or_none(given, "flush")),
        )

    def over(self, settings: TopicSettings) -> TopicSettings:
        """`settings` with everything that this request gives."""
        return TopicSettings(
            order_strategy=self.order_strategy or settings.order_strategy,
            retention_ms=self.retention_ms or settings.retention_ms,
            message_type=self.message_type or settings.message_type,
            flush=self.flush or settings.flush,
        )


def _refuse_static(given: Mapping[str, object]) -> None:
    for name in _STATIC_FIELDS:
        if given.get(name, False) is not False:
            raise Unprocessable(
                f"`{name}` asks for a static topic, and this service has no static topics yet",
                code="static_topics_unavailable",
                field=name,
            )


def _check_word(name: str, value: str | None, words: tuple[str, ...]) -> None:
    if value is not None and value not in words:
        raise Unprocessable(f"{name} must be {' or '.join(words)}", field=name)


def _check_retention(value: int | None) -> None:
    if value is not None and not RETENTION_MS_MIN <= value <= RETENTION_MS_MAX:
        raise Unprocessable(
            f"retention_ms must be {RETENTION_MS_MIN} to {RETENTION_MS_MAX}",
            field="retention_ms",
            extra={"min": RETENTION_MS_MIN, "max": RETENTION_MS_MAX},
        )


def _check_message_type(value: str | None) -> None:
    if value is not None and not (0 < len(value) <= MESSAGE_TYPE_LENGTH_MAX and value.isprintable()):
        raise Unprocessable(
            f"message_type must be 1 to {MESSAGE_TYPE_LENGTH_MAX} printable characters",
            field="message_type",
            extra={"limit": MESSAGE_TYPE_LENGTH_MAX},
        )
