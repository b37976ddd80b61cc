"""A process that can take the lock of a host of its own machine knows that the host is dead (SPEC META-1)."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.tables.store.host_lock import FOLDER, HostLocks, this_machine

_HOLD = """
import sys, time
from pathlib import Path
from deltamq.tables.store.host_lock import HostLocks
locks = HostLocks(Path(sys.argv[1]))
locks.hold("other")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of host `other`."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_meta_01_a_process_that_lives_or_is_stopped_is_not_dead(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    locks = HostLocks(tmp_path)
    assert not locks.is_dead("other", locks.machine)
    holder.send_signal(signal.SIGSTOP)
    assert not locks.is_dead("other", locks.machine), "a stopped process may go on: its lease decides"


def test_meta_01_a_killed_process_is_dead_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    locks = HostLocks(tmp_path)
    holder.kill()
    holder.wait()
    assert locks.is_dead("other", locks.machine)
    assert locks.is_dead("other", locks.machine), "asking takes nothing away"
    assert HostLocks(tmp_path).is_dead("other", locks.machine), "nor from others"


def test_meta_01_nothing_is_known_of_another_machine_or_a_missing_file(tmp_path: Path) -> None:
    locks = HostLocks(tmp_path)
    assert this_machine() == locks.machine != ""
    locks.hold("mine")
    locks.close()
    assert locks.is_dead("mine", locks.machine)
    assert not locks.is_dead("mine", "another machine")
    assert not locks.is_dead("mine", "")
    assert not locks.is_dead("nobody", locks.machine)


def test_meta_01_two_hosts_of_one_process_have_locks_of_their_own(tmp_path: Path) -> None:
    locks, others = HostLocks(tmp_path), HostLocks(tmp_path)
    locks.hold("a")
    others.hold("b")
    assert not locks.is_dead("b", locks.machine) and not others.is_dead("a", others.machine)
    assert not locks.is_dead("a", locks.machine), "a process does not call itself dead"
    locks.forget("a")
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["b.lock"]
    others.close()


def test_meta_01_an_object_store_has_no_locks(tmp_path: Path) -> None:
    locks = HostLocks(None)
    assert not locks.hold("a")
    assert locks.machine == "" and not locks.is_dead("a", "")
    locks.forget("a")
    assert list(tmp_path.iterdir()) == []


def test_meta_01_where_files_cannot_be_locked_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    locks = HostLocks(tmp_path)
    assert not locks.hold("a"), "its host registers without a machine"
    assert not HostLocks(tmp_path).is_dead("a", locks.machine)
