"""Processes `python -m MODULE ARGUMENTS` that start in milliseconds: one that has imported everything forks them.

A service needs a second of a core to import its modules, and tests start services and consumers by the hundred. That
a service starts from nothing, too, is tested in `tests/api/test_serve.py`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, Final

import psutil

from deltamq.tables import failpoints

__all__ = ["SERVER", "Forked", "pause", "run_forked", "until"]

#: The server that forks; there is one in each process of tests.
SERVER: Final = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "deltamq.api.serve",
        "deltamq.mq.client.cli.root",
        # what is otherwise imported while a service starts and stops
        "anyio._backends._asyncio",
        "deltamq.api.command",
        "encodings.idna",
        "httpcore",
        "uvicorn.lifespan.on",
        "uvicorn.loops.uvloop",
        "pytest",
        "tests.contract.test_metadata",
        "tests.contract.test_metadata_snapshots",
    ]
)


class Forked:
    """Has what tests need of `subprocess.Popen`; standard output is a pipe, standard error goes to `log` if given."""

    def __init__(self, module: str, *arguments: str, log: IO[Any] | None = None) -> None:
        reading, writing = os.pipe()
        told = Connection(writing, readable=False)
        where = None if log is None else log.name
        self._process = SERVER.Process(
            target=_run, args=(module, arguments, dict(os.environ), told, where), daemon=True
        )
        self._process.start()
        told.close()
        self.stdout: Final = os.fdopen(reading)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for the process to end; return its exit status.

        Raises
        ------
        subprocess.TimeoutExpired
            It runs longer than `timeout` seconds.
        """
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def run_forked(module: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the module to its end, at most `timeout` seconds after it closed standard output; return what it said."""
    with tempfile.NamedTemporaryFile("r") as log:
        process = Forked(module, *arguments, log=log)
        with process.stdout as stdout:
            told = stdout.read()
        return subprocess.CompletedProcess([module, *arguments], process.wait(timeout), told, log.read())


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], told: Connection, log: str | None
) -> None:
    """Run the module in the forked process."""
    # A collection would visit what was there, and each page that it touches is copied: half of a service's start.
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(told.fileno(), sys.stdout.fileno())
    told.close()
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), sys.stderr.fileno())
    failpoints.arm(os.environ.get("DELTAMQ_FAILPOINTS", ""))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def pause(process: Forked | subprocess.Popen[str]) -> None:
    """Stop a process for a while; returns when it is stopped, for a busy machine lets it run on for a moment."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until other processes have made `condition` true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)
