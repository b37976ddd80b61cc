"""The main job as a process, with its output so far."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).parents[2]
#: Number of events that the tests replay; `make run` replays all.
EVENTS: Final = 10_000
#: It takes two minutes on an idle machine, and nine were seen beside another worker's tests on a slow one. The job
#: itself fails as soon as one of its processes is silent for too long.
PATIENCE_S: Final = 1_200


class MainJob:
    """A process `python -m deltamq.jobs.flights`, in a session of its own as under a terminal."""

    def __init__(
        self, warehouse: Path, *arguments: str, port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.warehouse = warehouse
        command = [
            sys.executable,
            "-u",
            "-m",
            "deltamq.jobs.flights",
            "--warehouse",
            str(warehouse),
            "--port",
            str(port),
        ]
        self._process = subprocess.Popen(
            [*command, "--logs", str(warehouse.parent / "logs"), *arguments],
            cwd=ROOT,
            env={**os.environ, **(settings or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything printed so far."""
        with self._grown:
            return "\n".join(self._lines)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._found(r"^service +(\S+),")

    @property
    def report(self) -> dict[str, Any]:
        """The machine-readable report."""
        folder = self._found(r"^logs +(\S+)")
        read: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        return read

    def wait_for(self, words: str) -> None:
        """Wait until the output contains these words."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.output:
            assert self._process.poll() is None or self._reader.is_alive(), self.output
            assert time.monotonic() < deadline, self.output
            with self._grown:
                self._grown.wait(0.2)

    def wait(self) -> int:
        """Wait for the process to end; return its status."""
        status = self._process.wait(PATIENCE_S)
        self._reader.join(10)
        return status

    def interrupt(self) -> int:
        """Press Ctrl-C; return the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def processes(self) -> list[psutil.Process]:
        """Return all processes below the main job."""
        return list(psutil.Process(self._process.pid).children(recursive=True))

    def commands(self) -> list[str]:
        """Return their command lines; Spark's workers may start and end meanwhile."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline()))
        return found

    def service(self) -> psutil.Process:
        """Return the service's process."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "serve" in process.cmdline():
                    return process
        raise AssertionError(f"there is no service\n{self.output}")

    def end(self) -> None:
        """End all processes, whatever the test did."""
        if self._process.poll() is None:
            left = self.processes()
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def _found(self, pattern: str) -> str:
        match = re.search(pattern, self.output, re.MULTILINE)
        assert match is not None, self.output
        return match.group(1)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._grown:
                    self._lines.append(line.rstrip("\n"))
                    self._grown.notify_all()


def still_there(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run; zombies do not count."""
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
