"""Roll-ups, checkpoints, clean-up, replaced files and orphans (fault F14; ARCHITECTURE I6)."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltamq.mq.errors import Corrupt, StorageFull, Unavailable
from deltamq.mq.limits import KIB, MIB
from deltamq.tables.delta.checkpoint import checkpoint_name, read_checkpoint
from deltamq.tables.delta.large_file import GROUP_BYTES_MAX
from deltamq.tables.delta.snapshot import load, log_versions
from deltamq.tables.log.bounds import LogBounds
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

COMMITS = f"{REF.folder}/_delta_log"


def names(files: MemoryStore, folder: str = REF.folder) -> set[str]:
    return {entry.name for entry in files.entries(folder)}


def fill(log: PartitionLog, count: int, prefix: str = "m") -> list[bytes]:
    sent = numbered_bodies(prefix, count)
    for body in sent:
        log.append([batch(body)])
    return sent


def maintain_all(log: PartitionLog) -> None:
    while log.maintain():
        pass


def test_nothing_due_is_nothing_done(open_log: OpenLog) -> None:
    log = open_log()
    assert not log.maintain()
    fill(log, 3)
    version = log.version
    assert not log.maintain()
    assert log.version == version


def test_live_files_grow_with_the_logarithm_of_the_log(open_log: OpenLog) -> None:
    log = open_log(rollup_files=4)
    for _ in range(300):
        log.append([batch(b"x")])
        log.maintain()
    assert len(log.files) <= 4 * 5
    assert log.end_offset == 300
    assert all_bodies(log) == all_bodies(open_log()) == [b"x"] * 300


def test_a_roll_up_moves_no_offset_and_changes_no_row(open_log: OpenLog) -> None:
    log = open_log(rollup_files=4)
    sent = fill(log, 4)
    before = log.read(0, max_messages=9, max_bytes=9_999).rows
    assert log.maintain()
    assert (log.min_offset, log.end_offset, len(log.files)) == (0, 4, 1)
    for reader in (log, open_log(cache_bytes_max=1)):
        after = reader.read(0, max_messages=9, max_bytes=9_999).rows
        assert after.combine_chunks() == before.combine_chunks()
        assert all_bodies(reader, step=1) == sent


def test_a_roll_up_reads_files_that_the_tail_does_not_hold(open_log: OpenLog) -> None:
    sent = fill(open_log(), 8)
    stranger = open_log(rollup_files=4)
    assert stranger.maintain()
    assert all_bodies(open_log()) == sent


def test_a_roll_up_of_files_that_another_process_rolled_up_and_removed_is_no_damage(
    open_log: OpenLog, clock: SetClock
) -> None:
    sent = fill(open_log(), 8)
    slow, quick = (open_log(rollup_files=4, file_keep_ms=1_000, cache_bytes_max=1) for _ in range(2))
    quick.maintain()
    clock.advance_ms(1_000)
    quick.maintain()
    slow.maintain()
    assert slow.append([batch(b"goes on")])[0].base_offset == 8
    assert all_bodies(slow) == [*sent, b"goes on"]
    slow.verify()


def test_a_log_opens_though_files_go_while_it_reads_them(
    store: FaultyStore, open_log: OpenLog, clock: SetClock
) -> None:
    """The process slept between reading the log and reading the files that it names."""
    writer = open_log(rollup_files=4, file_keep_ms=1_000)
    sent = fill(writer, 4)

    def meanwhile(_: str) -> None:
        writer.maintain()
        clock.advance_ms(1_000)
        writer.maintain()

    store.once("before", "read_parts", meanwhile)
    assert all_bodies(open_log(store)) == sent


def test_rely_4_a_roll_up_never_copies_damage(files: MemoryStore, open_log: OpenLog) -> None:
    fill(open_log(), 8)
    stranger = open_log(rollup_files=4, cache_bytes_max=1)
    victim = f"{REF.folder}/{stranger.files[3].path}"
    raw = bytearray(files.read(victim).to_pybytes())
    raw[10] ^= 4
    files.replace(victim, bytes(raw))
    with pytest.raises(Corrupt, match=stranger.files[3].path):
        stranger.maintain()
    assert len(load(files, REF.folder).files) == 8


def test_rely_8_a_roll_up_of_bodies_that_compress_well_holds_few_of_them_at_a_time(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog
) -> None:
    """Their files are tiny, so nothing about these bounds what their rows take in memory."""
    count, sent = 40, batch(*[bytes(MIB)] * 8)
    log = open_log(store, rollup_files=count, tail_bytes_max=64 * KIB)
    for _ in range(count):
        log.append([sent])
    assert sum(file.size for file in log.files) < MIB
    held: list[int] = []
    store.before["read_parts"] = lambda _: held.append(pa.total_allocated_bytes())
    before = pa.total_allocated_bytes()
    assert log.maintain()
    assert len(held) >= count - 1, "the last file's rows are in memory"
    assert max(held) - before < 3 * GROUP_BYTES_MAX < count * 8 * MIB
    (file,) = log.files
    footer = pq.read_metadata(pa.BufferReader(files.read(f"{REF.folder}/{file.path}")))
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    assert all(group.total_byte_size < GROUP_BYTES_MAX + MIB for group in groups), "readers decode one as a whole"
    assert len(groups) < 8
    log.verify()


def test_replaced_files_stay_for_queries_that_started_before(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    log = open_log(rollup_files=4, file_keep_ms=5_000)
    fill(log, 4)
    old = {f.path for f in log.files}
    log.maintain()
    clock.advance_ms(4_999)
    log.maintain()
    assert old <= names(files)
    clock.advance_ms(1)
    assert log.maintain()
    assert names(files) == {log.files[0].path}


def test_i6_a_wall_clock_that_jumps_deletes_nothing(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    log = open_log(rollup_files=4, checkpoint_commits=2)
    fill(log, 9)
    files.put(f"{REF.folder}/orphan.parquet", b"x", durable=True)
    maintain_all(log)
    there = names(files) | names(files, COMMITS)
    for jump in (10**15, -(10**15)):
        clock.set_wall_us(clock.wall_us() + jump)
        maintain_all(log)
        assert there <= names(files) | names(files, COMMITS)


# Checkpoints and the log's clean-up.


def test_meta_3_a_partition_opens_from_its_checkpoint_and_the_commits_after(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    log = open_log(rollup_files=4, checkpoint_commits=10, log_keep_ms=1_000)
    sent = fill(log, 25)
    maintain_all(log)
    sent += fill(log, 3, "late")
    for _ in range(3):
        clock.advance_ms(1_000)
        log.maintain()
    commits, checkpoints = log_versions(files, REF.folder)
    assert commits[0] > 0 and checkpoints
    again = open_log()
    assert again.stats() == log.stats()
    assert all_bodies(again) == sent
    assert again.table_id == log.table_id


def test_a_checkpoint_is_written_once_for_so_many_commits(files: MemoryStore, open_log: OpenLog) -> None:
    log = open_log(checkpoint_commits=10)
    for _ in range(35):
        log.append([batch(b"x")])
        log.maintain()
    _, checkpoints = log_versions(files, REF.folder)
    assert len(checkpoints) == 3
    assert read_checkpoint(files, REF.folder, checkpoints[-1]).version == checkpoints[-1] == log.checkpoint_version


def test_a_log_that_is_appended_and_maintained_stays_short(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    log = open_log(rollup_files=4, checkpoint_commits=8, log_keep_ms=1_000, file_keep_ms=1_000)
    counts = []
    for i in range(200):
        log.append([batch(str(i).encode())])
        log.maintain()
        clock.advance_ms(50)
        counts.append(len(names(files)) + len(names(files, COMMITS)))
    assert max(counts[100:]) <= max(counts[50:100]) + 5, "flat, not growing"
    assert max(counts) < 150
    _, checkpoints = log_versions(files, REF.folder)
    assert len(checkpoints) <= 6, "those of the keep time and two more"
    assert all_bodies(open_log()) == [str(i).encode() for i in range(200)]


def test_a_log_that_grows_faster_than_one_clean_up_deletes_stays_short(
    files: MemoryStore, open_log: OpenLog, clock: SetClock
) -> None:
    """Every run goes on where the last one stopped: none waits for the next sighting."""
    keeping = {"log_keep_ms": 1_000, "file_keep_ms": 1_000}
    log = open_log(bounds=LogBounds(clean_commits=7), rollup_files=4, checkpoint_commits=8, **keeping)
    for _ in range(120):
        for _ in range(5):
            log.append([batch(b"x")])
            log.maintain()
        clock.advance_ms(20)
    commits, _ = log_versions(files, REF.folder)
    assert len(commits) < 400, "250 commits and their roll-ups are a keep time's"
    assert len(all_bodies(open_log())) == 600


def test_clean_up_leaves_no_hole_whatever_kills_it(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    """Oldest first: after any number of deletions the log opens."""
    log = open_log(checkpoint_commits=10, log_keep_ms=1_000)
    sent = fill(log, 20)
    log.maintain()
    clock.advance_ms(1_000)
    log.maintain()
    clock.advance_ms(1_000)
    for killed_after in range(25):
        store = FaultyStore(files)
        dying = open_log(store, checkpoint_commits=10, log_keep_ms=1_000)
        for _ in range(3):
            clock.advance_ms(1_000)
            store.calls.clear()
            left = [killed_after]

            def die(_: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Unavailable("killed")

            store.before["delete"] = die
            try:
                dying.maintain()
            except Unavailable:
                break
        assert all_bodies(open_log()) == sent


def test_i5_clean_up_deletes_commits_in_their_order(store: FaultyStore, open_log: OpenLog, clock: SetClock) -> None:
    """A writer that finds version n still there concludes that n+1 was never deleted."""
    log = open_log(store, checkpoint_commits=10, log_keep_ms=1_000)
    fill(log, 20)
    for _ in range(3):
        log.maintain()
        clock.advance_ms(1_000)
    deleted = [key for key in store.keys("delete") if key.startswith(COMMITS) and key.endswith(".json")]
    assert len(deleted) > 5
    assert deleted == sorted(deleted)


def test_a_checkpoint_that_cannot_be_written_is_tried_again(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, checkpoint_commits=4)
    sent = fill(log, 5)
    store.once("before", "replace", failing(StorageFull("full")))
    with pytest.raises(StorageFull):
        log.maintain()
    assert log.append([batch(b"goes on")])[0].base_offset == 5
    assert log.maintain()
    assert log.checkpoint_version == 6
    assert all_bodies(open_log()) == [*sent, b"goes on"]


def test_a_kill_between_a_checkpoint_and_its_hint_harms_nobody(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, checkpoint_commits=4)
    sent = fill(log, 5)
    store.once("before", "replace", failing(Unavailable("killed")), key="_last_checkpoint")
    with pytest.raises(Unavailable):
        log.maintain()
    assert open_log().checkpoint_version == 5
    assert all_bodies(open_log()) == sent


def test_two_processes_maintain_one_partition(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    settings = {"rollup_files": 4, "checkpoint_commits": 8, "log_keep_ms": 1_000, "file_keep_ms": 1_000}
    logs = [open_log(**settings) for _ in range(2)]
    sent = []
    for i in range(100):
        body = str(i).encode()
        logs[i % 2].append([batch(body)])
        sent.append(body)
        logs[i // 3 % 2].maintain()
        clock.advance_ms(70)
    for log in (*logs, open_log()):
        log.refresh()
        assert all_bodies(log) == sent
        log.verify()


# Orphans: what no commit names.


def test_orphans_are_swept_when_they_are_old_enough(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    log = open_log(orphan_keep_ms=10_000)
    fill(log, 2)
    orphan, temp = f"{REF.folder}/{99:020d}-dead.parquet", f"{COMMITS}/.tmp-dead"
    files.put(orphan, b"x", durable=True)
    files.put(temp, b"x", durable=True)
    clock.advance_ms(1_000)
    log.maintain()  # sees them for the first time
    clock.advance_ms(9_999)
    log.maintain()
    assert files.exists(orphan) and files.exists(temp)
    clock.advance_ms(1_001)
    assert log.maintain()
    assert not files.exists(orphan) and not files.exists(temp)
    assert all_bodies(open_log()) == numbered_bodies("m", 2)


def test_a_sweep_never_takes_what_is_live(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    """Not even what another process appended since the sweeper last looked."""
    sweeper, writer = open_log(orphan_keep_ms=1_000), open_log(orphan_keep_ms=1_000, rollup_files=4)
    sent = []
    for i in range(40):
        sent += fill(writer, 1, str(i))
        writer.maintain()
        clock.advance_ms(500)
        sweeper.maintain()
    assert all_bodies(open_log(cache_bytes_max=1)) == sent


@pytest.mark.parametrize("rollup", [False, True])
def test_a_writer_that_sleeps_past_the_sweep_puts_its_file_back(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog, clock: SetClock, rollup: bool
) -> None:
    """It put the data file, slept for days, and a sweep took it for an orphan before the commit named it."""
    settings = {"orphan_keep_ms": 1_000, "log_keep_ms": 10_000_000}
    writer, sweeper = open_log(store, rollup_files=4, **settings), open_log(**settings)
    sent = fill(writer, 4)

    def sleep(_: str) -> None:
        for _ in range(12):
            clock.advance_ms(200)
            sweeper.maintain()

    store.once("before", "put_if_absent", sleep, key="/orders@")
    if rollup:
        assert writer.maintain()
    else:
        writer.append([batch(b"slept")])
        sent.append(b"slept")
    assert files.exists(f"{REF.folder}/{writer.files[-1].path}")
    assert all_bodies(open_log(cache_bytes_max=1)) == sent


# Threads.


def test_a_second_thread_is_turned_away(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, rollup_files=4)
    fill(log, 4)
    entered, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        entered.set()
        assert go_on.wait(10)

    store.once("before", "put", slow)
    first = threading.Thread(target=log.maintain)
    first.start()
    assert entered.wait(10)
    assert not log.maintain()
    assert log.append([batch(b"meanwhile")])[0].base_offset == 4, "an append does not wait for a roll-up's file"
    go_on.set()
    first.join()
    assert len(log.files) == 2


def test_checkpoints_of_two_processes_name_the_same_state(files: MemoryStore, open_log: OpenLog) -> None:
    one, two = open_log(checkpoint_commits=4), open_log(checkpoint_commits=4)
    fill(one, 4)
    two.refresh()
    assert one.maintain()
    raw = files.read(f"{COMMITS}/{checkpoint_name(4)}").to_pybytes()
    assert two.maintain()
    assert files.read(f"{COMMITS}/{checkpoint_name(4)}").to_pybytes() == raw


def test_upkeep_says_when_it_is_due_and_does_nothing_before(
    files: MemoryStore, clock: SetClock, open_log: OpenLog
) -> None:
    """A process with thousands of partitions asks once, and comes back then (see `api.log.partition`)."""
    log = open_log(rollup_files=4, checkpoint_commits=8, log_keep_ms=1_000, file_keep_ms=5_000)
    sent = fill(log, 40)
    assert log.due_in_ms() == 0, "roll-ups are due"
    maintain_all(log)
    waits = []
    while (wait_ms := log.due_in_ms()) < 60_000:
        assert wait_ms > 0
        waits.append(wait_ms)
        clock.advance_ms(wait_ms - 1)
        before = names(files) | names(files, COMMITS)
        assert not log.maintain()
        assert names(files) | names(files, COMMITS) == before
        clock.advance_ms(1)
        maintain_all(log)
    assert len(waits) >= 2, "the log's clean-up and the files that roll-ups let go"
    assert {f.path for f in log.files} == {name for name in names(files) if name.endswith(".parquet")}
    commits, _ = log_versions(files, REF.folder)
    assert commits[0] >= log.checkpoint_version - 8
    assert all_bodies(log) == sent


def test_a_rested_partition_reads_the_same_from_its_files(open_log: OpenLog) -> None:
    log = open_log()
    sent = fill(log, 5)
    assert not log.rest(), "it was just used"
    assert log.rest()
    assert not log.in_memory(0, 1)
    assert all_bodies(log) == sent
    assert not log.rest(), "reading is using"
    log.append([batch(b"on")])
    assert log.in_memory(5, 1)
