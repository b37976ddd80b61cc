"""What clean-up rests on (ARCHITECTURE I5): a writer that slept cannot take a cleaned version for a free one.

`KEEP` is how long a commit file lives. A writer sleeps at some line for longer, others append, checkpoint and clean up
meanwhile; whatever it does after waking, nothing that was acknowledged is lost, no offset is given twice, and its own
request is stored at most once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltamq.mq.errors import Unknown
from deltamq.tables.delta.snapshot import load
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, batch
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

KEEP = 1_000
COMMITS = f"{REF.folder}/_delta_log"
World = Callable[[], list[bytes]]


def commit_key(version: int) -> str:
    return f"{COMMITS}/{version:020d}.json"


def commits_there(files: MemoryStore) -> list[int]:
    return [int(e.name[:20]) for e in files.entries(COMMITS) if e.name.endswith(".json")]


@pytest.fixture
def others(open_log: OpenLog, clock: SetClock, files: MemoryStore) -> World:
    """What others do while a writer sleeps: append, checkpoint, and clean up all that the sleeper knew."""
    acked: list[bytes] = []

    def live(times: int = 6) -> list[bytes]:
        log = open_log(checkpoint_commits=2, log_keep_ms=KEEP)
        for _ in range(times):
            body = f"other-{len(acked)}".encode()
            log.append([batch(body)])
            acked.append(body)
            clock.advance_ms(KEEP)
            log.maintain()
        return acked

    return live


@pytest.fixture
def sleeper(store: FaultyStore, open_log: OpenLog) -> PartitionLog:
    """A writer that knows version 2 as the newest."""
    log = open_log(store, log_keep_ms=KEEP)
    log.append([batch(b"a")])
    log.append([batch(b"b")])
    return log


def test_the_world_really_removes_what_the_sleeper_knows(
    sleeper: PartitionLog, others: World, files: MemoryStore
) -> None:
    others()
    assert commits_there(files)[0] > sleeper.version + 1


def test_a_writer_that_slept_before_its_append_sees_what_it_missed(sleeper: PartitionLog, others: World) -> None:
    acked = others()
    assert sleeper.append([batch(b"mine")])[0].base_offset == 2 + len(acked)
    assert all_bodies(sleeper) == [b"a", b"b", *acked, b"mine"]


def test_a_reader_that_slept_sees_what_it_missed(sleeper: PartitionLog, others: World) -> None:
    acked = others()
    assert sleeper.refresh()
    assert all_bodies(sleeper) == [b"a", b"b", *acked]


@pytest.mark.promise("LOG-3")
@pytest.mark.parametrize("cheap_look", [True, False])
def test_a_put_below_the_log_is_never_believed(
    files: MemoryStore, open_log: OpenLog, others: World, cheap_look: bool
) -> None:
    """It sleeps between its look and its put, and the put succeeds: the version that it takes was cleaned up."""
    store = FaultyStore(files, cheap_look=cheap_look)
    sleeper = open_log(store, log_keep_ms=KEEP)
    sleeper.append([batch(b"a")])
    sleeper.append([batch(b"b")])
    acked: list[bytes] = []
    store.once("before", "put_if_absent", lambda _: acked.extend(others()), key="/orders@")
    with pytest.raises(Unknown):
        sleeper.append([batch(b"mine", producer="p", seq=1)])
    assert commit_key(3) in [f"{COMMITS}/{e.name}" for e in files.entries(COMMITS)], "the bogus commit is there"
    assert all_bodies(open_log()) == [b"a", b"b", *acked]
    again = sleeper.append([batch(b"mine", producer="p", seq=1)])[0]
    assert (again.base_offset, again.duplicate) == (2 + len(acked), False)
    for log in (sleeper, open_log()):
        log.refresh()
        assert all_bodies(log) == [b"a", b"b", *acked, b"mine"]


def test_a_put_that_was_in_time_is_found_though_its_predecessor_was_cleaned(
    sleeper: PartitionLog, store: FaultyStore, others: World, open_log: OpenLog
) -> None:
    """It sleeps after the put, before the answer: the batch is in the log and must not be stored again."""
    acked: list[bytes] = []
    store.once("after", "put_if_absent", lambda _: acked.extend(others()), key="/orders@")
    result = sleeper.append([batch(b"mine")])[0]
    assert (result.base_offset, result.duplicate) == (2, False)
    for log in (sleeper, open_log()):
        assert all_bodies(log) == [b"a", b"b", b"mine", *acked]
    assert sleeper.append([batch(b"next")])[0].base_offset == 3 + len(acked)


def test_a_put_that_was_in_time_and_rolled_up_since_is_unknown_and_found_by_its_sequence(
    sleeper: PartitionLog, store: FaultyStore, open_log: OpenLog, clock: SetClock, files: MemoryStore
) -> None:
    def meanwhile(_: str) -> None:
        log = open_log(rollup_files=2, checkpoint_commits=2, log_keep_ms=KEEP)
        for _ in range(6):
            log.append([batch(b"x")])
            clock.advance_ms(KEEP)
            log.maintain()

    store.once("after", "put_if_absent", meanwhile, key="/orders@")
    request = batch(b"mine", producer="p", seq=1)
    with pytest.raises(Unknown):
        sleeper.append([request])
    again = sleeper.append([request])[0]
    assert (again.base_offset, again.duplicate) == (2, True)
    assert all_bodies(open_log()) == [b"a", b"b", b"mine", *[b"x"] * 6]


def test_a_writer_that_slept_between_its_put_and_its_next_look_sees_what_it_missed(
    sleeper: PartitionLog, others: World
) -> None:
    """The moment after an append is over is as good for sleeping as any."""
    sleeper.append([batch(b"mine")])
    acked = others()
    assert sleeper.append([batch(b"next")])[0].base_offset == 3 + len(acked)


def test_a_clock_that_is_read_late_makes_no_version_younger(
    files: MemoryStore, open_log: OpenLog, clock: SetClock, others: World
) -> None:
    """It sleeps right after the check behind its put: the put's time is the one before it."""

    class SleepyClock(SetClock):
        reads = -1

        def boot_ms(self) -> int:
            self.reads += 1
            if self.reads == 0:
                others()
            return clock.boot_ms()

    from deltamq.tables.log.warehouse import Warehouse
    from deltamq.tables.settings import LogSettings

    for wake_at in range(1, 12):
        sleepy = SleepyClock()
        sleepy.reads = 10_000
        warehouse = Warehouse.open("", store=files, settings=LogSettings(log_keep_ms=KEEP), clock=sleepy)
        log = warehouse.create(REF)
        sleepy.reads = -wake_at - 1
        for seq, body in enumerate([f"mine-{wake_at}".encode(), f"next-{wake_at}".encode()]):
            request = batch(body, producer=f"p-{wake_at}", seq=seq)
            try:
                log.append([request])
            except Unknown:
                log.append([request])
            assert all_bodies(open_log()).count(body) == 1
        assert sleepy.reads >= 0, "it did sleep"
        warehouse.close()


