"""Applications share a job's shards: on a local disk by locks, on an object store by leases, whatever clocks say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from deltamq.jobs.run.application import Application, Applications, Holder
from deltamq.jobs.run.locks import DriverBusy, holder_of, known_shards, shard_lock
from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.run.shards import JobShards
from deltamq.mq.errors import Fenced, Unavailable
from deltamq.tables.config import Config
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import MemoryStore, Store
from tests.faulty_store import FaultyStore, failing

CONF = Config()


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


@pytest.fixture
def apps() -> Iterator[ExitStack]:
    """Ends all applications of a test."""
    with ExitStack() as ending:
        yield ending


class Clock:
    """Time that a test sets, for both clocks."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def boot_ms(self) -> int:
        return self.ms

    def wall_us(self) -> int:
        return self.ms * 1000


def _run(spark: object, conf: Config, now: datetime, shards: object = None) -> Facts:
    raise AssertionError("nothing runs here")


class App:
    """An application with one job, tended by the test's hand."""

    def __init__(self, apps: ExitStack, store: Store, clock: Clock, *shards: str) -> None:
        self.names: Sequence[str] = shards
        me = Holder.this()
        job = Job(name="a", run=_run, every_s=lambda conf: 1, document="Do.", shards=lambda conf: self.names)
        self.shards = JobShards(job, CONF, store, me, clock=clock)
        self.others = Applications(store, Application(holder=me, jobs={"a": "local"}), clock=clock)
        apps.callback(self.end)

    def end(self) -> None:
        self.others.withdraw()
        self.shards.end_run()
        self.shards.release()

    def tend(self) -> tuple[str, ...]:
        self.others.look()
        self.shards.tend(self.others.taking_part("a"))
        return self.shards.held


def test_spark_07_a_newcomer_gets_half_and_its_end_gives_it_back(apps: ExitStack, store: Store) -> None:
    clock = Clock()
    one = App(apps, store, clock, *"abcd")
    assert one.tend() == ("a", "b", "c", "d")
    two = App(apps, store, clock, *"abcd")
    assert two.tend() == ()
    assert set(two.shards.others) == set("abcd")
    clock.ms += 20_000
    for app in (two, one, two):  # two tells of itself, one gives, two takes
        app.tend()
    assert (one.tend(), two.tend()) == (("a", "b"), ("c", "d"))
    two.end()
    clock.ms += 20_000
    assert one.tend() == ("a", "b", "c", "d")


def test_spark_07_what_a_run_works_on_is_given_back_when_it_ends(apps: ExitStack, store: Store) -> None:
    clock = Clock()
    one, two = App(apps, store, clock, *"ab"), App(apps, store, clock, *"ab")
    two.others.look()
    one.shards.tend([one.others.me.holder.application])
    locks = one.shards.begin_run()
    assert [lock.shard for lock in locks] == ["a", "b"]
    one.tend()
    two.tend()
    assert (one.shards.held, two.shards.held) == (("a", "b"), ())
    for lock in locks:
        lock.check()
    one.shards.end_run()
    assert (one.shards.held, two.tend()) == (("a",), ("b",))


@pytest.mark.promise("JOB-14")
def test_spark_07_a_shard_that_a_sleeper_does_not_take_is_taken_back_and_kept(apps: ExitStack, store: Store) -> None:
    """An application that is stopped takes part for three signs of life, and its share is nobody's meanwhile."""
    clock = Clock()
    one, sleeper = App(apps, store, clock, *"ab"), App(apps, store, clock, *"ab")
    one.shards.tend([one.others.me.holder.application])
    sleeper.others.look()
    assert one.tend() == ("a",)
    clock.ms += 2_000
    assert one.tend() == ("a",)
    clock.ms += 3_000
    assert one.tend() == ("a", "b")
    assert one.tend() == ("a", "b"), "given to the sleeper again"
    clock.ms += 40_000
    assert one.others.taking_part("a") == [one.others.me.holder.application]
    # It wakes, and gets its share when what was kept for its sake has been kept long enough.
    sleeper.others.look()
    assert sleeper.tend() == ()
    clock.ms += 60_000
    sleeper.others.look()
    assert (one.tend(), sleeper.tend()) == (("a",), ("b",))


