"""`deltamq serve` as users start it, in a process that tests may kill, pause and restart."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deltamq.mq.client.cli import processes
from deltamq.mq.client.cli.processes import Running
from tests.forked import Forked, pause

__all__ = ["CLI", "DELTAMQ", "ServiceProcess"]

CLI = "deltamq.mq.client.cli"
DELTAMQ: Final = [sys.executable, "-m", CLI]


class ServiceProcess(processes.ServiceProcess):
    """The users' class, with processes that start in milliseconds. `program` is the command that has `serve`."""

    _process: Forked | subprocess.Popen[str]

    def __init__(self, warehouse: Path, *flags: str, program: Sequence[str] = DELTAMQ) -> None:
        self._program = program
        super().__init__(warehouse, *flags)

    def _run(self, *arguments: str) -> Running:
        if list(self._program) == DELTAMQ:
            return Forked(CLI, *arguments, log=self._log)
        return subprocess.Popen([*self._program, *arguments], stdout=subprocess.PIPE, stderr=self._log, text=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Wait until the process ends by itself; returns the exit status."""
        return self._end()

    def pause(self) -> None:
        pause(self._process)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.resume()
        super().close()