def test_two_writers_that_slept_do_not_believe_each_other(files: MemoryStore, open_log: OpenLog, others: World) -> None:
    """The first one's put below the log lies just where the second one looks for news."""
    stores = [FaultyStore(files), FaultyStore(files)]
    sleepers = [open_log(store, log_keep_ms=KEEP) for store in stores]
    sleepers[0].append([batch(b"a")])
    sleepers[1].refresh()
    acked: list[bytes] = []
    stores[0].once("before", "put_if_absent", lambda _: acked.extend(others()), key="/orders@")
    with pytest.raises(Unknown):
        sleepers[0].append([batch(b"bogus")])
    assert files.exists(commit_key(2))
    assert sleepers[1].append([batch(b"mine")])[0].base_offset == 1 + len(acked)
    assert all_bodies(sleepers[1]) == all_bodies(open_log()) == [b"a", *acked, b"mine"]


@pytest.mark.parametrize("missed", range(4))
def test_a_writer_that_catches_up_while_the_log_is_cleaned_notices(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog, clock: SetClock, missed: int
) -> None:
    """It wakes, finds its version and some after it still there, and they vanish while it reads them."""
    sleeper = open_log(store, log_keep_ms=KEEP)
    cleaner = open_log(checkpoint_commits=2, log_keep_ms=KEEP)
    sleeper.append([batch(b"a")])
    sent = [b"a"]
    for i in range(8):
        cleaner.append([batch(str(i).encode())])
        sent.append(str(i).encode())
    cleaner.maintain()
    clock.advance_ms(KEEP)
    cleaner.maintain()  # sights version 9
    clock.advance_ms(KEEP)

    def clean(_: str) -> None:
        cleaner.maintain()

    store.once("before", "read", clean, key=f"{2 + missed:020d}.json")
    assert sleeper.append([batch(b"mine")])[0].base_offset == 9
    assert commits_there(files)[0] > 2 + missed
    assert all_bodies(sleeper) == all_bodies(open_log()) == [*sent, b"mine"]


def test_a_writer_within_half_of_the_keep_time_needs_no_second_look(
    sleeper: PartitionLog, store: FaultyStore, clock: SetClock
) -> None:
    store.calls.clear()
    clock.advance_ms(KEEP // 2)
    sleeper.append([batch(b"mine")])
    assert store.keys("read") == [], "an append that is fresh reads nothing"


def test_a_cleaner_never_removes_what_was_seen_too_recently(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """The other half of the invariant: version n goes only after n+1 has been there for the whole keep time."""
    log = open_log(checkpoint_commits=1, log_keep_ms=KEEP)
    born: dict[int, int] = {0: clock.boot_ms()}
    for _ in range(200):
        log.append([batch(b"x")])
        born[log.version] = clock.boot_ms()
        clock.advance_ms(37)
        log.maintain()
        born.setdefault(log.version, clock.boot_ms())
        there = commits_there(files)
        assert there == list(range(there[0], log.version + 1))
        for gone in range(there[0]):
            assert clock.boot_ms() - born[gone + 1] >= KEEP
    assert there[0] > 100, "clean-up keeps up"


def test_the_table_says_how_long_commits_are_kept_and_all_processes_obey(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """A process with a shorter keep time must not clean under one that trusts a longer."""
    slow = open_log(log_keep_ms=10 * KEEP)
    hasty = open_log(checkpoint_commits=1, log_keep_ms=KEEP)
    slow.append([batch(b"a")])
    for _ in range(20):
        hasty.append([batch(b"x")])
        clock.advance_ms(KEEP // 5)
        hasty.maintain()
    assert commits_there(files)[0] == 0
    for _ in range(20):
        hasty.append([batch(b"x")])
        clock.advance_ms(KEEP)
        hasty.maintain()
    assert commits_there(files)[0] > 0
    assert slow.append([batch(b"b")])[0].base_offset == 41


def test_a_bogus_commit_is_cleaned_away_in_the_end(
    sleeper: PartitionLog, store: FaultyStore, others: World, files: MemoryStore
) -> None:
    store.once("before", "put_if_absent", lambda _: others() and None, key="/orders@")
    with pytest.raises(Unknown):
        sleeper.append([batch(b"mine")])
    assert 3 in commits_there(files)
    others()
    there = commits_there(files)
    assert 3 not in there
    assert load(files, REF.folder).version == there[-1]
