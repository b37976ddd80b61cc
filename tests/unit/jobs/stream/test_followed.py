"""What a stream's planner knows between batches, and how often it looks (SPARK-2)."""

from __future__ import annotations

from deltamq.jobs.read.options import Mode, parse_options
from deltamq.jobs.stream.followed import FollowedTopics
from deltamq.tables.store.store import MemoryStore
from tests.queue_tables import QueueTables
from tests.set_clock import SetClock

PATTERN = parse_options({"subscribePattern": "t.*"}, warehouse="unused", mode=Mode.STREAM)


class _FarStore(MemoryStore):
    """A store in which each look is a request."""

    cheap_look = False


def test_spark_02_a_store_that_is_far_away_is_looked_at_once_a_second() -> None:
    store, clock = _FarStore(), SetClock()
    tables = QueueTables("unused", store=store)
    topic = tables.topic("t", partitions=3)
    followed = FollowedTopics(PATTERN, clock=clock, store=store)
    followed.refresh()
    tables.send(topic, "a", partition=1)
    assert not followed.is_due
    assert not followed.wait_for_news(clock.boot_ms() + 1)
    assert [one.end_offset for one in followed.partitions.values()] == [0, 0, 0]
    clock.advance_ms(1_200)
    assert followed.is_due
    assert followed.wait_for_news(clock.boot_ms() + 200)
    assert [one.end_offset for one in followed.partitions.values()] == [0, 1, 0]


def test_look_25_a_stream_that_finds_nothing_on_an_object_store_looks_seldomer() -> None:
    store, clock = _FarStore(), SetClock()
    tables = QueueTables("unused", store=store)
    topic = tables.topic("t")
    followed = FollowedTopics(PATTERN, clock=clock, store=store)
    tables.send(topic, "a")
    assert followed.refresh()

    def looks_after_ms() -> int:
        began = clock.boot_ms()
        while not followed.is_due:
            clock.advance_ms(100)
        return clock.boot_ms() - began

    waits = []
    for _ in range(12):
        waits.append(looks_after_ms())
        assert not followed.refresh()
    assert (waits[0], waits[-1]) == (1_000, 2_000) and waits == sorted(waits)
    tables.send(topic, "b")
    assert looks_after_ms() == 2_000
    assert followed.refresh() and looks_after_ms() == 1_000


def test_spark_02_a_near_store_is_looked_at_whenever_it_is_asked_for() -> None:
    store, clock = MemoryStore(), SetClock()
    tables = QueueTables("unused", store=store)
    topic = tables.topic("t")
    followed = FollowedTopics(PATTERN, clock=clock, store=store)
    tables.send(topic, "a")
    assert followed.is_due
    assert followed.wait_for_news(clock.boot_ms() + 200)
    assert not followed.refresh()


def test_spark_02_logs_stay_open_when_other_topics_come_and_go() -> None:
    store, clock = MemoryStore(), SetClock()
    tables = QueueTables("unused", store=store)
    kept, gone = tables.topic("t1"), tables.topic("t2")
    followed = FollowedTopics(PATTERN, clock=clock, store=store)
    before = followed.partitions["t1", "t1@broker-a"]
    tables.delete_topic(gone)
    tables.topic("t3")
    tables.group("someone")
    assert followed.refresh()
    assert [topic for topic, _ in followed.partitions] == ["t1", "t3"]
    assert followed.partitions["t1", "t1@broker-a"] is before
    assert (followed.topic_id("t1"), followed.topic_id("t2")) == (kept.id, None)
