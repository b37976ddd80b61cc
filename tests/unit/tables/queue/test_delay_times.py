"""What is due in a delay log is found by the statistics of its files, and by nobody's memory (SPEC RETRY-4)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.delay import Ended
from deltamq.tables.delta.reader import RowCache
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.delay_marks import DelayMarks
from deltamq.tables.queue.delay_times import DeliverTimes
from deltamq.tables.queue.refs import DELAY, system_ref
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.queue_tables import BROKER, CLUSTER, QueueTables


@pytest.fixture
def tables() -> Iterator[QueueTables]:
    with closing(QueueTables("delayed", MemoryStore())) as made:
        yield made


def _log(tables: QueueTables) -> PartitionLog:
    log = tables.warehouse.open_partition(system_ref(DELAY, CLUSTER, BROKER))
    log.refresh()
    return log


def _marks(tables: QueueTables) -> DelayMarks:
    marks = DelayMarks(tables.warehouse, CLUSTER, BROKER)
    marks.refresh()
    return marks


def _topic(tables: QueueTables) -> Topic:
    return tables.topic()


def test_a_file_says_between_which_times_its_messages_are_delivered(tables: QueueTables) -> None:
    tables.delay(_topic(tables), ("a", 1_500), ("b", 90_001))
    tables.send(_topic(tables), "now")
    (file,) = _log(tables).files
    stats = json.loads(file.stats)
    assert stats["minValues"]["deliver_time"] == "1970-01-01T00:00:01.500Z"
    assert stats["maxValues"]["deliver_time"] == "1970-01-01T00:01:30.001Z"
    assert stats["nullCount"]["deliver_time"] == 0
    (other,) = tables.log(_topic(tables)).files
    assert "deliver_time" not in other.stats, "a message that is not delayed costs nothing"


@pytest.mark.promise("JOB-19")
@pytest.mark.parametrize(
    ("seed", "cache_bytes"),
    [
        pytest.param(seed, cache_bytes, marks=[] if seed == number else pytest.mark.long)
        for number, cache_bytes in enumerate([0, 2_000, 1 << 20])
        for seed in range(3)
    ],
)
def test_retry_04_what_is_due_is_what_has_its_time_and_has_not_ended(
    tables: QueueTables, seed: int, cache_bytes: int
) -> None:
    """Whatever is rolled up meanwhile, by others, too, and whatever has ended."""
    drawn = random.Random(seed)
    topic, now_ms = _topic(tables), 0
    found = DeliverTimes(RowCache(cache_bytes))
    other = Warehouse.open("delayed", store=tables.warehouse.store, settings=LogSettings(rollup_files=3))
    times: dict[int, int] = {}
    ended: set[int] = set()
    for turn in range(30):
        messages = [(f"{turn}-{at}", now_ms + drawn.randint(-5, 60)) for at in range(drawn.randint(1, 9))]
        times.update(zip(tables.delay(topic, *messages), (at for _, at in messages), strict=True))
        if drawn.random() < 0.3:
            other.open_partition(system_ref(DELAY, CLUSTER, BROKER)).refresh()
            other.open_partition(system_ref(DELAY, CLUSTER, BROKER)).maintain()
        due_times, offsets = found.due(_log(tables), _marks(tables), now_ms)
        expected = sorted((at, offset) for offset, at in times.items() if at <= now_ms and offset not in ended)
        assert list(zip(due_times.tolist(), offsets.tolist(), strict=True)) == expected
        if not expected:
            next_ms = found.next_due_ms(_log(tables), _marks(tables), now_ms)
            waiting = [at for offset, at in times.items() if offset not in ended]
            assert (next_ms is None) == (not waiting)
            assert next_ms is None or now_ms < next_ms <= min(waiting)
        over = [offset for _, offset in expected if drawn.random() < 0.7]
        for offset in over:
            tables.mark(_ended(offset))
        ended.update(over)
        now_ms += drawn.randint(0, 10)
    other.close()
    assert ended


def _ended(offset: int) -> Ended:
    return Ended(system_ref(DELAY, CLUSTER, BROKER).name, ((offset, offset + 1),))


def test_retry_04_files_in_which_nothing_is_due_or_all_has_ended_are_not_opened(tables: QueueTables) -> None:
    topic = _topic(tables)
    tables.delay(topic, ("over", 10))
    tables.delay(topic, ("far", 90_000))
    tables.mark(_ended(0))
    with closing(Warehouse.open("delayed", store=tables.warehouse.store)) as fresh:
        log = fresh.open_partition(system_ref(DELAY, CLUSTER, BROKER))
        marks = _marks(tables)
        for file in log.files:
            tables.warehouse.store.delete(f"{log.ref.folder}/{file.path}")
        times, _ = DeliverTimes(RowCache(0)).due(log, marks, 50_000)
        assert len(times) == 0
