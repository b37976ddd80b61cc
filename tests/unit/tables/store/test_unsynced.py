"""What `Flush.ASYNC` leaves in the page cache, and who makes it durable before what (SPEC RELY-1)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from deltamq.mq.errors import Unavailable
from deltamq.tables.settings import Flush
from deltamq.tables.store.store import MemoryStore
from deltamq.tables.store.unsynced import Unsynced
from tests.faulty_store import FaultyStore, failing
from tests.rows import REF, all_bodies, batch
from tests.unit.tables.conftest import OpenLog


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Return when `condition` holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)


def synced_before(store: FaultyStore, name: str, key: str) -> bool:
    """Whether `key` was synced before the last call of `name` began."""
    at = max(i for i, (called, _) in enumerate(store.calls) if called == name)
    return any(called == "sync" and key in synced for called, synced in store.calls[:at])


@pytest.mark.promise("FLUSH-6")
def test_rely_1_a_durable_append_syncs_what_was_not(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, flush_interval_ms=3_600_000)
    log.append([batch(b"a")], flush=Flush.ASYNC)
    data = log.files[0].path
    assert log.unsynced == 2
    log.append([batch(b"b")], flush=Flush.SYNC)
    assert log.unsynced == 0
    assert synced_before(store, "put_if_absent", data)
    assert synced_before(store, "put_if_absent", f"{1:020d}.json")


def test_rely_1_data_is_synced_before_the_commit_that_names_it(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, flush_interval_ms=3_600_000)
    log.append([batch(b"a")], flush=Flush.ASYNC)
    log.append([batch(b"b")], flush=Flush.ASYNC)
    log.flush()
    (synced,) = store.keys("sync")
    order = synced.split(",")
    assert [key.endswith(".json") for key in order] == [False, True, False, True]


def test_rely_1_what_another_writer_left_unsynced_is_synced_before_a_durable_append(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog
) -> None:
    one, two = open_log(store), open_log(flush_interval_ms=3_600_000)
    two.append([batch(b"a")], flush=Flush.ASYNC)
    one.append([batch(b"b")])
    assert synced_before(store, "put_if_absent", f"{1:020d}.json")


def test_rely_1_what_a_killed_writer_left_unsynced_is_synced_after_opening(
    files: MemoryStore, store: FaultyStore, open_log: OpenLog
) -> None:
    """The next process must not acknowledge behind a commit that a power cut would still take."""
    killed = open_log(flush_interval_ms=3_600_000)
    killed.append([batch(b"a")], flush=Flush.ASYNC)
    successor = open_log(store, flush_interval_ms=3_600_000)
    assert successor.unsynced == 2
    successor.append([batch(b"b")])
    assert synced_before(store, "put_if_absent", f"{1:020d}.json")
    assert synced_before(store, "put_if_absent", killed.files[0].path)


def test_rely_1_what_arrives_unsynced_during_a_lost_race_is_synced_before_the_next_try(
    store: FaultyStore, open_log: OpenLog
) -> None:
    one, two = open_log(store), open_log(flush_interval_ms=3_600_000)
    store.once(
        "before", "put_if_absent", lambda _: two.append([batch(b"a")], flush=Flush.ASYNC) and None, key="/orders@"
    )
    assert one.append([batch(b"b")])[0].base_offset == 1
    assert synced_before(store, "put_if_absent", f"{1:020d}.json")


def test_rely_1_a_checkpoint_is_not_more_durable_than_its_commits(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, checkpoint_commits=2, flush_interval_ms=3_600_000)
    for body in (b"a", b"b"):
        log.append([batch(body)], flush=Flush.ASYNC)
    assert log.maintain()
    written = next(i for i, (name, key) in enumerate(store.calls) if name == "replace" and "checkpoint" in key)
    synced = next(i for i, (name, _) in enumerate(store.calls) if name == "sync")
    assert synced < written


def test_a_sync_that_fails_keeps_what_is_to_be_synced(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, flush_interval_ms=3_600_000)
    log.append([batch(b"a")], flush=Flush.ASYNC)
    store.once("before", "sync", failing(Unavailable("disk error")))
    with pytest.raises(Unavailable):
        log.append([batch(b"b")])
    assert log.unsynced == 2
    assert all_bodies(log) == [b"a"]


def test_rely_1_after_a_sync_that_failed_files_are_written_again(store: FaultyStore, open_log: OpenLog) -> None:
    """The kernel forgets what it could not write, and the next sync succeeds: it proves nothing."""
    log = open_log(store, flush_interval_ms=3_600_000)
    log.append([batch(b"a")], flush=Flush.ASYNC)
    store.once("before", "sync", failing(Unavailable("disk error")))
    with pytest.raises(Unavailable):
        log.flush()
    log.flush()
    assert len(store.keys("sync")) == 1
    assert [k.rpartition("/")[2] for k in store.keys("replace")] == [log.files[0].path, f"{1:020d}.json"]
    assert log.unsynced == 0
    log.append([batch(b"b")], flush=Flush.ASYNC)
    log.flush()
    assert len(store.keys("sync")) == 2, "later files are synced as ever"


def test_files_that_were_written_again_are_done_though_the_next_one_fails(
    store: FaultyStore, open_log: OpenLog
) -> None:
    """Else a disk that fails now and then would never see the end of a long list."""
    log = open_log(store, flush_interval_ms=3_600_000)
    for body in (b"a", b"b", b"c"):
        log.append([batch(body)], flush=Flush.ASYNC)
    store.once("before", "sync", failing(Unavailable("disk error")))
    with pytest.raises(Unavailable):
        log.flush()
    for left in (5, 4):
        store.once("after", "replace", lambda _: store.once("before", "replace", failing(Unavailable("disk error"))))
        with pytest.raises(Unavailable):
            log.flush()
        assert log.unsynced == left
    log.flush()
    assert log.unsynced == 0
    assert len(set(store.keys("replace"))) == 6


@pytest.mark.promise("FLUSH-4")
def test_the_flusher_makes_appends_durable_by_itself(store: FaultyStore, open_log: OpenLog) -> None:
    import threading

    synced = threading.Event()
    log = open_log(store, flush_interval_ms=20)
    store.after["sync"] = lambda _: synced.set()
    log.append([batch(b"a")], flush=Flush.ASYNC)
    assert synced.wait(10)


def test_closing_makes_appends_durable(files: MemoryStore, store: FaultyStore) -> None:
    from deltamq.tables.log.warehouse import Warehouse
    from deltamq.tables.settings import LogSettings

    warehouse = Warehouse.open("", store=store, settings=LogSettings(flush_interval_ms=3_600_000))
    warehouse.create(REF).append([batch(b"a")], flush=Flush.ASYNC)
    warehouse.close()
    assert len(store.keys("sync")) == 1


@pytest.mark.parametrize("error", [Unavailable("no"), KeyboardInterrupt()])
def test_keys_are_never_forgotten_by_an_error(store: FaultyStore, error: BaseException) -> None:
    unsynced = Unsynced(store)
    unsynced.add(["a", "b"])

    def fail(_: str) -> None:
        raise error

    store.before["sync"] = fail
    with pytest.raises(type(error)):
        unsynced.sync()
    assert len(unsynced) == 2


def test_a_second_flush_waits_for_the_first(store: FaultyStore) -> None:
    """Else it would return before the files are durable that the first has taken on."""
    import threading

    unsynced = Unsynced(store)
    unsynced.add(["a"])
    entered, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        entered.set()
        assert go_on.wait(10)

    store.before["sync"] = slow
    done: list[str] = []

    def flush(name: str) -> Callable[[], None]:
        def run() -> None:
            unsynced.sync()
            done.append(name)

        return run

    first = threading.Thread(target=flush("first"))
    first.start()
    assert entered.wait(10)
    second = threading.Thread(target=flush("second"))
    second.start()
    assert len(unsynced) == 1, "what is being synced is not yet synced"
    second.join(0.05)
    assert done == []
    go_on.set()
    first.join()
    second.join()
    assert done == ["first", "second"]


def test_rely_1_the_flusher_looks_only_at_what_has_something_to_sync(files: MemoryStore) -> None:
    """Thousands of idle partitions would otherwise be locked five times a second."""
    told: list[Unsynced] = []
    idle, busy = Unsynced(files, told.append), Unsynced(files, told.append)
    assert (len(idle), told) == (0, [])
    busy.add(["a"])
    busy.add_failed(["b"])
    assert told == [busy, busy]


def test_rely_1_an_asynchronous_append_is_made_durable_by_the_flusher(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, flush_interval_ms=1)
    for body in (b"a", b"b"):
        log.append([batch(body)], flush=Flush.ASYNC)
        until(lambda: log.unsynced == 0)


def test_rely_1_what_the_flusher_could_not_sync_it_tries_again(store: FaultyStore, open_log: OpenLog) -> None:
    log = open_log(store, flush_interval_ms=1)
    store.before["sync"] = failing(Unavailable("out"))
    log.append([batch(b"a")], flush=Flush.ASYNC)
    until(lambda: store.keys("sync"))
    # What could not be synced is written anew: the kernel may call it clean.
    until(lambda: log.unsynced == 0)
    assert len(store.keys("replace")) == 2


def test_what_is_deleted_is_synced_no_more(store: FaultyStore) -> None:
    unsynced = Unsynced(store)
    unsynced.add(["gone"])
    unsynced.drop()
    unsynced.add(["gone, too"])
    unsynced.sync()
    assert (len(unsynced), store.keys("sync")) == (0, [])
