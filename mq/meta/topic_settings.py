"""A topic's settings, and the request that sets them.

A setting is checked when it is requested (`PUT /v1/topics/{topic}`). Stored settings are read without a check of their
bounds, so that a release with other bounds can still start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mq.limits import RETENTION_MS_DEFAULT
from mq.partitioners import Partitioner

__all__ = ["FlushMode", "OrderStrategy", "TopicRequest", "TopicSettings"]

OrderStrategy = Literal["best_tried", "strict"]
FlushMode = Literal["sync", "async"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that users may change; a field that is not stored has its default."""

    #: Whether a failed send may break the order (SPEC SEND-2).
    order_strategy: OrderStrategy = "best_tried"
    #: How long messages are kept (SPEC RETRY-6).
    retention_ms: int = RETENTION_MS_DEFAULT
    #: The users' own word for the messages of the topic; DeltaMQ only shows it.
    message_type: str = "normal"
    #: What an acknowledgement waits for; None means the setting of the service.
    flush: FlushMode | None = None
    #: By which hash keys go to partitions (SPEC KAFKA-12); set when the topic is made, and never changed.
    partitioner: Partitioner = "lp"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A request for topic settings. None leaves a setting unchanged; a new topic gets the default."""

    partitions: int | None = None
    #: All partitions in route order, given by hand (SPEC ROUTE-8).
    routes: tuple[str, ...] | None = None
    order_strategy: OrderStrategy | None = None
    retention_ms: int | None = None
    message_type: str | None = None
    flush: FlushMode | None = None
    partitioner: Partitioner | None = None

    def over(self, settings: TopicSettings) -> TopicSettings:
        """Return `settings` with the changes of this request."""
        return TopicSettings(
            order_strategy=self.order_strategy or settings.order_strategy,
            retention_ms=self.retention_ms or settings.retention_ms,
            message_type=self.message_type or settings.message_type,
            flush=self.flush or settings.flush,
            partitioner=self.partitioner or settings.partitioner,
        )
