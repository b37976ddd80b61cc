"""A Spark that dies under the jobs is made again; jobs that need none go on, and no job takes another along."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import read_last_run
from deltamq.jobs.run.locks import DriverBusy, take_shard
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.store.store import Store
from tests.faults.spark_jobs_process import ROWS, RUN_S_MAX
from tests.faults.test_shared_shards import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
#: A busy machine may need long to start a JVM.
_PATIENCE_S = 240.0


class Driver:
    """The application."""

    def __init__(self, folder: Path) -> None:
        (folder / "w").mkdir()
        self.store = storage(str(folder / "w"))
        self.said = folder / "said"
        command = [sys.executable, "-m", "tests.faults.spark_jobs_process", str(folder / "w")]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said)

    def last(self, job: str) -> LastRun | None:
        return read_last_run(self.store, job)

    def fact(self, job: str, name: str) -> object:
        found = self.last(job)
        return found.facts.get(name) if found is not None else None

    def until(self, condition: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.said.read_text(encoding="utf-8")
            assert time.monotonic() - began < _PATIENCE_S, self.said.read_text(encoding="utf-8")
            time.sleep(0.05)

    def jvms(self) -> list[int]:
        return [one.pid for one in psutil.Process(self.process.pid).children() if "java" in one.name()]

    def end(self) -> None:
        for pid in self.jvms() if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.mark.promise("JOB-17")
@pytest.mark.long
def test_spark_07_one_jobs_failure_takes_no_other_along(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    try:
        driver.until(lambda: driver.fact("short", "rows") == ROWS)
        assert driver.fact("short", "pool") == "short"
        assert driver.fact("short", "mode") == "FAIR"
        assert driver.fact("short", "ends_without_memory")
        (jvm,) = driver.jvms()
        assert driver.fact("short", "jvm") == jvm

        # What takes long is cancelled, and what is too big fails; the others go on meanwhile and after it.
        driver.until(lambda: (found := driver.last("endless")) is not None and not found.ok)
        endless = driver.last("endless")
        assert endless is not None and f"longer than jobs.run_s_max = {RUN_S_MAX} s" in endless.detail, endless
        driver.until(lambda: (found := driver.last("big")) is not None and "maxResultSize" in found.last_error)
        at = endless.started_at
        driver.until(lambda: (found := driver.last("short")) is not None and found.ok and found.started_at > at)
        assert driver.jvms() == [jvm]

        os.kill(jvm, signal.SIGKILL)
        driver.until(lambda: (found := driver.last("short")) is not None and "Spark died" in found.last_error)
        died = driver.last("short")
        assert died is not None and died.last_error_at is not None
        at = died.last_error_at
        driver.until(lambda: (found := driver.last("plain")) is not None and found.ok and found.started_at > at)
        driver.until(lambda: driver.fact("short", "jvm") not in (None, jvm))
        healed = driver.last("short")
        assert healed is not None and healed.ok and healed.failures == 0
        plain = driver.last("plain")
        assert plain is not None and plain.failures == 0 and not plain.last_error

        # The end is clean in the middle of a run that never ends.
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(_PATIENCE_S) == 0
        assert "ended with" in driver.said.read_text(encoding="utf-8")
    finally:
        driver.end()


@pytest.mark.promise("JOB-16")
@pytest.mark.long
def test_rely_3_a_shard_is_not_taken_over_before_the_dead_applications_spark_has_ended(tmp_path: Path) -> None:
    """The Python of a driver is killed; its JVM, which may be about to commit, lives a moment longer."""
    driver = Driver(tmp_path)
    try:
        driver.until(lambda: driver.fact("short", "rows") == ROWS)
    except BaseException:
        driver.end()
        raise
    (jvm,) = driver.jvms()
    try:
        os.kill(jvm, signal.SIGSTOP)  # the moment lasts
        driver.process.kill()
        driver.process.wait()
        me = Holder.this()
        with pytest.raises(DriverBusy, match=rf"may still commit in a dead .* pid {driver.process.pid}\)"):
            take_shard(driver.store, "short", "all", me)
        take_shard(driver.store, "plain", "all", me).release()
        os.kill(jvm, signal.SIGKILL)
        until(lambda: _can_be_taken(driver.store, me), lambda: "the shard stays locked")
    finally:
        driver.end()
        with contextlib.suppress(ProcessLookupError):
            os.kill(jvm, signal.SIGKILL)


def _can_be_taken(store: Store, me: Holder) -> bool:
    try:
        take_shard(store, "short", "all", me).release()
    except DriverBusy:
        return False
    return True
