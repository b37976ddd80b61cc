"""Retention on every store: whole files go in one commit, offsets stay, and readers below are told (SPEC RETRY-6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pytest

from deltamq.tables.log.fetch import FetchStatus
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.rewrite import Removed
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import Store
from tests.contract.stores import STORES, OpenAgain, opened_again
from tests.object_servers import ObjectServer
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock

# The first run builds the S3 server.
pytestmark = pytest.mark.timeout(600)

SETTINGS = LogSettings(rollup_files=4, checkpoint_commits=5, log_keep_ms=1_000, file_keep_ms=2_000, row_group_rows=16)


@pytest.fixture(params=STORES)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenAgain]:
    """Opens the same files again and again, each time as another process would."""
    yield from opened_again(request, tmp_path)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


class Process:
    """One process with the partition open."""

    def __init__(self, store: Store, clock: SetClock) -> None:
        self.warehouse = Warehouse.open("", store=store, settings=SETTINGS, clock=clock)
        self.log: PartitionLog = self.warehouse.create(REF)

    def fill(self, count: int, *, each: int = 2) -> None:
        """So many appends of `each` messages, numbered by their offsets."""
        self.log.refresh()
        for _ in range(count):
            low = self.log.end_offset
            self.log.append([batch(*numbered(low, low + each))])


Start = Callable[[], Process]


def numbered(low: int, high: int) -> list[bytes]:
    return numbered_bodies("m", high)[low:]


@pytest.fixture
def start(open_again: OpenAgain, clock: SetClock) -> Iterator[Start]:
    """Starts processes on the same files."""
    started: list[Process] = []

    def one() -> Process:
        started.append(Process(open_again(), clock))
        return started[-1]

    yield one
    for process in started:
        process.warehouse.close()


def status(log: PartitionLog, offset: int) -> tuple[FetchStatus, int, int]:
    answer = log.read(offset, max_messages=1, max_bytes=1_000)
    return answer.status, answer.min_offset, answer.max_offset


def test_retry_6_whole_files_go_and_the_minimum_offset_moves(start: Start) -> None:
    one = start()
    one.fill(3)
    version = one.log.version
    removed = one.log.delete_below(5)
    assert (removed.files, removed.messages) == (2, 4) and removed.bytes > 0
    assert (one.log.min_offset, one.log.end_offset, one.log.version) == (4, 6, version + 1)
    assert all_bodies(one.log) == numbered(4, 6)
    assert one.log.stats().messages == 2
    assert one.log.stats().bytes == sum(f.size for f in one.log.files)
    assert one.log.delete_below(5) == Removed() and one.log.version == version + 1, "nothing more, no commit"


@pytest.mark.promise("KEEP-2")
def test_retry_6_a_reader_below_the_minimum_is_told_where_it_is(start: Start) -> None:
    one, reader = start(), start()
    one.fill(3)
    reader.log.refresh()
    one.log.delete_below(4)
    for log in (one.log, start().log):
        assert status(log, 3) == (FetchStatus.OFFSET_TOO_SMALL, 4, 6)
        assert log.in_memory(3, 1), "no store is asked about what is gone"
        assert status(log, 4) == (FetchStatus.FOUND, 4, 6)
    assert status(reader.log, 3) == (FetchStatus.FOUND, 0, 6), "the file is kept for those who do not know yet"
    reader.log.refresh()
    assert status(reader.log, 3) == (FetchStatus.OFFSET_TOO_SMALL, 4, 6)
    assert reader.log.read(3, max_messages=1, max_bytes=1).next_offset == 4


@pytest.mark.promise("KEEP-1")
def test_i4_the_end_offset_stays_when_no_file_is_left(start: Start) -> None:
    one, other = start(), start()
    one.fill(4)
    assert one.log.delete_below(1_000_000).messages == 8
    for log in (one.log, start().log):
        assert (log.min_offset, log.end_offset, list(log.files)) == (8, 8, [])
        assert status(log, 7) == (FetchStatus.OFFSET_TOO_SMALL, 8, 8)
        assert status(log, 8) == (FetchStatus.NO_NEW_MESSAGE, 8, 8)
        assert log.offset_at(0) == 8
    other.fill(1)
    assert (other.log.min_offset, other.log.end_offset) == (8, 10)
    one.fill(1)
    assert all_bodies(start().log) == all_bodies(one.log) == all_bodies(other.log) + numbered(10, 12)
    assert all_bodies(start().log) == numbered(8, 12)


def test_nothing_below_is_nothing_done(start: Start) -> None:
    one = start()
    assert one.log.delete_below(10) == Removed()
    one.fill(1)
    version = one.log.version
    for offset in (-1, 0, 1):
        assert one.log.delete_below(offset) == Removed()
    assert one.log.version == version


def test_i1_a_table_of_any_age_after_retention_opens_and_goes_on(start: Start, clock: SetClock) -> None:
    """Removals before, behind and between roll-ups, checkpoints and clean-up."""
    one = start()
    for turn in range(1, 5):
        one.fill(5)
        one.log.maintain()
        one.log.delete_below(10 * turn - 7)
        clock.advance_ms(700)
        while one.log.maintain():
            pass
        again = start().log
        assert again.end_offset == one.log.end_offset == 10 * turn
        assert again.min_offset == one.log.min_offset <= 10 * turn - 7
        assert all_bodies(again) == all_bodies(one.log) == numbered(again.min_offset, 10 * turn)
        again.verify()
        assert not [f for f in verify(one.warehouse) if f.gravity is not Gravity.NOTE]
    assert one.log.checkpoint_version > 0 and one.log.min_offset > 0


def test_a_checkpoint_of_an_empty_log_keeps_the_end_offset(start: Start) -> None:
    one = start()
    one.fill(4)
    one.log.delete_below(8)
    assert one.log.maintain() and one.log.checkpoint_version == one.log.version == 5
    again = start().log
    assert (again.checkpoint_version, again.min_offset, again.end_offset) == (5, 8, 8)


def test_removed_files_stay_for_running_queries_and_then_go(start: Start, clock: SetClock) -> None:
    one = start()
    one.fill(3)
    store, paths = one.warehouse.store, [f"{REF.folder}/{f.path}" for f in one.log.files]
    one.log.delete_below(4)
    clock.advance_ms(1_999)
    one.log.maintain()
    assert [store.exists(path) for path in paths] == [True, True, True]
    clock.advance_ms(1)
    assert one.log.maintain()
    assert [store.exists(path) for path in paths] == [False, False, True]
    assert all_bodies(start().log) == numbered(4, 6)


def test_a_reader_that_does_not_know_yet_finds_its_file_gone_and_looks_again(start: Start, clock: SetClock) -> None:
    one = start()
    one.fill(3)
    reader = start()
    one.log.delete_below(4)
    clock.advance_ms(2_000)
    one.log.maintain()
    assert status(reader.log, 0) == (FetchStatus.OFFSET_TOO_SMALL, 4, 6)
    assert reader.log.stopped is None


def test_send_5_requests_of_what_stays_are_remembered(start: Start) -> None:
    one = start()
    first = one.log.append([batch(b"a", producer="p", seq=1)])[0]
    second = one.log.append([batch(b"b", producer="p", seq=2)])[0]
    one.log.delete_below(1)
    for log in (one.log, start().log):
        again = log.append([batch(b"b", producer="p", seq=2)])[0]
        assert (again.base_offset, again.duplicate) == (second.base_offset, True)
    assert one.log.append([batch(b"a", producer="p", seq=1)])[0].base_offset == first.base_offset


# Several processes.


def test_rely_2_appends_and_removals_of_two_processes_race_without_loss(start: Start) -> None:
    one, two = start(), start()

    def append() -> int:
        one.fill(40, each=1)
        return one.log.end_offset

    def remove() -> int:
        removed = 0
        while removed < 30:
            removed += two.log.delete_below(30).messages
        return removed

    with ThreadPoolExecutor(2) as pool:
        appended, removed = pool.submit(append), pool.submit(remove)
        assert (appended.result(60), removed.result(60)) == (40, 30)
    log = start().log
    assert (log.min_offset, log.end_offset) == (30, 40)
    assert all_bodies(log) == numbered(30, 40)


def test_rely_2_two_processes_that_remove_the_same_remove_it_once(start: Start) -> None:
    processes = [start() for _ in range(3)]
    processes[0].fill(12)
    for process in processes:
        process.log.refresh()
    with ThreadPoolExecutor(3) as pool:
        removed = list(pool.map(lambda process: process.log.delete_below(20), processes))
    assert sorted(r.messages for r in removed) == [0, 0, 20]
    assert all_bodies(start().log) == numbered(20, 24)


def test_rely_2_a_roll_up_and_a_removal_race_and_change_no_row(start: Start) -> None:
    one, two = start(), start()
    for turn in range(1, 5):
        one.fill(8)
        two.log.refresh()
        with ThreadPoolExecutor(2) as pool:
            rolled, removed = pool.submit(one.log.maintain), pool.submit(two.log.delete_below, 16 * turn - 8)
            rolled.result(60), removed.result(60)
        log = start().log
        assert log.min_offset <= 16 * turn - 8
        assert all_bodies(log) == numbered(log.min_offset, 16 * turn)
        log.verify()


# Other engines.


@pytest.mark.parametrize("below", [1, 40, 79, 80])
def test_spark_1_deltalake_reads_what_is_left(tmp_path: Path, clock: SetClock, below: int) -> None:
    warehouse = Warehouse.open(str(tmp_path), settings=SETTINGS, clock=clock)
    log = warehouse.create(REF)
    for low in range(0, 80, 2):
        log.append([batch(*numbered(low, low + 2))])
        log.maintain()
    log.delete_below(below)
    for _ in range(6):  # a checkpoint after it, too
        table = deltalake.DeltaTable(log.location).to_pyarrow_table(columns=["offset", "body"]).sort_by("offset")
        assert table.column("offset").to_pylist() == list(range(log.min_offset, log.end_offset))
        assert table.column("body").to_pylist() == all_bodies(log)
        end = log.end_offset
        log.append([batch(*numbered(end, end + 1))])
        log.maintain()
    warehouse.close()


def test_spark_1_a_delta_reader_reads_what_is_left_from_s3(s3: ObjectServer, clock: SetClock) -> None:
    warehouse = Warehouse.open("", store=s3.store("retained"), settings=SETTINGS, clock=clock)
    log = warehouse.create(REF)
    for low in range(0, 20, 2):
        log.append([batch(*numbered(low, low + 2))])
    log.delete_below(11)
    table = deltalake.DeltaTable(log.location, storage_options=s3.reader_options())
    assert sorted(table.to_pyarrow_table(columns=["body"]).column("body").to_pylist()) == sorted(numbered(10, 20))
    warehouse.close()
