"""Processes that a command starts, hands signals to, and ends with; and a service that a test starts."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Final, Protocol

#: How a command starts another one.
DELTAMQ: Final = (sys.executable, "-m", "deltamq.mq.client.cli")
#: Linux' number of the setting: which signal a process gets when its parent ends.
_PR_SET_PDEATHSIG: Final = 1


def started(command: Sequence[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a command, with `more` variables, that ends with this process (on Linux)."""
    # a group of its own: Ctrl-C reaches only this process, which hands it on once
    return subprocess.Popen(command, process_group=0, preexec_fn=_ENDING, env={**os.environ, **(more or {})})


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_ENDING: Final = _end_with_parent if sys.platform == "linux" else None


def asked_to_stop() -> list[int]:
    """Return a list that grows with each SIGTERM and Ctrl-C from now on."""
    asked: list[int] = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        asked.append(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return asked


#: The line that a service writes to standard output when it answers.
_SERVING: Final = re.compile(r"serving (https?://\S+) warehouse .+")
_LOG_CHARACTERS: Final = 2_000
#: Seconds for which a process may end.
_END_S: Final = 30


class Running(Protocol):
    """The part of `subprocess.Popen` that is used of a service's process."""

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float) -> int: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...


class ServiceProcess:
    """`deltamq serve` on one warehouse, in a process that a test may kill or stop, and start again at the same URL.

    Parameters
    ----------
    warehouse
        The folder of the tables; the log of the service is `service.log` beside it.
    flags
        Options of `deltamq serve`.
    environ
        The variables of the process; by default those of this one.
    """

    def __init__(self, warehouse: Path, *flags: str, environ: Mapping[str, str] | None = None) -> None:
        self.warehouse = warehouse
        self.url = ""
        self._flags = flags
        self._environ = environ
        self._port = 0
        self._log: IO[bytes] = open(warehouse.parent / "service.log", "ab")  # noqa: SIM115  # closed in close()
        self._process: Running
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the process, and wait until it answers at `url`."""
        self._process = self._run("serve", "--warehouse", str(self.warehouse), "--port", str(self._port), *self._flags)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        serving = _SERVING.fullmatch(line.strip())
        if serving is None:
            self._process.wait(timeout=_END_S)
            self._process.stdout.close()
            told = Path(self._log.name).read_text(errors="replace")[-_LOG_CHARACTERS:]
            raise ChildProcessError(f"the service did not start: {line!r}: {told}")
        self.url = serving[1]
        self._port = int(self.url.rpartition(":")[2])

    def _run(self, *arguments: str) -> Running:
        return subprocess.Popen(
            [*DELTAMQ, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0,
            preexec_fn=_ENDING,
            env=self._environ,
        )

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self._process.kill()
        self._end()

    def stop(self) -> int:
        """Stop the process with SIGTERM, as an operator would; returns the exit status."""
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        status = self._process.wait(timeout=_END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def close(self) -> None:
        """Kill the process if it runs, and close its log."""
        if self._process.poll() is None:
            self._process.kill()
        # Also if the process ended by itself: its last output is not read yet.
        self._end()
        self._log.close()
