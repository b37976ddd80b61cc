"""Opening a log: from its files alone, under load, and only when they agree (SPEC META-3, RELY-4)."""

from __future__ import annotations

import itertools
import threading

import pytest

from deltamq.mq.errors import Corrupt
from deltamq.tables.delta.checkpoint import read_checkpoint, write_checkpoint
from deltamq.tables.delta.snapshot import CommitLost, PartitionNotFound, load
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.store.store import ListedFile, MemoryStore, Store
from tests.faulty_store import FaultyStore
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.set_clock import SetClock
from tests.unit.tables.conftest import OpenLog

LOG = f"{REF.folder}/_delta_log"


def commit_key(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_key(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def fill(log: PartitionLog, count: int) -> None:
    for body in numbered_bodies("m", count):
        log.append([batch(body)])
        log.maintain()


def test_meta_3_the_state_is_what_the_writer_has(files: MemoryStore, open_log: OpenLog) -> None:
    log = open_log(rollup_files=4, checkpoint_commits=7)
    for _ in range(40):
        log.append([batch(b"x", b"y")])
        log.maintain()
        found = load(files, REF.folder)
        assert (found.version, found.end_offset, found.batch_id) == (
            log.version,
            log.end_offset,
            log.state.checkpoint().batch_id,
        )
        assert found.files == list(log.files)
        assert found.metadata == log.state.checkpoint().metadata


def test_no_log_is_no_partition(files: MemoryStore) -> None:
    with pytest.raises(PartitionNotFound):
        load(files, "topics/none/none@none")


def test_only_the_commits_after_the_checkpoint_are_read(files: MemoryStore, open_log: OpenLog) -> None:
    log = open_log(checkpoint_commits=10)
    fill(log, 25)
    store = FaultyStore(files)
    load(store, REF.folder)
    read = [key for key in store.keys("read") if key.endswith(".json")]
    assert read[0] == commit_key(log.checkpoint_version + 1)


@pytest.mark.parametrize("lost", [1, 5, 9])
def test_rely_4_a_missing_commit_is_found(files: MemoryStore, open_log: OpenLog, lost: int) -> None:
    fill(open_log(), 10)
    files.delete(commit_key(lost))
    with pytest.raises(Corrupt, match=f"{lost:020d}.json"):
        load(files, REF.folder)


def test_rely_4_a_missing_first_commit_is_found(files: MemoryStore, open_log: OpenLog) -> None:
    fill(open_log(), 3)
    files.delete(commit_key(0))
    with pytest.raises(Corrupt, match=f"{0:020d}.json"):
        load(files, REF.folder)


def test_rely_4_a_newest_commit_that_only_its_second_name_has_is_noticed(files: MemoryStore, open_log: OpenLog) -> None:
    fill(open_log(), 3)
    files.replace(f"{LOG}/.head", files.read(commit_key(3)))
    files.delete(commit_key(3))
    with pytest.raises(CommitLost, match=r"00003\.json is missing"):
        load(files, REF.folder)


@pytest.mark.parametrize("content", [b"", b"\x00" * 500, b'{"commitInfo":{"tags":{"mq.version":"99"}}}\n'])
def test_a_second_name_that_cannot_be_believed_stops_nothing(
    files: MemoryStore, open_log: OpenLog, content: bytes
) -> None:
    fill(open_log(), 3)
    files.replace(f"{LOG}/.head", content)
    assert load(files, REF.folder).version == 3


def test_rely_4_a_damaged_checkpoint_is_found_at_every_byte(files: MemoryStore, open_log: OpenLog) -> None:
    fill(open_log(checkpoint_commits=4, rollup_files=100), 4)
    raw = files.read(checkpoint_key(3)).to_pybytes()
    files.delete(f"{LOG}/.checkpoint-{3:020d}")
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        files.replace(checkpoint_key(3), bytes(damaged))
        with pytest.raises(Corrupt, match=r"00003\.checkpoint"):
            read_checkpoint(files, REF.folder, 3)
    for length in range(0, len(raw), 97):
        files.replace(checkpoint_key(3), raw[:length])
        with pytest.raises(Corrupt):
            read_checkpoint(files, REF.folder, 3)


def test_rely_4_a_checkpoint_under_another_version_is_found(files: MemoryStore, open_log: OpenLog) -> None:
    fill(open_log(checkpoint_commits=4), 6)
    files.replace(checkpoint_key(6), files.read(checkpoint_key(3)))
    with pytest.raises(Corrupt, match="the checkpoint of version 3"):
        load(files, REF.folder)


def test_a_checkpoint_survives_its_file(files: MemoryStore, open_log: OpenLog) -> None:
    log = open_log()
    for i in range(5):
        log.append([batch(*numbered_bodies(str(i), i + 1))])
    state = log.state.checkpoint()
    write_checkpoint(files, REF.folder, state, now_ms=1)
    assert read_checkpoint(files, REF.folder, state.version) == state


class MomentlessStore(MemoryStore):
    """A listing that takes its time: it misses a file that was made while it ran, and holds a later one."""

    missed = ""

    def entries(self, folder: str) -> list[ListedFile]:
        return [e for e in super().entries(folder) if e.name != self.missed]


def test_a_listing_that_is_no_moment_in_time_is_no_damage(open_log: OpenLog) -> None:
    store = MomentlessStore()
    fill(open_log(store), 10)
    for version in range(11):
        store.missed = f"{version:020d}.json"
        assert load(store, REF.folder).version == 10


def test_a_log_opens_while_it_is_appended(files: MemoryStore, open_log: OpenLog) -> None:
    """At every read of the opening process another one commits; `.head` is always newer than what was listed."""

    class Busy(FaultyStore):
        left = 200

        def __init__(self, store: Store, writer: PartitionLog) -> None:
            super().__init__(store)
            self.before = dict.fromkeys(("read", "exists", "names"), self._write)
            self._writer = writer

        def _write(self, _: str) -> None:
            if self.left > 0:
                self.left -= 1
                self._writer.append([batch(b"x")])
                self._writer.maintain()
                files.replace(f"{LOG}/.head", files.read(commit_key(self._writer.version)))

    writer = open_log(rollup_files=4, checkpoint_commits=16)
    fill(writer, 20)
    busy = Busy(files, writer)
    found = load(busy, REF.folder)
    assert busy.left == 0
    assert found.version == writer.version


def test_a_log_opens_while_it_is_cleaned(files: MemoryStore, open_log: OpenLog, clock: SetClock) -> None:
    """What the opening process is about to read goes; a newer checkpoint is there instead."""
    writer = open_log(rollup_files=4, checkpoint_commits=4, log_keep_ms=1_000)
    fill(writer, 20)
    for _ in range(3):
        clock.advance_ms(1_000)
        writer.append([batch(b"x")])
        writer.maintain()
    store = FaultyStore(files)

    def clean(_: str) -> None:
        for _ in range(6):
            clock.advance_ms(1_000)
            writer.append([batch(b"y")])
            writer.maintain()

    for name in ("read", "names"):
        store.once("after", name, clean)
    assert load(store, REF.folder).end_offset == writer.end_offset


class HeadStore(MemoryStore):
    """Keeps the file of a log that it put last under the name `.head`, too, as a store on a local disk does."""

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        stored = super().put_if_absent(key, data, durable=durable)
        if stored and key.startswith(LOG):
            self.replace(f"{LOG}/.head", data)
        return stored


def test_a_log_opens_though_its_process_sleeps_before_any_call(clock: SetClock, open_log: OpenLog) -> None:
    """While it sleeps, the log grows and is cleaned: the next commit is gone, and `.head` holds a much later one."""
    for asleep in itertools.count(1):
        files = HeadStore()
        writer = open_log(files, rollup_files=4, checkpoint_commits=4, log_keep_ms=1_000)
        fill(writer, 2)
        store = FaultyStore(files)

        def sleep(
            _: str,
            store: FaultyStore = store,
            files: MemoryStore = files,
            writer: PartitionLog = writer,
            asleep: int = asleep,
        ) -> None:
            if len(store.calls) != asleep:
                return
            for _ in range(12):
                clock.advance_ms(1_000)
                writer.append([batch(b"y")])
                writer.maintain()
            assert not files.exists(commit_key(3))

        store.before = dict.fromkeys(("read", "exists", "names"), sleep)
        assert load(store, REF.folder).version == writer.version
        if len(store.calls) < asleep:
            assert asleep > 5
            break


def test_processes_open_and_read_while_one_appends(files: MemoryStore, open_log: OpenLog) -> None:
    writer = open_log(rollup_files=4, checkpoint_commits=16)
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        while not stop.is_set():
            writer.append([batch(b"x")])
            writer.maintain()

    def open_and_read() -> None:
        try:
            for _ in range(15):
                log = open_log()
                assert all_bodies(log) == [b"x"] * log.end_offset
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=open_and_read) for _ in range(2)]
    thread = threading.Thread(target=write)
    for each in (thread, *readers):
        each.start()
    for each in readers:
        each.join()
    stop.set()
    thread.join()
    assert failed == []
