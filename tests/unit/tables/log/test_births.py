"""Messages are found by the times that clients gave them, in whatever order these are (SPEC KAFKA-21)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.reader import Born
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.schema import TIME
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF
from tests.unit.tables.conftest import OpenLog

_MS = 1_000
_DAY_US = 86_400_000_000
#: Of neighbouring milliseconds and parts of them, so that bounds that are rounded meet.
_times = st.integers(0, 12).map(lambda thirds: _DAY_US + thirds * _MS // 3)


def _born(times_us: Sequence[int]) -> Batch:
    columns = [pa.array([b""] * len(times_us), pa.binary()), pa.array(times_us, pa.int64()).cast(TIME)]
    return Batch(pa.RecordBatch.from_arrays(columns, names=["body", "born_time"]), None)


def _first(times: Sequence[int], time_us: int, low: int = 0) -> Born | None:
    return next((Born(at, born) for at, born in enumerate(times) if at >= low and born >= time_us), None)


def _check(log: PartitionLog, times: Sequence[int], low: int = 0) -> None:
    for time_us in range(_DAY_US - _MS, _DAY_US + 6 * _MS, _MS // 2):
        assert log.born_at(time_us) == _first(times, time_us, low)
    assert log.last_born_ms() == max((time // _MS for time in times[low:]), default=None)


@given(st.lists(st.lists(_times, min_size=1, max_size=5), max_size=7), st.integers(0, 7))
def test_kafka_21_the_first_message_of_a_time_is_found_in_any_order(commits: list[list[int]], rolled: int) -> None:
    files = MemoryStore()
    writer = Warehouse.open("", store=files, settings=LogSettings(row_group_rows=2, rollup_files=2))
    log = writer.create(REF)
    for at, times in enumerate(commits):
        log.append([_born(times)])
        if at == rolled:
            _check(log, [time for known in commits[: at + 1] for time in known])
            log.maintain()
    reader = Warehouse.open("", store=files)
    all_times = [time for times in commits for time in times]
    for one in (log, reader.create(REF)):
        _check(one, all_times)
    if commits:
        log.delete_below(log.files[0].end)
        _check(log, all_times, log.min_offset)
    reader.close()
    writer.close()


def test_kafka_21_a_search_reads_one_file_of_many_in_any_order(store: FaultyStore, open_log: OpenLog) -> None:
    writer = open_log()
    times = [_DAY_US + _MS * (at * 7 % 50) for at in range(50)]
    for time in times:
        writer.append([_born([time])])
    reader = open_log(store)
    for at in (0, 13, 49):
        begin = len(store.keys("read_parts"))
        assert reader.born_at(_DAY_US + _MS * at) == _first(times, _DAY_US + _MS * at)
        assert len(set(store.keys("read_parts")[begin:])) == 1, "one file"
    begin = len(store.calls)
    assert reader.born_at(_DAY_US + _MS * 50) is None
    assert len(store.calls) == begin, "what is later than all is known without a look"


def test_kafka_21_times_that_no_message_can_have_are_found_nowhere(open_log: OpenLog) -> None:
    log = open_log()
    assert log.born_at(0) is None
    log.append([_born([0])])
    assert log.born_at(-1) == log.born_at(0) == Born(0, 0)
    assert log.born_at(1) is log.born_at(2**63 - 1) is None
