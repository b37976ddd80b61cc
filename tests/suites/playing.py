"""Programs that play tests: each is ended with all that it started, and what it prints goes into a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

__all__ = ["lines_of", "output_of"]

_NICE: Final = ("nice", "-n", "10")


def lines_of(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, limit_s: float) -> Iterator[str]:
    """Run a program, and yield what it writes to the file of which `$SUITE_RESULTS_FD` has the number, line by line."""
    out, into = os.pipe()
    with os.fdopen(out) as results, log.open("a") as file:
        process = _started(command, cwd, {**env, "SUITE_RESULTS_FD": str(into)}, file, into)
        os.close(into)
        with _ended(process, limit_s):
            yield from results


def output_of(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, limit_s: float) -> str:
    """Run a program until it ends or its time is up; return what it printed."""
    begin = log.stat().st_size if log.exists() else 0
    with log.open("a") as file:
        process = _started(command, cwd, env, file)
        with _ended(process, limit_s):
            process.wait()
    with log.open("rb") as file_of_bytes:
        file_of_bytes.seek(begin)
        return file_of_bytes.read().decode(errors="replace")


def _started(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], file: IO[str], *fds: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_NICE, *command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        start_new_session=True,
    )


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes], limit_s: float) -> Iterator[None]:
    watch = threading.Timer(limit_s, _end, (process,))
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        _end(process)
        process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
