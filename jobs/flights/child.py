"""The main job's child processes and threads: started, watched together, and stopped in any case.

Only the main thread gets Ctrl-C and notices a dead child, so threads do all that takes long. A child has its own
session, so that Ctrl-C reaches only the main job, which decides the order of the stops. A process that does not stop in
time is killed with its own children (Spark's JVM).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Final, TypeVar

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 16_384
STOP_TIMEOUT_S: Final = 15.0
#: Interval at which a wait checks that the processes still run, in seconds.
LOOK_EVERY_S: Final = 0.1
LISTENER_END_S: Final = 1.0
GROUP_END_S: Final = 3.0

T = TypeVar("T")


def busyness() -> float:
    """Return the number of processes per core that want to run, at least 1; 1 where the system does not report it."""
    try:
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except OSError:
        return 1.0


class JobFailed(Exception):
    """The main job stops; the message names the reason and the remedy."""


class Child:
    """One running process; its standard error goes to the file `log`.

    Parameters
    ----------
    name
        The name in messages.
    talks
        Whether the main job reads its standard output line by line; otherwise the output goes to the log, too.
    may_end_with
        The exit status with which it may end by itself.
    environment
        Variables in addition to those of this process.
    stop_s
        Seconds that it may take to end after a stop.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        talks: bool = True,
        may_end_with: int | None = None,
        environment: Mapping[str, str] | None = None,
        stop_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.log = log
        self.may_end_with = may_end_with
        self._stop_s = stop_s
        self._stopping = False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if talks else errors,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    def read_line(self, timeout_s: float) -> str:
        """Return the next line of standard output, without its newline.

        The wait is as long as `timeout_s` on an idle machine, and longer in proportion to its load.
        """
        waited_s, last = 0.0, time.monotonic()
        while waited_s < timeout_s:
            now = time.monotonic()
            waited_s, last = waited_s + (now - last) / busyness(), now
            ended = not self._listener.is_alive()
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=LOOK_EVERY_S)
            self.check()
            if ended and self.status is not None:
                raise JobFailed(f"the {self.name} ended without an answer; its log:\n{self._tail()}")
        raise JobFailed(
            f"the {self.name} printed nothing for {timeout_s:.0f} s (make run WAIT=SECONDS waits longer); "
            f"the end of its log:\n{self._tail()}"
        )

    def write_line(self, line: str) -> None:
        """Send a line to standard input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(STOP_TIMEOUT_S)
            self.check()
            raise

    def check(self) -> None:
        """Raise if the process has ended; the message has the end of its log."""
        status = self._process.poll()
        if status is None or self._stopping or status == self.may_end_with:
            return
        raise JobFailed(f"the {self.name} {_how(status)}; the end of its log:\n{self._tail()}")

    def stop(self, timeout_s: float | None = None) -> int:
        """End the process and its children, first by SIGTERM; return its exit status."""
        timeout_s = self._stop_s if timeout_s is None else timeout_s
        self._stopping = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        # a JVM cleans up after its Python parent has ended; without an init that reaps orphans the group stays
        deadline = time.monotonic() + min(timeout_s, GROUP_END_S)
        while self._has_group() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._listener.join(LISTENER_END_S)
        return self._process.wait()

    def _has_group(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _listen(self) -> None:
        if self._process.stdout is None:
            return
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))

    def _tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        shown = [f"    {line}" for line in lines[-TAIL_LINES:]] or ["    (nothing)"]
        return "\n".join([*shown, f"  the whole log: {self.log}"])


def _how(status: int) -> str:
    if status >= 0:
        return f"ended by itself with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread that does not delay the exit of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def await_all(futures: Sequence[Future[Any]], children: Sequence[Child]) -> None:
    """Wait until all are done; raise the first error of a future, or of a dead child, as soon as it happens.

    Children are checked first: the death of the service explains a failed request to it.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=LOOK_EVERY_S)
        failed = [future for future in done if future.exception() is not None]
        if failed:
            # the process whose death caused the failure may not have ended yet: wait a moment
            wait(pending, timeout=LOOK_EVERY_S)
        for child in children:
            child.check()
        for future in failed:
            future.result()
