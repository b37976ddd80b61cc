"""From when the files of a delay log age, and what of them is read for it (SPEC RETRY-6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import pytest
from msgspec.structs import replace

from deltamq.mq.audit import ActEnded
from deltamq.mq.errors import DeltaMQError
from deltamq.mq.history import HistoryRecord
from deltamq.mq.meta.retention_holds import Dated
from deltamq.mq.queue.delay import Ended
from deltamq.tables.config_sections import RetentionSettings
from deltamq.tables.delta.actions import DataFile
from deltamq.tables.log.batch import Batch
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.records import rows_of_audit, rows_of_history
from deltamq.tables.queue.refs import AUDIT, DELAY, HISTORY, system_ref
from deltamq.tables.queue.retention import Retention
from deltamq.tables.queue.retention_rules import Rules
from deltamq.tables.store.store import FileMissing, MemoryStore
from tests.queue_tables import BROKER, CLUSTER, QueueTables

REF = system_ref(DELAY, CLUSTER, BROKER)
SETTINGS = RetentionSettings()
ENDED = ActEnded(id="5f", time_ms=1, outcome="done", status=200, code="", detail="", events=(), before="", after="")


class Stored(msgspec.Struct, frozen=True):
    """A delay log of which only the newest state is loaded."""

    ref: PartitionRef
    files: Sequence[DataFile]


@pytest.fixture
def tables() -> Iterator[QueueTables]:
    with closing(QueueTables("delayed", MemoryStore())) as made:
        yield made


def _delayed(tables: QueueTables) -> tuple[DataFile, int]:
    """Return the file of two delayed messages that have ended, and the later of their deliver times."""
    last_ms = tables.warehouse.clock.wall_us() // 1_000 + 50_000
    tables.delay(tables.topic(), ("a", last_ms - 1_000), ("b", last_ms))
    tables.mark(Ended(REF.name, ((0, 2),)))
    log = tables.warehouse.open_partition(REF)
    log.refresh()
    (file,) = log.files
    return file, last_ms


def _aged(tables: QueueTables, file: DataFile, now_ms: int) -> list[Dated]:
    rules = Rules(tables.warehouse, SETTINGS, CLUSTER, [BROKER], tables.meta.meta, now_ms * 1_000)
    return list(rules.files(Stored(REF, [file]), now_ms * 1_000))


def test_the_last_deliver_time_comes_from_the_statistics_and_the_column_is_not_read(tables: QueueTables) -> None:
    file, last_ms = _delayed(tables)
    tables.warehouse.store.delete(f"{REF.folder}/{file.path}")
    assert _aged(tables, file, last_ms + SETTINGS.delayed_ms + 1) == [Dated(2, last_ms * 1_000)]


@pytest.mark.parametrize(
    "stats", ["", '{"numRecords":2}', '{"maxValues":{"deliver_time":"?"},"nullCount":{"deliver_time":0}}']
)
def test_the_last_deliver_time_is_read_if_the_statistics_lack_it(tables: QueueTables, stats: str) -> None:
    file, last_ms = _delayed(tables)
    now_ms, older = last_ms + SETTINGS.delayed_ms + 1, replace(file, stats=stats)
    assert _aged(tables, older, now_ms) == [Dated(2, last_ms * 1_000)]
    tables.warehouse.store.delete(f"{REF.folder}/{file.path}")
    with pytest.raises((DeltaMQError, FileMissing)):
        _aged(tables, older, now_ms)


def test_sec_40_the_audit_is_kept_as_long_as_its_setting_says(tables: QueueTables) -> None:
    log = tables.warehouse.create(AUDIT)
    log.append([Batch(rows_of_audit([ENDED]))])
    now_us = tables.warehouse.clock.wall_us()
    settings = replace(SETTINGS, audit_ms=5_000)
    kept = list(Retention(tables.warehouse, settings, CLUSTER).run([BROKER], now_us + 4_000_000))
    assert [one.removed.files for one in kept if one.ref == AUDIT] == [0]
    gone = list(Retention(tables.warehouse, settings, CLUSTER).run([BROKER], now_us + 6_000_000))
    assert [one.removed.messages for one in gone if one.ref == AUDIT] == [1]
    assert RetentionSettings().audit_ms == 400 * 24 * 3_600_000


def test_cons_13_samples_are_kept_as_long_as_their_setting_says(tables: QueueTables) -> None:
    log = tables.warehouse.create(HISTORY)
    log.append([Batch(rows_of_history([HistoryRecord("lag", "billing", "orders", "p1", 0, 60_000, [1.0])]))])
    now_us = tables.warehouse.clock.wall_us()
    settings = replace(SETTINGS, history_ms=5_000)
    kept = list(Retention(tables.warehouse, settings, CLUSTER).run([BROKER], now_us + 4_000_000))
    assert [one.removed.files for one in kept if one.ref == HISTORY] == [0]
    gone = list(Retention(tables.warehouse, settings, CLUSTER).run([BROKER], now_us + 6_000_000))
    assert [one.removed.messages for one in gone if one.ref == HISTORY] == [1]
