"""Compaction of a partition beside everything else that may happen to it (SPEC SPARK-8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.mq.errors import Corrupt, Unknown
from deltamq.tables.delta.snapshot import load
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.compaction_plan import CompactionTargets, plan_compaction
from deltamq.tables.ops.compactor import Compacted, Compactor
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, all_rows, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

pytestmark = pytest.mark.promise("PIPE-13")


#: Nothing is final, and nothing is left to roll-ups: what a test appends is compacted.
EVERYTHING = CompactionTargets(bytes=1 << 30, tail_bytes=1)


def compactor(log: PartitionLog, store: MemoryStore | FaultyStore, clock: SetClock) -> Compactor:
    return Compactor(log, store, settings=LogSettings(row_group_rows=16), clock=clock)


def fill(log: PartitionLog, requests: int, messages: int = 3) -> list[bytes]:
    sent = numbered_bodies("m", requests * messages)
    for seq in range(requests):
        log.append([batch(*sent[seq * messages : (seq + 1) * messages], producer="p", seq=seq)])
    return sent


def names(files: MemoryStore) -> set[str]:
    return {entry.name for entry in files.entries(REF.folder)}


def test_spark_08_rows_lie_in_one_file_and_nothing_else_changes(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    log = open_log()
    sent = fill(log, 20)
    before = all_rows(log).combine_chunks()
    done = compactor(log, files, clock).compact(0, 60)
    assert (len(done.removed), done.rows, len(log.files)) == (20, 60, 1)
    assert (log.min_offset, log.end_offset) == (0, 60)
    for reader in (log, open_log(cache_bytes_max=1)):
        reader.refresh()
        assert all_rows(reader).combine_chunks().equals(before)
        assert all_bodies(reader, step=7) == sent
        reader.verify()
    assert log.append([batch(b"goes on")])[0].base_offset == 60


@pytest.mark.promise("PIPE-14")
def test_send_5_what_producers_sent_is_remembered_behind_a_compaction(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    writer = open_log()
    fill(writer, 5)
    compactor(open_log(), files, clock).compact(0, 15)
    for log in (writer, open_log()):
        for seq in range(5):
            again = log.append([batch(*[b"other"] * 3, producer="p", seq=seq)])[0]
            assert (again.base_offset, again.duplicate) == (3 * seq, True)
        assert log.end_offset == 15


def test_spark_08_row_groups_are_full_and_carry_statistics(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    log = open_log()
    fill(log, 15)
    compactor(log, files, clock).compact(0, 45)
    (file,) = log.files
    footer = pq.read_metadata(pa.BufferReader(files.read(f"{REF.folder}/{file.path}")))
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [16, 16, 13]
    assert (file.start, file.count, len(file.crc.split(","))) == (0, 45, 4)
    times = all_rows(log).column("append_time")
    assert (file.append_min_us, file.append_max_us) == (times[0].value, times[-1].value)


def test_spark_08_large_row_groups_are_copied_and_small_files_encoded(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    log = open_log()
    sent = fill(log, 30)
    for start, end in ((0, 30), (36, 90)):
        compactor(log, files, clock).compact(start, end)
    bytes_of = [bytes(memoryview(files.read(f"{REF.folder}/{file.path}"))) for file in log.files]
    first = pq.read_metadata(pa.BufferReader(bytes_of[0]))
    pages = bytes_of[0][4 : first.row_group(1).column(0).data_page_offset]
    before = all_rows(log)
    compactor(log, files, clock).compact(0, 90)
    (file,) = log.files
    data = bytes(memoryview(files.read(f"{REF.folder}/{file.path}")))
    footer = pq.read_metadata(pa.BufferReader(data))
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [16, 14, 6, 16, 16, 16, 6]
    assert data[4:].startswith(pages) and all_rows(log).combine_chunks().equals(before.combine_chunks())
    fresh = open_log(cache_bytes_max=1)
    assert all_bodies(fresh, step=5) == sent
    fresh.verify()
    assert fresh.append([batch(*[b"other"] * 3, producer="p", seq=29)])[0].duplicate


def test_i6_the_service_deletes_the_files_that_a_task_let_go(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    service, task = open_log(file_keep_ms=5_000), open_log()
    fill(service, 6)
    old = {file.path for file in service.files}
    compactor(task, files, clock).compact(0, 18)
    clock.advance_ms(10_000)
    service.maintain()
    assert old < names(files), "it does not know yet"
    service.refresh()
    service.maintain()
    assert old < names(files), "it counts from when it saw them go"
    clock.advance_ms(5_000)
    service.maintain()
    assert names(files) == {file.path for file in service.files}


def test_i6_a_service_that_starts_afterwards_deletes_them_too(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    task = open_log()
    fill(task, 6)
    compactor(task, files, clock).compact(0, 18)
    service = open_log(file_keep_ms=5_000)
    clock.advance_ms(5_000)
    service.maintain()
    assert names(files) == {file.path for file in service.files}


@pytest.mark.parametrize("other", ["compaction", "roll-up", "retention"])
def test_spark_08_who_finds_its_files_gone_leaves_no_file_behind(
    other: str, open_log: OpenLog, files: MemoryStore, store: FaultyStore, clock: SetClock
) -> None:
    """The other one commits after this one has read and before it commits."""
    log, rival = open_log(store), open_log(rollup_files=4)
    sent = fill(log, 6)
    rival.refresh()
    before = names(files)

    def meanwhile(_: str) -> None:
        if other == "compaction":
            compactor(rival, files, clock).compact(0, 18)
        elif other == "roll-up":
            rival.maintain()
        else:
            rival.delete_below(3)

    store.once("before", "put", meanwhile)
    done = compactor(log, store, clock).compact(0, 18)
    assert (done.removed, done.rows) == ((), 0)
    live = {file.path for file in load(files, REF.folder).files}
    assert names(files) - before <= live, "its file is gone"
    assert all_bodies(log) == (sent[3:] if other == "retention" else sent)


def test_spark_08_appends_meanwhile_only_cost_another_try(
    open_log: OpenLog, files: MemoryStore, store: FaultyStore, clock: SetClock
) -> None:
    log, writer = open_log(store), open_log()
    sent = fill(log, 6)
    store.once("before", "put_if_absent", lambda _: writer.append([batch(b"x"), batch(b"y")]))
    assert len(compactor(log, store, clock).compact(0, 18).removed) == 6
    assert all_bodies(log) == all_bodies(open_log()) == [*sent, b"x", b"y"]


def test_rely_4_compaction_never_copies_damage(open_log: OpenLog, files: MemoryStore, clock: SetClock) -> None:
    log = open_log()
    fill(log, 6)
    victim = f"{REF.folder}/{log.files[3].path}"
    raw = bytearray(files.read(victim).to_pybytes())
    raw[10] ^= 4
    files.replace(victim, bytes(raw))
    with pytest.raises(Corrupt, match=log.files[3].path):
        compactor(log, files, clock).compact(0, 18)
    assert len(load(files, REF.folder).files) == 6


def test_spark_08_a_commit_without_an_answer_is_left_to_the_next_run(
    open_log: OpenLog, files: MemoryStore, store: FaultyStore, clock: SetClock
) -> None:
    log = open_log(store)
    sent = fill(log, 6)

    def lost(_: str) -> None:
        raise Unknown("no answer")

    store.once("after", "put_if_absent", lost)
    store.once("before", "read", lost)
    done = compactor(log, store, clock).compact(0, 18)
    again = compactor(open_log(), files, clock).compact(0, 18)
    assert (len(done.removed), len(again.removed)) in {(6, 0), (0, 6)}
    assert all_bodies(open_log()) == sent


def test_spark_08_tables_that_nobody_looks_after_are_rolled_up_first(
    open_log: OpenLog, files: MemoryStore, clock: SetClock
) -> None:
    log = open_log()
    sent = fill(log, 600, 1)
    compactor(log, files, clock).roll_up()
    assert len(log.files) <= 64 and log.checkpoint_version > 0
    assert all_bodies(open_log()) == sent


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "compact", "maintain", "retain", "repeat", "reopen"]), st.integers(0, 2)
    ),
    max_size=30,
)


@given(STEPS)
def test_spark_08_in_any_order_of_steps_of_three_processes_nothing_is_lost_or_repeated(
    steps: list[tuple[str, int]],
) -> None:
    files, clock = MemoryStore(), SetClock()
    settings_ = LogSettings(rollup_files=3, checkpoint_commits=4, file_keep_ms=1_000, row_group_rows=4)

    def opened() -> PartitionLog:
        return Warehouse.open("", store=files, settings=settings_, clock=clock).create(REF)

    logs = [opened() for _ in range(3)]
    sent: list[bytes] = []
    low = 0
    target = CompactionTargets(bytes=12_000, tail_bytes=1)
    for number, (step, who) in enumerate(steps):
        log = logs[who]
        clock.advance_ms(400)
        if step == "append":
            bodies = numbered_bodies(f"{number}", 1 + number % 3)
            done = log.append([batch(*bodies, producer="p", seq=number)])[0]
            assert done.base_offset == len(sent)
            sent += bodies
        elif step == "repeat" and (known := log.known_producer("p")) is not None:
            count = 1 + known.last_seq % 3
            assert log.append([batch(*[b"again"] * count, producer="p", seq=known.last_seq)])[0].duplicate
        elif step == "compact":
            for group in plan_compaction(log.files, target):
                Compactor(log, files, settings=settings_, clock=clock).compact(group[0].start, group[-1].end)
        elif step == "maintain":
            log.maintain()
        elif step == "retain":
            log.delete_below(max(0, log.end_offset - 4))
            low = max(low, log.min_offset)
        else:
            logs[who] = opened()
        low = max(low, log.min_offset)
    for log in [*logs, opened()]:
        log.refresh()
        assert all_bodies(log) == sent[low:]
        assert (log.min_offset, log.end_offset) == (low, len(sent))
    with_files = Warehouse.open("", store=files, settings=settings_, clock=clock)
    assert [f for f in verify(with_files) if f.gravity is not Gravity.NOTE] == []


def test_spark_08_threads_that_append_compact_roll_up_and_remove_at_once(files: MemoryStore, clock: SetClock) -> None:
    """Each round begins for all threads at once, so that none of them waits for its turn while others work."""
    settings_ = LogSettings(rollup_files=4, row_group_rows=16)
    # Two roll-ups reach it
    target = CompactionTargets(bytes=12_000, tail_bytes=1)
    opened = [Warehouse.open("", store=files, settings=settings_, clock=clock).create(REF) for _ in range(4)]
    rounds = 150
    sent = numbered_bodies("m", 4 * rounds)
    together = threading.Barrier(len(opened))
    compacted: list[Compacted] = []

    def append(number: int) -> None:
        for at in range(4 * number, 4 * number + 4, 2):
            opened[0].append([batch(*sent[at : at + 2], producer="p", seq=at)])

    def compact(_: int) -> None:
        opened[1].refresh()
        for group in plan_compaction(opened[1].files, target):
            made = Compactor(opened[1], files, settings=settings_, clock=clock).compact(group[0].start, group[-1].end)
            compacted.extend([made] * bool(made.removed))

    def roll_up(number: int) -> None:
        if number % 5 == 0:
            opened[2].refresh()
        opened[2].maintain()

    def remove(_: int) -> None:
        opened[3].delete_below(opened[3].end_offset - 120)

    def in_rounds(step: Callable[[int], None]) -> None:
        try:
            for number in range(rounds):
                together.wait(60)
                step(number)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(len(opened)) as threads:
        for done in [threads.submit(in_rounds, step) for step in (append, compact, roll_up, remove)]:
            done.result()
    final = Warehouse.open("", store=files, settings=settings_, clock=clock).create(REF)
    assert all_bodies(final) == sent[final.min_offset :]
    assert final.end_offset == len(sent) and final.min_offset > 0 and compacted
    final.verify()


def test_a_partition_that_is_closed_opens_again_as_it_was(files: MemoryStore, clock: SetClock) -> None:
    warehouse = Warehouse.open("", store=files, clock=clock)
    first = warehouse.create(REF)
    sent = fill(first, 3)
    warehouse.close_partition(REF)
    assert warehouse.open_logs == []
    again = warehouse.open_partition(REF)
    assert again is not first and all_bodies(again) == sent
    warehouse.close_partition(REF)
    warehouse.close_partition(REF)
    warehouse.close()
