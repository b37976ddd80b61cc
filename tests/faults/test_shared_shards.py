"""Applications that share the shards of one warehouse: real processes, killed, stopped and woken (SPEC SPARK-7)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltamq.jobs.run.locks import holder_of
from deltamq.tables.store.local import LocalStore
from tests.faults.shard_process import JOB

SHARDS = [f"broker-{letter}" for letter in "abcdef"]
#: A busy machine may need long to start a process; a condition that holds is seen at once.
_PATIENCE_S = 90.0


class Crowd:
    """The applications of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "w").mkdir()
        self.store = LocalStore(folder / "w")
        self._processes: list[subprocess.Popen[bytes]] = []
        self.name_shards(*SHARDS)

    def name_shards(self, *shards: str) -> None:
        (self.folder / "next").write_text("\n".join(shards), encoding="utf-8")
        (self.folder / "next").rename(self.folder / "shards")

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.shard_process", str(self.folder)]
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen(command, stdout=said)
        self._processes.append(process)
        return process

    def owners(self, *shards: str) -> Counter[int]:
        """How many shards each process has now, by its id."""
        holders = [holder_of(self.store, JOB, shard) for shard in shards or SHARDS]
        return Counter(holder.pid for holder in holders if holder is not None)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    found = Crowd(tmp_path)
    yield found
    found.end()
    assert not (tmp_path / "twice").exists(), (tmp_path / "twice").read_text(encoding="utf-8")


def until(condition: Callable[[], bool], said: Callable[[], object]) -> float:
    """Wait for a condition; return how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < _PATIENCE_S, said()
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.promise("JOB-13")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_spark_07_three_applications_share_and_a_killed_ones_shards_are_taken_over(crowd: Crowd) -> None:
    first = crowd.start()
    until(lambda: crowd.owners() == {first.pid: 6}, crowd.owners)
    second = crowd.start()
    until(lambda: crowd.owners() == {first.pid: 3, second.pid: 3}, crowd.owners)
    third = crowd.start()
    until(lambda: sorted(crowd.owners().values()) == [2, 2, 2], crowd.owners)
    second.kill()
    second.wait()
    took_s = until(lambda: crowd.owners() == {first.pid: 3, third.pid: 3}, crowd.owners)
    print(f"taken over after {took_s:.2f} s")
    crowd.name_shards(*SHARDS, "broker-g", "broker-h")
    eight = (*SHARDS, "broker-g", "broker-h")
    until(lambda: crowd.owners(*eight) == {first.pid: 4, third.pid: 4}, lambda: crowd.owners(*eight))
    third.send_signal(signal.SIGTERM)
    assert third.wait(_PATIENCE_S) == 0
    until(lambda: crowd.owners(*eight) == {first.pid: 8}, lambda: crowd.owners(*eight))


@pytest.mark.promise("JOB-14")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_spark_07_a_stopped_application_keeps_its_shards_and_gets_no_more(crowd: Crowd) -> None:
    first, second = crowd.start(), crowd.start()
    until(lambda: crowd.owners() == {first.pid: 3, second.pid: 3}, crowd.owners)
    second.send_signal(signal.SIGSTOP)
    first.kill()
    first.wait()
    third = crowd.start()
    until(lambda: crowd.owners() == {second.pid: 3, third.pid: 3}, crowd.owners)
    crowd.name_shards(*SHARDS, "broker-g", "broker-h")
    eight = (*SHARDS, "broker-g", "broker-h")
    # A stopped process takes nothing: nothing waits for it.
    until(lambda: crowd.owners(*eight) == {second.pid: 3, third.pid: 5}, lambda: crowd.owners(*eight))
    second.send_signal(signal.SIGCONT)
    until(lambda: crowd.owners(*eight) == {second.pid: 4, third.pid: 4}, lambda: crowd.owners(*eight))
    second.send_signal(signal.SIGSTOP)
    second.kill()
    second.wait()
    until(lambda: crowd.owners(*eight) == {third.pid: 8}, lambda: crowd.owners(*eight))
