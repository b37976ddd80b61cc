"""Processes of the main job: heard, watched, and stopped with everything that they started."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deltamq.jobs.flights import child as child_module
from deltamq.jobs.flights.child import Child, JobFailed, await_all, in_thread

ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"
FOREVER = "import sys, time\nprint('alarm', file=sys.stderr, flush=True)\nprint('up', flush=True)\ntime.sleep(600)"
STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(inner.pid, flush=True)\n"
    "time.sleep(600)"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Child]]:
    """Starts Python programs that do not outlive the test."""
    started: list[Child] = []

    def begin(program: str) -> Child:
        child = Child("program", [sys.executable, "-c", program], tmp_path / f"{len(started)}.log")
        started.append(child)
        return child

    yield begin
    for child in started:
        child.stop(timeout_s=0.2)


@contextmanager
def at_work() -> Iterator[Future[Any]]:
    """Work in a thread that is not done before the block is."""
    done = threading.Event()
    working = in_thread(lambda: done.wait(60))
    yield working
    assert not working.done(), "nobody has waited for it"
    done.set()


def is_there(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_child_answers_lines(start: Callable[[str], Child]) -> None:
    child = start(ECHO)
    child.write_line("you")
    assert child.read_line(20) == "heard you"
    child.check()


def test_a_killed_child_is_told_with_the_end_of_its_log(start: Callable[[str], Child]) -> None:
    child = start(FOREVER)
    assert child.read_line(20) == "up"
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(JobFailed, match=r"program was killed by SIGKILL(?s:.*)alarm"):
        child.read_line(20)


def test_a_child_that_ends_by_itself_is_told_with_its_status(start: Callable[[str], Child]) -> None:
    child = start("raise SystemExit(3)")
    with pytest.raises(JobFailed, match=r"ended by itself with status 3(?s:.*)\(nothing\)"):
        child.read_line(20)
    with pytest.raises(JobFailed, match="ended by itself"):
        child.write_line("hello?")


def test_a_silent_child_is_not_waited_for_without_end(start: Callable[[str], Child]) -> None:
    with pytest.raises(JobFailed, match="printed nothing for 0 s"):
        start(FOREVER.replace("print('up'", "print('up', file=sys.stderr")).read_line(0.3)


def test_a_busy_machine_gets_more_time(start: Callable[[str], Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "busyness", lambda: 1e9)
    assert start(FOREVER).read_line(0.000_001) == "up"


def test_stop_ends_a_child_kindly(start: Callable[[str], Child]) -> None:
    program = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('up', flush=True)\n"
    child = start(program + "signal.pause()")
    child.read_line(20)
    assert child.stop() == 0
    child.check()  # one that was told to stop has not failed


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_stop_ends_a_stubborn_child_and_what_it_started(start: Callable[[str], Child]) -> None:
    child = start(STUBBORN)
    inner = int(child.read_line(20))
    assert child.stop(timeout_s=0.2) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while is_there(inner):
        assert time.monotonic() < deadline, "what the child started is still there"
        time.sleep(0.01)


def test_waiting_ends_as_soon_as_a_child_dies(start: Callable[[str], Child]) -> None:
    child = start(FOREVER)
    child.read_line(20)
    with at_work() as waiting:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(JobFailed, match="SIGKILL"):
            await_all([waiting], [child])


def test_waiting_raises_what_the_work_raised(start: Callable[[str], Child]) -> None:
    def fail() -> None:
        raise ValueError("no")

    with at_work() as other, pytest.raises(ValueError, match="no"):
        await_all([in_thread(fail), other], [start(FOREVER)])


def test_a_child_that_may_die_is_heard_to_its_last_word(tmp_path: Path) -> None:
    program = "import os, signal\nprint('bye', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    child = Child("program", [sys.executable, "-c", program], tmp_path / "log", may_end_with=-signal.SIGKILL)
    assert child.read_line(20) == "bye"
    with pytest.raises(JobFailed, match="ended without an answer"):
        child.read_line(20)
    child.check()
    assert child.status == child.stop() == -signal.SIGKILL


def test_a_child_that_may_die_must_not_end_otherwise(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    child = Child("program", command, tmp_path / "log", may_end_with=-signal.SIGKILL)
    with pytest.raises(JobFailed, match="ended by itself with status 3"):
        child.read_line(20)
    child.stop()


def test_a_child_that_does_not_talk_writes_all_into_its_log(tmp_path: Path) -> None:
    program = "import os\nprint(os.environ['WORDS'])\nraise SystemExit(3)"
    command = [sys.executable, "-c", program]
    child = Child("program", command, tmp_path / "log", talks=False, environment={"WORDS": "so it is"})
    with at_work() as waiting, pytest.raises(JobFailed, match=r"status 3(?s:.*)so it is"):
        await_all([waiting], [child])
    child.stop()
