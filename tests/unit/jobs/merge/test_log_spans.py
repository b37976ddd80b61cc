"""What tasks read: every offset of a batch in one of them, whatever becomes of the files meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.jobs.merge.checkpoint_batch import decode
from deltamq.jobs.merge.log_spans import LogSpan, decoded, log_rows, shares, spans_of
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Corrupt
from deltamq.mq.queue.revive_log import Ack
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.merge_plan import MergePlan, PlannedRange
from deltamq.tables.queue.refs import revive_ref
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import Store
from tests.queue_tables import BROKER, CLUSTER, QueueTables

sizes = st.lists(st.integers(1, 500), max_size=12)


def span(number: int, records: int) -> LogSpan:
    return LogSpan(ref=PartitionRef(Space.SYS, "log", f"log#{number}@a"), start=7, stop=7 + records, files=())


@given(sizes, st.integers(1, 300), st.integers(1, 300))
def test_spark_07_every_offset_of_a_batch_is_in_one_task(
    records: Sequence[int], share_records: int, span_records_max: int
) -> None:
    spans = [span(number, count) for number, count in enumerate(records)]
    tasks = shares(spans, share_records=share_records, span_records_max=span_records_max)
    parts = sorted((part.ref.name, part.start, part.stop) for task in tasks for part in task)
    for whole in spans:
        own = [(start, stop) for name, start, stop in parts if name == whole.ref.name]
        assert (own[0][0], own[-1][1]) == (whole.start, whole.stop)
        assert all(left[1] == right[0] for left, right in pairwise(own))
        assert max(stop - start for start, stop in own) <= span_records_max
    assert all(sum(part.records for part in task) <= max(share_records, span_records_max) for task in tasks)
    assert all(task for task in tasks)


def test_small_logs_share_a_task_and_large_ones_have_several() -> None:
    small = [span(number, 10) for number in range(8)]
    assert [len(task) for task in shares(small, share_records=100, span_records_max=50)] == [8]
    assert [len(task) for task in shares([span(0, 200)], share_records=100, span_records_max=50)] == [2, 2]
    assert [len(task) for task in shares([span(0, 200)], share_records=100)] == [1], (
        "not divided unless that is asked for"
    )


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[QueueTables]:
    made = QueueTables(tmp_path / "w")
    yield made
    made.close()


@pytest.fixture
def log(tables: QueueTables) -> PartitionLog:
    """Ten acknowledgements, each in a file of its own."""
    topic, group = tables.topic(), tables.group()
    for offset in range(10):
        popped = tables.checkpoint(group, topic, [offset])
        tables.record(Ack(popped.key, 1, 5))
    return tables.warehouse.open_partition(revive_ref(CLUSTER, 0, BROKER))


@pytest.fixture
def files(tables: QueueTables) -> Store:
    return storage(tables.warehouse.uri)


def planned(log: PartitionLog, start: int, stop: int) -> LogSpan:
    (found,) = spans_of(MergePlan(batch=0, logs={log.ref: PlannedRange(start, stop)}), [log])
    return found


def offsets(store: Store, wanted: LogSpan) -> list[int]:
    return [offset for rows in log_rows(store, wanted) for offset in rows.column("offset").to_pylist()]


def test_a_task_reads_its_offsets_and_no_more(log: PartitionLog, files: Store) -> None:
    found = planned(log, 2, 9)
    assert len(found.files) == 7
    assert offsets(files, found) == list(range(2, 9))
    parts = found.cut(3)
    assert [offsets(files, part) for part in parts] == [[2, 3], [4, 5], [6, 7, 8]]
    assert [len(part.files) for part in parts] == [2, 2, 3]
    assert spans_of(MergePlan(batch=0, logs={log.ref: PlannedRange(4, 4)}), [log]) == []


def test_files_that_were_rolled_up_since_are_read_where_their_rows_are_now(
    tables: QueueTables, log: PartitionLog, files: Store
) -> None:
    found = planned(log, 1, 7)
    other = Warehouse.open(tables.warehouse.uri, settings=LogSettings(rollup_files=4))
    rolled = other.open_partition(log.ref)
    while rolled.maintain():
        pass
    gone = [file for file in found.files if not rolled.are_live([file])]
    for file in gone:
        (Path(log.location) / file.path).unlink()
    other.close()
    assert gone
    assert offsets(files, found) == list(range(1, 7))


def test_what_retention_took_is_a_gap_that_is_told(log: PartitionLog, files: Store) -> None:
    found = planned(log, 2, 9)
    for file in list(log.files)[:4]:
        (Path(log.location) / file.path).unlink()
    log.delete_below(4)
    with pytest.raises(Corrupt, match=r"offsets \[2, 4\) were not merged and are gone") as raised:
        offsets(files, found)
    assert raised.value.code == "merge_gap"
    with pytest.raises(Corrupt, match="are gone"):
        planned(log, 2, 9)
    with pytest.raises(Corrupt, match="reaches to 12"):
        planned(log, 5, 12)


def test_a_file_that_is_damaged_is_told_and_not_read_again(log: PartitionLog, files: Store) -> None:
    found = planned(log, 0, 10)
    damaged = Path(log.location) / log.files[3].path
    damaged.write_bytes(damaged.read_bytes()[:-30])
    with pytest.raises(Corrupt, match=log.files[3].path):
        offsets(files, found)


def test_a_damaged_record_is_named_by_log_and_offset(tables: QueueTables, log: PartitionLog, files: Store) -> None:
    body = pa.RecordBatch.from_pydict({"tag": pa.array(["ack"]), "body": pa.array([b"{}"], pa.binary())})
    log.append([Batch(body)])
    with pytest.raises(Corrupt, match=rf"{log.ref.name}: the record at offset 10 is damaged") as raised:
        list(decoded(files, [planned(log, 5, 11)], decode))
    assert raised.value.code == "record_corrupt"
    assert sum(part.num_rows for part in decoded(files, [planned(log, 5, 10)], decode)) == 5
