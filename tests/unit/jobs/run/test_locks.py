"""One driver at a time for each job (SPEC RELY-3), on local disks and on object stores."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.locks import DriverBusy, shard_lock
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import MemoryStore, Store
from tests.faulty_store import FaultyStore

DEAD = Holder(application="a", host="dead", pid=1, since_ms=0)
LEASE = "jobs/merge/shards/all"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


def test_rely_3_a_second_driver_is_refused_and_told_who_has_it(store: Store) -> None:
    with shard_lock(store, "merge") as lock:
        lock.check()
        with (
            pytest.raises(DriverBusy, match=r"merge is running in another process \(.* pid \d+"),
            shard_lock(store, "merge"),
        ):
            pass
        with shard_lock(store, "revive"):
            pass
    with shard_lock(store, "merge"):
        pass


def test_rely_3_of_many_drivers_one_wins(store: Store) -> None:
    start, end = threading.Barrier(8), threading.Barrier(8)
    won: list[int] = []

    def drive(number: int) -> None:
        start.wait()
        try:
            with shard_lock(store, "merge"):
                won.append(number)
                end.wait()
        except DriverBusy:
            end.wait()

    drivers = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert len(won) == 1


def test_rely_3_a_killed_driver_on_this_machine_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from deltamq.jobs.run.locks import shard_lock\n"
        "from deltamq.tables.store.local import LocalStore\n"
        "with shard_lock(LocalStore(sys.argv[1]), 'merge'): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    assert (tmp_path / "jobs" / "merge" / "shards" / "all.lock").exists()
    with shard_lock(LocalStore(tmp_path), "merge"):
        pass


def _lease(store: Store, until_ms: int) -> None:
    record = msgspec.json.encode({"holder": DEAD, "token": "t", "until_ms": until_ms})
    store.put_if_absent(f"{LEASE}/{7:020d}.json", record, durable=True)


def test_rely_3_the_lease_of_a_dead_driver_ends_by_itself() -> None:
    store = MemoryStore()
    _lease(store, until_ms=1_000_000)
    with shard_lock(store, "merge"):
        assert [entry.name for entry in store.entries(LEASE)] == [f"{8:020d}.json"]


def test_rely_3_a_lease_that_has_not_ended_is_kept() -> None:
    store = MemoryStore()
    _lease(store, until_ms=4_000_000_000_000)
    with pytest.raises(DriverBusy, match="dead"), shard_lock(store, "merge"):
        pass


def test_rely_6_a_driver_that_slept_before_it_took_the_lease_is_refused() -> None:
    """The epoch that it is about to take was held, over and removed meanwhile; a later one is held."""
    store = FaultyStore(MemoryStore())
    with shard_lock(store, "merge"):
        pass
    others = contextlib.ExitStack()

    def meanwhile(_: str) -> None:
        with shard_lock(store, "merge"):
            pass
        others.enter_context(shard_lock(store, "merge"))

    store.once("before", "put_if_absent", meanwhile)
    with others:
        with pytest.raises(DriverBusy, match="meanwhile"), shard_lock(store, "merge"):
            pass
        with pytest.raises(DriverBusy), shard_lock(store, "merge"):
            pass
    with shard_lock(store, "merge"):
        pass
