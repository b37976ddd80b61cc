"""`deltamq up` as users start it, on a machine without Java: service and jobs in processes that tests may kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

from tests.api.running import until

UP: Final = (sys.executable, "-m", "deltamq.mq.client.cli", "up")
PATIENCE_S: Final = 60.0


class Up:
    """A process of `deltamq up`; its output goes to a file, which is read at any time."""

    def __init__(self, warehouse: Path, *flags: str) -> None:
        environ = {**os.environ, "JAVA_HOME": "/nowhere", "DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "100"}
        command = [*UP, "--warehouse", str(warehouse), *flags]
        self._output = warehouse.with_name("up.log")
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)

    @property
    def url(self) -> str:
        """Where the service listens, awaited."""
        return self.line_with("serving ").split()[1]

    def close(self) -> None:
        """End the command, if it runs."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill service and jobs as a crash would."""
        for process in (*self.children(), self.process):
            process.kill()
        self.process.wait(PATIENCE_S)

    def line_with(self, part: str) -> str:
        """Return the first line that has this part, awaited; fail if none comes."""
        until(lambda: self._lines_with(part), PATIENCE_S)
        return self._lines_with(part)[0]

    def _lines_with(self, part: str) -> list[str]:
        whole = self._output.read_text(errors="replace").rpartition("\n")[0]
        return [line for line in whole.splitlines() if part in line]

    def children(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())
