"""Retention under groups that pop in order: what is leased stays, and what is lost, and no more, is told (POP-12)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from deltamq.mq.limits import RETENTION_MS_DEFAULT
from deltamq.tables.config_sections import RetentionSettings
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import Space
from deltamq.tables.queue.records import lost_records_of
from deltamq.tables.queue.refs import LOST, system_ref
from deltamq.tables.queue.retention import Retention
from tests.api.queue_calls import Queue, queue_in

HOUR = 3_600_000
BOTH = pytest.mark.parametrize("order", [True, "key"])
ALL = pytest.mark.parametrize("order", [False, True, "key"])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Messages are kept for a minute, each in a file of its own."""
    with queue_in(tmp_path / "warehouse") as found:
        found.topic(retention_ms=60_000)
        yield found


def _send(queue: Queue, *bodies: str) -> None:
    for body in bodies:
        queue.send(body, key=body)


def _retain(queue: Queue) -> tuple[int, tuple[str, ...]]:
    """Run retention as another process does: how many of the topic's messages went, and who held others back."""
    warehouse = Warehouse.open(str(queue.folder), clock=queue.clock)
    with contextlib.closing(warehouse):
        retention = Retention(warehouse, RetentionSettings(), queue.config.warehouse.cluster)
        found = list(retention.run(queue.config.service.brokers, queue.clock.wall_us()))
    (topic,) = [one for one in found if one.ref.space is Space.TOPICS]
    return topic.removed.messages, topic.held_by


def _lost(queue: Queue) -> list[tuple[str, tuple[tuple[int, int], ...], str]]:
    rows = queue.rows(system_ref(LOST, "deltamq", "broker-a"))
    found = lost_records_of(pa.Table.from_pylist(rows)) if rows else []
    return [(one.lane.group, one.ranges, one.reason.value) for one in found]


@pytest.mark.promise("KEEP-3")
@BOTH
@pytest.mark.parametrize("taken_over", [False, True])
def test_pop_11_what_is_leased_in_order_stays(queue: Queue, order: object, taken_over: bool) -> None:
    _send(queue, "a", "b", "c", "d")
    billing = queue.group("billing", order=order)
    found = billing.pop(4, invisible_ms=HOUR)
    billing.ack([found.handles[0], found.handles[2]])
    queue.advance(2 * 60_000)
    assert _retain(queue) == (1, ("billing",)), "a is done, and nothing goes from b on"
    if taken_over:
        queue.crash()
        billing = queue.consumer("billing")
    queue.advance(HOUR)
    assert _retain(queue) == (0, ("billing",)), "nobody had the time to ask again"
    again = billing.pop(4)
    assert again.bodies == ["b", "d"]
    assert billing.ack(again.handles) == {}
    assert _lost(queue) == []
    assert _retain(queue) == (3, ())


@pytest.mark.promise("KEEP-4")
@BOTH
def test_pop_12_what_was_acknowledged_is_not_among_the_lost(queue: Queue, order: object) -> None:
    _send(queue, "a", "b", "c", "d")
    billing = queue.group("billing", order=order)
    found = billing.pop(4, invisible_ms=10_000)
    billing.ack([found.handles[1], found.handles[3]])
    _send(queue, "e")
    queue.advance(RETENTION_MS_DEFAULT + 10_000)
    assert _retain(queue) == (5, ()), "nobody consumes: it is kept for as long as a retry is"
    _send(queue, "f")
    assert billing.pop(4).bodies == ["f"]
    assert _lost(queue) == [("billing", ((0, 1), (2, 3), (4, 5)), "retention")]


@pytest.mark.promise("KEEP-4")
@ALL
def test_pop_12_what_retention_took_is_recorded_whatever_the_order(queue: Queue, order: object) -> None:
    _send(queue, "a", "b", "c")
    billing = queue.group("billing", order=order)
    billing.ack(billing.pop(1).handles)
    queue.settle()
    queue.advance(2 * 60_000)
    assert _retain(queue) == (3, ())
    _send(queue, "d")
    assert billing.pop(4).bodies == ["d"]
    assert _lost(queue) == [("billing", ((1, 3),), "retention")]
