"""What has stopped, and why: partitions whose data contradicts itself, and the metadata log (SPEC RELY-10).

A partition that stops harms no other, so a process with stopped partitions is still ready. One whose metadata log has
stopped is not: its lease ends, and it acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deltamq.mq.errors import DeltaMQError
from deltamq.mq.static.logical_queue import ShownPlace
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A partition that refuses all calls; `queue` is the logical queue that it is a segment of, if it is one."""

    space: str
    topic: str
    partition: str
    queue: str | None
    code: str
    detail: str


class Stops:
    """What this process found stopped; used on the event loop."""

    def __init__(
        self,
        warehouse: Warehouse,
        meta: Callable[[], DeltaMQError | None],
        place_of: Callable[[str, str], ShownPlace | None],
    ) -> None:
        """`meta` returns why the metadata log has stopped; `place_of` a partition's place in a static topic."""
        self._warehouse = warehouse
        self._meta = meta
        self._place_of = place_of

    @property
    def partitions(self) -> int:
        """The number of stopped partitions, the queue's own logs among them."""
        return len(self._warehouse.stopped)

    @property
    def is_metadata_stopped(self) -> bool:
        """Whether the metadata log is stopped."""
        return self._meta() is not None

    def _queue_name(self, topic: str, partition: str) -> str | None:
        place = self._place_of(topic, partition)
        return None if place is None else place.name

    def all(self) -> list[Stopped]:
        """Return everything that has stopped, by space, topic and partition."""
        found = sorted(self._warehouse.stopped.items(), key=lambda one: (one[0].space.value, one[0].topic, one[0].name))
        return [
            Stopped(
                space=ref.space.value,
                topic=ref.topic,
                partition=ref.name,
                queue=self._queue_name(ref.topic, ref.name) if ref.space is Space.TOPICS else None,
                code=error.code,
                detail=error.detail,
            )
            for ref, error in found
        ]
