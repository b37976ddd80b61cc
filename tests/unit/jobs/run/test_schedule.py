"""Jobs run when they are due, one failing does not stop another, and every run is remembered."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import Recorder, read_last_run, seconds_until_due, write_last_run
from deltamq.jobs.run.locks import DriverBusy, shard_lock
from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.run.schedule import Scheduler
from deltamq.jobs.run.telling import error_text
from deltamq.jobs.run.work import Work
from deltamq.jobs.spark.runner import SparkRunner
from deltamq.mq.errors import Unavailable
from deltamq.tables.config import Config, load
from deltamq.tables.ops.job_runs import IDLE_RECORD_S, LastRun, newest_run, read_running, read_runs, seconds_behind
from deltamq.tables.store.local import LocalStore
from deltamq.tables.store.store import MemoryStore, Store
from tests.faulty_store import FaultyStore

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def _never(spark: object, conf: Config, now: datetime, shards: object = None) -> Facts:
    raise AssertionError("a runner carries jobs out")


def _job(name: str, every_s: float = 3600) -> Job:
    return Job(name=name, run=_never, every_s=lambda conf: every_s, document=f"Do {name}.")


def _run(name: str, *, ok: bool = True, at: datetime = NOW, ok_at: datetime | None = None) -> LastRun:
    return LastRun(job=name, started_at=at, seconds=1.5, ok=ok, detail="" if ok else "x", ok_at=ok_at or at)


class Bench:
    """A scheduler, and the runner of its jobs, which do what a test says, in a store in memory."""

    def __init__(self, *jobs: Job, every_s: float | None = None, wait: bool = True, store: Store | None = None) -> None:
        self.store = store or MemoryStore()
        self.ran: list[str] = []
        self.told: list[str] = []
        self.does: dict[str, Callable[[], Facts]] = {}
        self.scheduler = Scheduler(
            jobs,
            Config(),
            self.store,
            runner=self,
            tell=self.told.append,
            every_s=every_s,
            now=lambda: NOW,
            wait=wait,
        )
        self.cancelled: list[str] = []
        self.ends: dict[str, Callable[[], object]] = {}
        self.shards: list[Sequence[str]] = []

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        self.ends.get(job, lambda: None)()

    def missing(self, job: Job, conf: Config) -> str:
        return ""

    def progress(self, job: str) -> str:
        return "tasks=1/2"

    def __call__(self, job: Job, conf: Config, now: datetime, shards: Sequence[str]) -> Facts:
        self.shards.append(shards)
        self.ran.append(job.name)
        return self.does.get(job.name, lambda: {"rows": 3})()


def _fail() -> Facts:
    raise ValueError("no\nway")


def test_once_runs_every_job_and_remembers_how_it_ended() -> None:
    bench = Bench(_job("a"), _job("b"))
    bench.does["a"] = _fail
    assert bench.scheduler.run_once() is False
    assert bench.ran == ["a", "b"]
    a, b = read_last_run(bench.store, "a"), read_last_run(bench.store, "b")
    assert a is not None
    assert b is not None
    assert (a.ok, a.detail, a.ok_at) == (False, "ValueError: no way", None)
    assert (b.ok, b.facts, b.ok_at, b.started_at) == (True, {"rows": 3}, NOW, NOW)
    assert [line.split(" seconds=")[0] for line in bench.told] == ["job=a FAILED", "job=b ok"]


def test_a_failure_keeps_when_it_last_went_well() -> None:
    bench = Bench(_job("a"))
    write_last_run(bench.store, _run("a", at=NOW - timedelta(days=1)))
    bench.does["a"] = _fail
    bench.scheduler.run_once()
    found = read_last_run(bench.store, "a")
    assert found is not None
    assert (found.started_at, found.ok_at) == (NOW, NOW - timedelta(days=1))


def test_a_job_that_another_driver_runs_is_not_run_twice() -> None:
    bench = Bench(_job("a"), _job("b"))
    with shard_lock(bench.store, "a"):
        assert bench.scheduler.run_once() is False
    assert bench.ran == ["b"]
    assert "running in another process" in bench.told[0]
    assert read_last_run(bench.store, "a") is None


def test_a_job_that_never_ran_is_due_and_one_that_just_ran_is_not() -> None:
    bench = Bench(_job("a"), _job("b"))
    write_last_run(bench.store, _run("a"))
    bench.does["b"] = lambda: bench.scheduler.stop() or {}
    bench.scheduler.run_until_stopped()
    assert bench.ran == ["b"]


def test_a_schedule_goes_on_until_stopped_whatever_fails() -> None:
    bench = Bench(_job("a"), every_s=0.01)

    def third_ends() -> Facts:
        if len(bench.ran) == 3:
            bench.scheduler.stop()
        return _fail()

    bench.does["a"] = third_ends
    bench.scheduler.run_until_stopped()
    assert bench.ran == ["a"] * 3


def test_a_signal_that_a_jobs_thread_got_stops_a_schedule() -> None:
    """As after a suspension, when the system hands it to any thread."""
    bench = Bench(_job("a"))

    def stopped_from_outside() -> Facts:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return {}

    bench.does["a"] = stopped_from_outside
    before = signal.signal(signal.SIGTERM, lambda *_: bench.scheduler.stop())
    try:
        bench.scheduler.run_until_stopped()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert bench.ran == ["a"]


@pytest.mark.parametrize(
    ("age_s", "due_s", "behind_s"), [(None, 0, 0), (0, 60, 0), (59, 1, 0), (61, 0, 1), (600, 0, 540), (-600, 60, 0)]
)
def test_when_a_job_is_due(age_s: float | None, due_s: float, behind_s: float) -> None:
    last = None if age_s is None else _run("a", at=NOW - timedelta(seconds=age_s))
    assert seconds_until_due(last, 60, NOW) == due_s
    assert seconds_behind(last, 60, NOW) == behind_s


def test_what_cannot_be_read_counts_as_never_run() -> None:
    store = MemoryStore()
    store.replace("jobs/a/last_run.json", b"{")
    assert read_last_run(store, "a") is None


def test_a_job_does_not_wait_for_another() -> None:
    """A merge that takes long must not delay a message that is due again."""
    bench = Bench(_job("slow", every_s=0.01), _job("fast", every_s=0.01))
    fast_ran_often = threading.Event()

    def slow() -> Facts:
        assert fast_ran_often.wait(20)
        bench.scheduler.stop()
        return {}

    def fast() -> Facts:
        if bench.ran.count("fast") == 5:
            fast_ran_often.set()
        return {}

    bench.does.update(slow=slow, fast=fast)
    bench.scheduler.run_until_stopped()
    assert bench.ran.count("slow") == 1
    assert bench.ran.count("fast") >= 5


def test_a_second_driver_that_must_not_wait_refuses_and_starts_nothing() -> None:
    bench = Bench(_job("a"), _job("b"), wait=False)
    with shard_lock(bench.store, "b"), pytest.raises(DriverBusy, match=r"job b is running in another process .*pid"):
        bench.scheduler.run_until_stopped()
    assert bench.ran == []
    with shard_lock(bench.store, "a"):
        pass  # and let go of what it had


def test_a_driver_keeps_its_locks_between_runs() -> None:
    """It tells of a run when that is over and the next has not begun."""
    bench = Bench()
    asked = []

    def ask(_line: str) -> None:
        with pytest.raises(DriverBusy), shard_lock(bench.store, "a"):
            pass
        asked.append(True)
        scheduler.stop()

    scheduler = Scheduler([_job("a")], Config(), bench.store, runner=bench, tell=ask, now=lambda: NOW)
    scheduler.run_until_stopped()
    assert asked == [True]


def test_an_error_outside_of_a_job_ends_the_driver_loudly() -> None:
    bench = Bench(_job("a"))
    broken = Job(name="b", run=_never, every_s=_no_period, document="Have no schedule.")
    scheduler = Scheduler([broken], Config(), bench.store, runner=bench, tell=bench.told.append)
    with pytest.raises(ValueError, match="no period"):
        scheduler.run_until_stopped()


def _no_period(conf: Config) -> float:
    raise ValueError("no period")


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_many_runs_a_second_write_one_file_a_second_and_idle_ones_fewer() -> None:
    store, clock = MemoryStore(), Clock()
    recorder = Recorder(store, "a", monotonic_s=clock)
    written = set()

    def run(rows: int) -> None:
        at = NOW + timedelta(seconds=clock.now_s)
        recorder.note(LastRun(job="a", started_at=at, seconds=0, ok=True, detail="", facts={"rows": rows}))
        found = read_last_run(store, "a")
        assert found is not None
        written.add(found.started_at)

    for _ in range(40):  # ten seconds of work
        run(1)
        clock.now_s += 0.25
    assert len(written) == 10
    written.clear()
    run(0)
    for _ in range(160):  # forty seconds of idling
        run(0)
        clock.now_s += 0.25
    assert len(written) <= 40 / IDLE_RECORD_S + 2
    recorder.flush()
    found = read_last_run(store, "a")
    assert found is not None
    assert (found.rows, found.facts["rows"], found.since) == (40, 0, NOW + timedelta(seconds=100))


def test_a_failure_and_its_end_are_written_at_once() -> None:
    store, clock = MemoryStore(), Clock()
    recorder = Recorder(store, "a", monotonic_s=clock)
    for ok in (True, False, True):
        recorder.note(_run("a", ok=ok))
        found = read_last_run(store, "a")
        assert found is not None
        assert found.ok is ok


def test_a_job_whose_idle_runs_are_not_written_is_not_behind() -> None:
    assert seconds_behind(_run("a", at=NOW - timedelta(seconds=IDLE_RECORD_S)), 0.25, NOW) == 0
    assert seconds_behind(_run("a", at=NOW - timedelta(seconds=10)), 0.25, NOW) == 10 - 0.25 - IDLE_RECORD_S


def test_spark_07_an_error_of_java_is_told_by_its_causes() -> None:
    error = ValueError("o1.get.\n: org.Exception: awaited\n\tat org.A(A.scala:1)\nCaused by: too big\n\t... 3 more")
    assert error_text(error) == "ValueError: o1.get. : org.Exception: awaited Caused by: too big"


def test_a_job_whose_lock_is_lost_stands_still_until_it_has_it_again(tmp_path: Path) -> None:
    bench = Bench(_job("a", every_s=0.001), store=LocalStore(tmp_path))
    file = tmp_path / "jobs" / "a" / "shards" / "all.lock"
    stranger = ExitStack()

    def lose_it() -> Facts:
        if len(bench.ran) == 2:
            file.unlink()
            stranger.enter_context(shard_lock(bench.store, "a"))
        if len(bench.ran) == 4:
            bench.scheduler.stop()
        return {}

    def heard(line: str) -> None:
        bench.told.append(line)
        if "asking for it again" in line:
            stranger.close()

    bench.does["a"] = lose_it
    bench.scheduler = Scheduler([_job("a", every_s=0.001)], Config(), bench.store, runner=bench, tell=heard)
    bench.scheduler.run_until_stopped()
    assert bench.ran == ["a"] * 4
    said = [re.sub(r" seconds=[\d.]+", "", line) for line in bench.told]
    assert said[0] == "job=a ok"
    assert "FAILED" in said[1] and "Fenced: the lock of job a may have passed to another driver" in said[1]
    assert said[2] == "job=a FAILED its lock is lost; asking for it again"
    assert said[-1] == "job=a ok"


def test_spark_07_a_standby_says_so_and_takes_over(tmp_path: Path) -> None:
    bench = Bench(_job("a"), store=LocalStore(tmp_path))
    holding = ExitStack()
    holding.enter_context(shard_lock(bench.store, "a"))
    bench.does["a"] = lambda: bench.scheduler.stop() or {}

    def heard(line: str) -> None:
        bench.told.append(line)
        holding.close()  # the owner ends when somebody stands by

    bench.scheduler = Scheduler([_job("a")], Config(), bench.store, runner=bench, tell=heard, now=lambda: NOW)
    bench.scheduler.run_until_stopped()
    assert bench.ran == ["a"]
    assert re.fullmatch(r"stands by for a\[all\], held by .* pid \d+", bench.told[0])
    assert re.fullmatch(r"job=a takes over shards=all from .* pid \d+", bench.told[1])


def test_spark_07_a_run_that_does_not_end_is_cancelled_some_time_after_a_stop() -> None:
    bench = Bench(_job("a"), _job("b"))
    ended = threading.Event()

    def endless() -> Facts:
        bench.scheduler.stop()
        assert ended.wait(60)
        raise ValueError("cancelled")

    bench.does["a"] = endless
    bench.ends["a"] = ended.set
    bench.scheduler = Scheduler(
        [_job("a")], Config(), bench.store, runner=bench, tell=bench.told.append, now=lambda: NOW, stop_s=0.1
    )
    bench.scheduler.run_until_stopped()
    assert bench.scheduler.unfinished == []
    assert bench.cancelled == ["a"]
    last = read_last_run(bench.store, "a")
    assert last is not None
    assert last.detail == "the application is stopping; ValueError: cancelled"


def test_spark_07_a_run_that_lasts_too_long_is_cancelled_and_seen_meanwhile(tmp_path: Path) -> None:
    conf = load(overrides={"jobs.run_s_max": 1})
    bench = Bench(_job("a"), store=LocalStore(tmp_path))
    ended = threading.Event()
    seen: list[Sequence[str]] = []

    def endless() -> Facts:
        while not (found := read_running(bench.store, "a")):
            assert not ended.wait(0.01), "cancelled before it was noted"
        seen.extend(one.shards for one in found)
        assert ended.wait(60)
        bench.scheduler.stop()
        raise ValueError("cancelled")

    bench.does["a"] = endless
    bench.ends["a"] = lambda: ended.set() if seen else None
    bench.scheduler = Scheduler([_job("a")], conf, bench.store, runner=bench, tell=bench.told.append, now=lambda: NOW)
    bench.scheduler.run_until_stopped()
    assert seen == [["all"]]
    assert read_running(bench.store, "a") == []
    last = read_last_run(bench.store, "a")
    assert last is not None
    assert (last.failures, last.detail) == (1, "it ran longer than jobs.run_s_max = 1 s; ValueError: cancelled")


def test_spark_07_a_job_that_cannot_name_its_shards_stops_no_other() -> None:
    def broken(conf: Config) -> Sequence[str]:
        raise OSError("no folder")

    bench = Bench(_job("a"))
    bench.does["a"] = lambda: bench.scheduler.stop() or {}
    b = Job(name="b", run=_never, every_s=lambda conf: 1, document="Do b.", shards=broken)
    bench.scheduler = Scheduler([b, _job("a")], Config(), bench.store, runner=bench, tell=bench.told.append)
    bench.scheduler.run_until_stopped()
    assert bench.ran == ["a"]
    assert bench.told[0] == "job=b FAILED seconds=0.0 its shards are not known: OSError: no folder"


def test_spark_07_a_job_that_cannot_look_for_its_work_fails_and_comes_again() -> None:
    """What a job asks the warehouse for before a run: the store may be gone for a while."""
    asked = 0

    def asks(_: Config) -> bool:
        nonlocal asked
        asked += 1
        if 2 < asked < 6:  # the first two are of the start
            raise Unavailable("cannot list jobs/export/definitions")
        return False

    asking = replace(_job("asks", every_s=0.01), needs_spark=asks)
    bench = Bench(asking, _job("other", every_s=0.01))
    bench.does["asks"] = lambda: bench.scheduler.stop() or {"rows": 1}  # type: ignore[func-returns-value]
    bench.scheduler.run_until_stopped()
    assert "other" in bench.ran and bench.ran.count("asks") == 1
    assert sum("cannot list jobs/export/definitions" in line for line in bench.told) >= 1


def test_spark_07_once_works_on_the_free_shards_and_names_who_has_the_others() -> None:
    two = Job(name="a", run=_never, every_s=lambda conf: 1, document="Do a.", shards=lambda conf: ("x", "y"))
    bench = Bench(two)
    with shard_lock(bench.store, "a", "x"):
        assert bench.scheduler.run_once() is False
    assert bench.shards == [["y"]]
    assert re.search(r"job a, shard x, is running in another process \(.* pid \d+\)", bench.told[0])
    assert bench.scheduler.run_once() is True
    assert bench.shards[1:] == [["x", "y"]]
    assert len(read_runs(bench.store, "a")) == 1
    newest = newest_run(read_runs(bench.store, "a"), "x")
    assert newest is not None and newest.shards == ["x", "y"]


def test_failures_in_a_row_are_counted_over_restarts_and_the_last_error_stays() -> None:
    store = MemoryStore()
    for application in ("one", "two"):
        recorder = Recorder(store, "a", application)
        recorder.note(_run("a", ok=False))
    last = read_last_run(store, "a")
    assert last is not None
    assert (last.failures, last.last_error, last.application) == (2, "x", "two")
    recorder.note(_run("a"))
    last = read_last_run(store, "a")
    assert last is not None
    assert (last.failures, last.last_error, last.last_error_at) == (0, "x", NOW)
    assert len(store.names("jobs/a/runs")) == 1, "what another application left about the same shard stays"


def test_spark_07_a_stop_ends_once_in_the_middle_of_a_run() -> None:
    bench = Bench(_job("a"), _job("b"))
    ended = threading.Event()

    def endless() -> Facts:
        bench.scheduler.stop()
        assert ended.wait(60)
        raise ValueError("cancelled")

    bench.does["a"] = endless
    bench.ends["a"] = ended.set
    both = [_job("a"), _job("b")]
    bench.scheduler = Scheduler(both, Config(), bench.store, runner=bench, tell=bench.told.append, stop_s=0.1)
    assert bench.scheduler.run_once() is False
    assert (bench.ran, bench.cancelled, bench.scheduler.unfinished) == (["a"], ["a"], [])


@pytest.mark.parametrize(("is_cheap", "intervals"), [(True, [0.5] * 6), (False, [0.5, 0.75, 1.125, 1.6875, 2.0, 0.5])])
def test_look_25_a_job_that_finds_nothing_on_an_object_store_looks_seldomer(
    is_cheap: bool, intervals: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("deltamq.jobs.run.work.time.monotonic", lambda: now_s[0])
    store = FaultyStore(MemoryStore(), cheap_look=is_cheap)
    work = Work(_job("a"), Config(), store, Holder.this(), every_s=0.5, tell=[].append, now=lambda: NOW)
    work.shards.take_free()
    held = list(work.shards.held)
    found = []
    for number in range(6):
        work.began(held, NOW)
        work.ended(is_quiet=number < 5)
        found.append(work.wait_s())
        now_s[0] += 10
    work.shards.release()
    assert found == [0.5, *intervals[1:]]


def test_rely_18_an_application_that_cannot_run_a_job_leaves_it_to_others() -> None:
    """It had the shard from when it could: Spark is needed only since an export was added, and there is no Java."""
    store, told, me = MemoryStore(), list[str](), Holder.this()
    work = Work(_job("a"), Config(), store, me, every_s=0.5, tell=told.append, now=lambda: NOW)
    work.look([me.application], lambda job, conf: "")
    with pytest.raises(DriverBusy), shard_lock(store, "a"):
        raise AssertionError("it has the shard")
    for _ in range(2):
        work.look([me.application], lambda job, conf: "there is no Java")
    assert work.wait_s() is None
    assert told == ["job=a FAILED seconds=0.0 there is no Java", "job=a gives back shards=all"]
    with shard_lock(store, "a"):
        pass
    work.look([me.application], lambda job, conf: "")
    assert work.shards.held == ("all",)
    work.shards.release()


def test_rely_18_without_java_a_job_is_missing_something_once_it_needs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, needs = SparkRunner(Config()), [False]
    job = replace(_job("a"), needs_spark=lambda conf: needs[0])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert runner.missing(job, Config()) == ""
    needs[0] = True
    assert "JAVA_HOME is /nowhere" in runner.missing(job, Config())
    monkeypatch.setenv("SPARK_REMOTE", "sc://there")
    assert runner.missing(job, Config()) == ""
