"""A topic's settings, and the request that sets them.

A setting is checked where it is asked for (`PUT /v1/topics/{topic}`). It is read back without its bounds, so that a
release with other bounds can still start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mq.limits import RETENTION_MS_DEFAULT

__all__ = ["FlushMode", "OrderStrategy", "TopicRequest", "TopicSettings"]

OrderStrategy = Literal["best_tried", "strict"]
FlushMode = Literal["sync", "async"]


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

    def over(self, settings: TopicSettings) -> TopicSettings:
        """`settings` with everything that this request gives."""
        return TopicSettings(
            order_strategy=self.order_strategy or settings.order_strategy,
            retention_ms=self.retention_ms or settings.retention_ms,
            message_type=self.message_type or settings.message_type,
            flush=self.flush or settings.flush,
        )