def test_spark_07_new_shards_are_found_and_ended_ones_let_go_of(apps: ExitStack, store: Store) -> None:
    clock = Clock()
    one = App(apps, store, clock, "a", "broker/b")
    assert one.tend() == ("a", "broker/b")
    one.names = ("broker/b", "c")
    assert one.tend() == ("a", "broker/b"), "asked too often"
    clock.ms += 5_000
    assert one.tend() == ("broker/b", "c")
    assert holder_of(store, "a", "a") is None
    assert set(known_shards(store, "a")) >= {"broker/b", "c"}


def test_spark_07_names_of_any_kind_are_files(store: Store) -> None:
    for shard in ("../../etc", "a/b", ".hidden", "ü", "x" * 300):
        with shard_lock(store, "a", shard), pytest.raises(DriverBusy), shard_lock(store, "a", shard):
            pass
        assert holder_of(store, "a", shard) is None


def test_rely_3_jumping_clocks_move_no_file_lock(
    apps: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = LocalStore(tmp_path), Clock()
    one, two = App(apps, store, clock, "a"), App(apps, store, clock, "a")
    one.tend()
    real = time.time_ns
    for jump_s in (-10_000_000, 10_000_000):
        monkeypatch.setattr(time, "time_ns", lambda jump_s=jump_s: real() + jump_s * 1_000_000_000)
        clock.ms += 1_000_000
        assert (one.tend(), two.tend()) == (("a",), ())
    (lock,) = one.shards.begin_run()
    lock.check()


def test_rely_3_a_lock_whose_file_was_removed_is_lost(apps: ExitStack, tmp_path: Path) -> None:
    """Somebody tidied up: the next process would make the file anew, and two would have the shard."""
    store = LocalStore(tmp_path)
    one = App(apps, store, Clock(), "a")
    one.tend()
    (lock,) = one.shards.begin_run()
    (tmp_path / "jobs" / "a" / "shards" / "a.lock").unlink()
    with pytest.raises(Fenced):
        lock.check()
    with shard_lock(store, "a", "a") as other:
        one.shards.end_run()
        assert one.shards.begin_run() == ()
        other.check()
    assert one.tend() == ("a",)


def _end_lease(store: Store, shard: str) -> None:
    """Let the time of a lease pass, for all who read it."""
    folder = f"jobs/a/shards/{shard}"
    (name,) = store.names(folder)
    record = msgspec.json.decode(bytes(store.read(f"{folder}/{name}")))
    store.replace(f"{folder}/{name}", msgspec.json.encode(record | {"until_ms": 1_000}))


def test_rely_3_the_shards_of_a_dead_application_are_taken_when_its_leases_are_over(apps: ExitStack) -> None:
    store, clock = MemoryStore(), Clock()
    dead, heir = App(apps, store, clock, *"ab"), App(apps, store, clock, *"ab")
    dead.tend()
    assert heir.tend() == ()
    clock.ms += 40_000  # no sign of it any more, but nobody knows
    assert heir.tend() == ()
    assert {str(holder) for holder in heir.shards.others.values()} == {str(dead.others.me.holder)}
    for shard in "ab":
        _end_lease(store, shard)
    assert holder_of(store, "a", "a") is None
    assert heir.tend() == ("a", "b")


def test_rely_3_an_outage_loses_no_shard_that_is_leased(apps: ExitStack) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    clock = Clock()
    one = App(apps, store, clock, *"ab")
    one.tend()
    store.before["names"] = failing(Unavailable("out"))
    one.names = ("a", "b", "c")
    clock.ms += 5_000
    with pytest.raises(Unavailable):
        one.tend()
    assert [lock.shard for lock in one.shards.begin_run()] == ["a", "b"]
    one.shards.end_run()
    del store.before["names"]
    assert one.tend() == ("a", "b", "c")


def test_spark_07_an_application_that_ended_is_forgotten(apps: ExitStack, store: Store) -> None:
    clock = Clock()
    one, two = App(apps, store, clock, "a"), App(apps, store, clock, "a")
    two.others.look()
    one.others.look()
    assert len(one.others.taking_part("a")) == 2
    assert one.others.taking_part("other job") == []
    two.others.withdraw()
    one.others.look()
    assert len(one.others.taking_part("a")) == 1
