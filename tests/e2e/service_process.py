"""`deltamq serve` as users start it, in a process that tests may kill, pause and restart."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.forked import Forked

__all__ = ["CLI", "DELTAMQ", "ServiceProcess"]

CLI = "deltamq.mq.client.cli"
DELTAMQ = [sys.executable, "-m", CLI]
_READY = re.compile(r"serving (https?://\S+) warehouse (.+)")


class ServiceProcess:
    """A service on one warehouse; after a restart it has the same port. `program` is the command that has `serve`."""

    def __init__(self, warehouse: Path, *flags: str, program: Sequence[str] = DELTAMQ) -> None:
        self.warehouse = warehouse
        self._flags = flags
        self._program = program
        self._port = 0
        self._log: IO[bytes] = open(warehouse.parent / "service.log", "ab")  # noqa: SIM115  # closed in stop()
        self._process: subprocess.Popen[str] | Forked
        self.url = ""
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        arguments = ["serve", "--warehouse", str(self.warehouse), "--port", str(self._port), *self._flags]
        if list(self._program) == DELTAMQ:
            self._process = Forked(CLI, *arguments, log=self._log)
        else:
            command = [*self._program, *arguments]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = _READY.fullmatch(line.strip())
        if found is None:
            self._process.wait(timeout=30)
            raise AssertionError(f"the service did not start: {line!r}: {self._log_tail()}")
        self.url = found[1]
        self._port = int(self.url.rpartition(":")[2])

    def _log_tail(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-2_000:]

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self._process.kill()
        self._end()

    def wait(self) -> int:
        """Wait until the process ends by itself; returns the exit status."""
        return self._end()

    def stop(self) -> int:
        """Stop the process with SIGTERM, as an operator would; returns the exit status."""
        self._process.terminate()
        return self._end()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _end(self) -> int:
        status = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def close(self) -> None:
        if self._process.poll() is None:
            self.resume()
            self._process.kill()
        # Also if the process ended by itself: its last output is not read yet.
        self._end()
        self._log.close()
