"""Reading: statuses, bounds, memory and files, finding by time (SPEC MODEL-3, CONS)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from deltamq.mq.errors import Corrupt, Unavailable
from deltamq.tables.delta.native_parquet import native_writer
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.fetch import FetchStatus, weight_of, weights_of
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.schema import HEADERS, MESSAGE_SCHEMA
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

Fill = Callable[[PartitionLog], None]


def bodies(log: PartitionLog, offset: int, *, messages: int = 1_000, bytes_max: int = 1 << 20) -> list[bytes]:
    return log.read(offset, max_messages=messages, max_bytes=bytes_max).rows.column("body").to_pylist()


def fill(log: PartitionLog, commits: int = 5, each: int = 4) -> list[bytes]:
    sent = numbered_bodies("m", commits * each)
    for at in range(0, len(sent), each):
        log.append([batch(*sent[at : at + each])])
    return sent


@pytest.fixture(params=["memory", "files"])
def filled(request: pytest.FixtureRequest, open_log: OpenLog) -> PartitionLog:
    """Twenty messages in five commits; in the tail, or (reopened) only in files of small row groups."""
    log = open_log(row_group_rows=3)
    fill(log)
    return log if request.param == "memory" else open_log(row_group_rows=3)


def test_every_range_is_read_as_it_was_written(filled: PartitionLog) -> None:
    sent = numbered_bodies("m", 20)
    for start in range(20):
        for count in range(1, 21 - start):
            assert bodies(filled, start, messages=count) == sent[start : start + count]


@pytest.mark.parametrize("bytes_max", [200, 1 << 20])
def test_a_read_of_some_columns_has_what_a_read_of_all_has_of_them(filled: PartitionLog, bytes_max: int) -> None:
    some = ("offset", "key", "body", "append_time")
    for start in range(20):
        # Whichever comes first, the other one finds its row group in the cache, or there too few columns of it.
        for order in ((some, None, some), (None, some)):
            answers = [filled.read(start, max_messages=2, max_bytes=bytes_max, columns=columns) for columns in order]
            (whole,) = [answer for answer, columns in zip(answers, order, strict=True) if columns is None]
            assert whole.rows.schema == MESSAGE_SCHEMA
            for answer, columns in zip(answers, order, strict=True):
                assert columns is None or answer.rows.equals(whole.rows.select(some))
                assert answer.next_offset == whole.next_offset


@pytest.mark.parametrize("bytes_max", [1, 200, 400, 1 << 20])
def test_a_read_says_what_its_rows_weigh_and_weighs_at_most_what_is_asked(filled: PartitionLog, bytes_max: int) -> None:
    for start in range(20):
        for count in (1, 7, 20):
            answer = filled.read(start, max_messages=count, max_bytes=bytes_max)
            assert answer.weight == weight_of(answer.rows) == sum(weights_of(answer.rows))
            assert answer.weight <= bytes_max or answer.rows.num_rows == 1


@pytest.mark.parametrize("source", ["memory", "files"])
def test_headers_weigh_as_bodies_do(open_log: OpenLog, source: str) -> None:
    """A thousand bytes of headers each: a fetch that bounds its bytes gets as few of them as of such bodies."""
    given = [None, [("name", "x" * 996)], [], [("a", "x" * 499), ("b", "x" * 499)], [("name", None)]] * 4
    column = pa.array(given, HEADERS)
    rows = pa.RecordBatch.from_arrays([pa.array([b""] * 20, pa.binary()), column], names=["body", "headers"])
    log = open_log()
    log.append([Batch(rows)])
    log = log if source == "memory" else open_log()
    for start in range(20):
        answer = log.read(start, max_messages=20, max_bytes=2_500)
        kept = answer.rows.column("headers").to_pylist()
        sizes = [64 + sum(len(name) + len(value or "") for name, value in pairs or ()) for pairs in kept]
        assert weights_of(answer.rows).tolist() == sizes
        assert weight_of(answer.rows) == answer.weight == sum(sizes) <= 2_500


def test_the_end_has_no_new_message(filled: PartitionLog) -> None:
    answer = filled.read(20, max_messages=10, max_bytes=1000)
    assert (answer.status, answer.next_offset, answer.rows.num_rows) == (FetchStatus.NO_NEW_MESSAGE, 20, 0)


def test_an_offset_beyond_the_end_is_too_large_and_goes_on_at_the_end(filled: PartitionLog) -> None:
    answer = filled.read(21, max_messages=10, max_bytes=1000)
    assert (answer.status, answer.next_offset, answer.max_offset) == (FetchStatus.OFFSET_TOO_LARGE, 20, 20)


def test_an_offset_that_retention_removed_is_too_small_and_goes_on_at_the_first(open_log: OpenLog) -> None:
    log = open_log()
    fill(log)
    assert log.rewrite([], list(log.files[:2]), operation="DELETE")
    for reader in (log, open_log()):
        answer = reader.read(3, max_messages=10, max_bytes=1000)
        assert (answer.status, answer.next_offset, answer.min_offset) == (FetchStatus.OFFSET_TOO_SMALL, 8, 8)
        assert bodies(reader, 8, messages=1) == [b"m-8"]


def test_an_empty_partition_has_no_new_message(open_log: OpenLog) -> None:
    log = open_log()
    assert log.read(0, max_messages=1, max_bytes=1).status is FetchStatus.NO_NEW_MESSAGE
    assert log.read(1, max_messages=1, max_bytes=1).status is FetchStatus.OFFSET_TOO_LARGE


def test_a_partition_that_retention_emptied_keeps_its_end(open_log: OpenLog) -> None:
    log = open_log()
    fill(log)
    assert log.rewrite([], list(log.files), operation="DELETE")
    for reader in (log, open_log()):
        assert (reader.min_offset, reader.end_offset) == (20, 20)
        assert reader.read(0, max_messages=1, max_bytes=1).status is FetchStatus.OFFSET_TOO_SMALL
    assert log.append([batch(b"next")])[0].base_offset == 20


@pytest.mark.parametrize("bytes_max", [1, 100, 400, 1_000, 5_000])
def test_an_answer_is_about_as_large_as_asked_and_never_empty(filled: PartitionLog, bytes_max: int) -> None:
    at, answers = 0, 0
    while at < 20:
        answer = filled.read(at, max_messages=1_000, max_bytes=bytes_max)
        assert answer.rows.num_rows >= 1
        weight = sum(len(b) + 64 for b in answer.rows.column("body").to_pylist())
        assert answer.rows.num_rows == 1 or weight <= bytes_max + 64
        assert answer.rows.column("offset").to_pylist() == list(range(at, answer.next_offset))
        at, answers = answer.next_offset, answers + 1
    assert answers >= (10 if bytes_max <= 100 else 1)


def test_one_large_message_is_read_though_it_is_over_the_bound(open_log: OpenLog) -> None:
    log = open_log()
    log.append([batch(b"small", b"x" * 100_000, b"small")])
    assert [len(b) for b in bodies(log, 1, bytes_max=10)] == [100_000]


def test_the_tail_is_bounded_and_older_rows_come_from_files(open_log: OpenLog) -> None:
    log = open_log(tail_bytes_max=64 * 1024)
    sent = [f"{i:04d}".encode() * 2_000 for i in range(30)]
    for body in sent:
        log.append([batch(body)])
    assert not log.in_memory(0, 1)
    assert log.in_memory(29, 1) and log.in_memory(30, 1)
    assert all_bodies(log, step=4) == sent


def test_a_reader_elsewhere_sees_appends_after_a_refresh(open_log: OpenLog) -> None:
    writer, reader = open_log(), open_log()
    writer.append([batch(b"a")])
    assert bodies(reader, 0) == []
    assert reader.refresh()
    assert not reader.refresh()
    assert bodies(reader, 0) == [b"a"]


def test_rows_of_others_between_ours_are_read_from_files(open_log: OpenLog) -> None:
    one, two = open_log(), open_log()
    one.append([batch(b"a")])
    two.append([batch(b"b")])
    one.append([batch(b"c")])
    assert all_bodies(one, step=1) == [b"a", b"b", b"c"]


# Finding by time.


def test_offsets_are_found_by_time(open_log: OpenLog, clock: SetClock) -> None:
    log = open_log()
    start = clock.wall_us()
    for i in range(5):
        log.append([batch(*numbered_bodies(str(i), 3))])
        clock.advance_ms(1_000)
    for finder in (log, open_log()):
        assert finder.offset_at(0) == 0
        assert finder.offset_at(start) == 0
        assert finder.offset_at(start + 1) == 3
        assert finder.offset_at(start + 1_000_000) == 3
        assert finder.offset_at(start + 2_500_000) == 9
        assert finder.offset_at(start + 4_000_000) == 12
        assert finder.offset_at(start + 4_000_001) == 15


def test_the_append_time_of_an_offset_is_found_in_memory_and_in_a_file_of_many_times(
    open_log: OpenLog, clock: SetClock
) -> None:
    log = open_log(rollup_files=4)
    start = clock.wall_us()
    for i in range(4):
        log.append([batch(*numbered_bodies(str(i), 3))])
        clock.advance_ms(1_000)
    log.maintain()
    assert len(log.files) == 1
    for finder in (log, open_log()):
        assert [finder.append_us_at(offset) for offset in (0, 2, 3, 11)] == [
            start,
            start,
            start + 1_000_000,
            start + 3_000_000,
        ]
        assert finder.append_us_at(12) is None, "there is no such message yet"
    log.delete_below(12)
    assert log.append_us_at(0) is None, "nor is there this one any more"


def test_offsets_are_found_by_time_inside_a_file_of_many_times(open_log: OpenLog, clock: SetClock) -> None:
    log = open_log(rollup_files=4)
    start = clock.wall_us()
    for i in range(4):
        log.append([batch(*numbered_bodies(str(i), 3))])
        clock.advance_ms(1_000)
    log.maintain()
    assert len(log.files) == 1
    for finder in (log, open_log()):
        assert [finder.offset_at(start + i * 1_000_000) for i in range(5)] == [0, 3, 6, 9, 12]
        assert finder.offset_at(start + 1_500_000) == 6


def test_an_empty_partition_has_its_end_at_every_time(open_log: OpenLog) -> None:
    assert open_log().offset_at(0) == 0


# Damage, and what is none.


def test_rely_4_a_missing_data_file_stops_the_partition_and_names_the_file(
    files: MemoryStore, open_log: OpenLog
) -> None:
    fill(open_log())
    reader = open_log(cache_bytes_max=1)  # keeps nothing: what was read before must not hide the loss
    path = reader.files[2].path
    assert bodies(reader, 0, messages=4) == numbered_bodies("m", 4)
    files.delete(f"{REF.folder}/{path}")
    with pytest.raises(Corrupt, match=path):
        bodies(reader, 8)
    with pytest.raises(Corrupt, match=path):
        reader.append([batch(b"x")])
    with pytest.raises(Corrupt, match=path):
        reader.offset_at(0)


def test_a_store_that_is_out_for_a_moment_stops_nothing(
    store: FaultyStore, files: MemoryStore, open_log: OpenLog
) -> None:
    fill(open_log())
    reader = open_log(store)
    store.once("before", "read_parts", failing(Unavailable("out")))
    with pytest.raises(Unavailable):
        bodies(reader, 0)
    assert bodies(reader, 0) == numbered_bodies("m", 20)


def test_files_that_another_process_rolled_up_and_removed_are_no_damage(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """An idle reader that was not told: the same offsets are in other files now."""
    writer = open_log(rollup_files=4, file_keep_ms=1_000)
    sent = fill(writer, commits=4, each=2)
    reader, finder = open_log(cache_bytes_max=1), open_log(cache_bytes_max=1)
    assert writer.maintain()
    clock.advance_ms(1_000)
    assert writer.maintain()
    assert len(files.entries(REF.folder)) == 1
    assert bodies(reader, 0) == sent
    assert finder.offset_at(clock.wall_us() - 1_000_001) == 0
    assert reader.append([batch(b"goes on")])[0].base_offset == 8


def test_a_row_group_read_in_small_steps_is_decoded_once_and_one_read_whole_is_not_kept(
    store: FaultyStore, open_log: OpenLog
) -> None:
    """A scan must not push out what readers in small steps come back to."""
    sent = numbered_bodies("m", 12)
    open_log(row_group_rows=4).append([batch(*sent)])
    reader = open_log(store, row_group_rows=4)
    footer = len(store.keys("read_parts"))
    assert [bodies(reader, at, messages=1) for at in range(4)] == [[body] for body in sent[:4]]
    decoded = len(store.keys("read_parts"))
    assert decoded - footer == 1, "the footer, which opening did not keep, with the one row group of so small a file"
    assert [bodies(reader, 4), bodies(reader, 4)] == [sent[4:], sent[4:]]
    assert len(store.keys("read_parts")) - decoded == 4


def test_a_read_that_makes_many_columns_is_none_for_an_event_loop(open_log: OpenLog) -> None:
    log = open_log()
    for _ in range(9):
        log.append([batch(*[b"m"] * 1_000)])
    assert log.in_memory(0, 8_000)
    assert log.in_memory(0, 9_000) == (native_writer() is None), "without the compiled writer appends make them"
    for offset in range(0, 9_000, 500):
        log.read(offset, max_messages=500, max_bytes=1 << 20)
    assert log.in_memory(0, 9_000), "they are kept"
