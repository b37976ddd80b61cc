"""RETRY-4: a waiting message is found by its id without reading the whole delay log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fetch import Fetched
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.queue.waiting import DUE_KEPT_MS, WaitingIndex
from deltamq.tables.schema import INTERNAL_SCHEMA
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.set_clock import SetClock

HOUR_MS = 3_600_000


@pytest.fixture
def log() -> Iterator[PartitionLog]:
    with opened() as found:
        yield found


@contextmanager
def opened() -> Iterator[PartitionLog]:
    """An empty delay partition."""
    warehouse = Warehouse.open("", store=MemoryStore(), settings=LogSettings(), clock=SetClock())
    yield warehouse.create(system_ref(DELAY, "deltamq", "broker-a"))
    warehouse.close()


def delay(log: PartitionLog, *messages: tuple[str, int], topic_id: str = "id-1") -> None:
    """Append messages by id and due time."""
    origin = {"topic": f"{topic_id}/orders", "partition": "orders@broker-a", "offset": -1}
    rows = [{"body": b"", "message_id": m, "deliver_time": ms * 1000, "origin": origin} for m, ms in messages]
    log.append([Batch(pa.RecordBatch.from_pylist(rows, schema=INTERNAL_SCHEMA))])


def found(
    index: WaitingIndex, log: PartitionLog, message_id: str, now_ms: int = 0, topic_id: str = "id-1"
) -> list[int]:
    return [one.offset for one in index.find(log, "orders", topic_id, message_id, now_ms)]


def test_retry_04_a_message_is_found_with_its_target(log: PartitionLog) -> None:
    delay(log, ("a", HOUR_MS), ("b", 2 * HOUR_MS))
    (one,) = WaitingIndex().find(log, "orders", "id-1", "b", 0)
    assert (one.delay_partition, one.offset, one.deliver_time_ms) == (log.ref.name, 1, 2 * HOUR_MS)
    assert (one.topic, one.topic_id, one.partition, one.message_id) == ("orders", "id-1", "orders@broker-a", "b")


def test_retry_04_the_index_follows_the_log(log: PartitionLog) -> None:
    index = WaitingIndex()
    assert found(index, log, "a") == []
    delay(log, ("a", HOUR_MS))
    assert found(index, log, "a") == [0]
    delay(log, ("b", HOUR_MS), ("a", HOUR_MS))
    assert (found(index, log, "a"), found(index, log, "b"), found(index, log, "c")) == ([0, 2], [1], [])


def test_pop_12_messages_of_another_life_of_the_topic_are_others(log: PartitionLog) -> None:
    delay(log, ("a", HOUR_MS), topic_id="id-0")
    delay(log, ("a", HOUR_MS), topic_id="id-1")
    index = WaitingIndex()
    assert (found(index, log, "a", topic_id="id-0"), found(index, log, "a", topic_id="id-1")) == ([0], [1])
    assert found(index, log, "a", topic_id="id-2") == []


class Counting:
    """A log that counts the rows that are read of it."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: int, *, max_messages: int, max_bytes: int, columns: Sequence[str] | None = None) -> Fetched:
        page = self._log.read(offset, max_messages=max_messages, max_bytes=max_bytes, columns=columns)
        self.rows += page.rows.num_rows
        return page


def test_a_search_reads_only_what_it_finds(log: PartitionLog) -> None:
    delay(log, *((f"m{i}", HOUR_MS) for i in range(5_000)))
    index, counting = WaitingIndex(), Counting(log)
    counted = cast(PartitionLog, counting)
    assert found(index, counted, "m17") == [17]
    assert counting.rows > 5_000, "all of it, once"
    counting.rows = 0
    assert found(index, counted, "m4711") == [4_711] and found(index, counted, "none") == []
    assert counting.rows == 1


def test_what_has_been_due_for_long_is_not_found_and_takes_no_room(log: PartitionLog) -> None:
    index = WaitingIndex()
    delay(log, *((f"m{i}", HOUR_MS) for i in range(100)), ("late", 10 * HOUR_MS))
    assert len(index) == 0 and found(index, log, "m1", HOUR_MS + DUE_KEPT_MS - 1) == [1]
    assert found(index, log, "m1", HOUR_MS + DUE_KEPT_MS) == []
    delay(log, *((f"n{i}", 10 * HOUR_MS) for i in range(100)))
    assert found(index, log, "late", HOUR_MS + DUE_KEPT_MS) == [100]
    assert len(index) == 101


def test_retry_06_an_index_that_is_made_late_begins_where_retention_left_off(log: PartitionLog) -> None:
    for message_id in "abc":
        delay(log, (message_id, HOUR_MS))
    index = WaitingIndex()
    log.delete_below(2)
    assert log.min_offset == 2
    assert (found(index, log, "a"), found(index, log, "c")) == ([], [2])
    behind = WaitingIndex()
    assert found(behind, log, "c") == [2]
    log.delete_below(3)
    assert found(behind, log, "c") == []


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(1, 40),
    st.data(),
)
def test_with_any_room_each_id_is_found(appends: list[list[str]], room: int, data: st.DataObject) -> None:
    """An index without room for all of them reads the rest of the log instead."""
    index, known = WaitingIndex(messages_max=room), list[str]()
    with opened() as log:
        for ids in appends:
            delay(log, *((one, HOUR_MS) for one in ids))
            known += ids
            wanted = data.draw(st.sampled_from("abcdefgh"))
            offsets = found(index, log, wanted)
            everywhere = [at for at, one in enumerate(known) if one == wanted]
            assert len(index) <= room
            assert offsets == everywhere[len(everywhere) - len(offsets) :] and bool(offsets) == bool(everywhere)
