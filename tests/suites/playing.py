"""Programs that play tests: each is ended with all that it started, and what it prints goes into a file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

from tests.suites.outcomes import Outcome

__all__ = ["change", "lines_of", "outcomes_of", "output_of", "running", "until"]

_T = TypeVar("_T")
_NICE: Final = ("nice", "-n", "10")
_STOP_S: Final = 60
#: What a program of others does is waited for as long as this, on a busy machine, and asked for as often.
_UNTIL_S: Final = 240
_ASK_S: Final = 0.2


def change(source: Path, changes: Mapping[str, str]) -> None:
    """Change the source of a test: what each pattern finds becomes the text beside it."""
    text = source.read_text()
    for pattern, other in changes.items():
        text, count = re.subn(pattern, other, text)
        assert count, f"{source.name} has no {pattern}"
    source.write_text(text)


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


@contextlib.contextmanager
def running(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program beside the block; at its end it may stop by itself for a while."""
    with log.open("a") as file:
        process = _started(command, cwd, env, file)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            _end(process)
            process.wait()


def until(found: Callable[[], _T | None], process: subprocess.Popen[bytes]) -> _T:
    """Return what is found in time, while a program runs; refused and missing answers are asked again."""
    end = time.monotonic() + _UNTIL_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            if (value := found()) is not None:
                return value
        time.sleep(_ASK_S)
    raise AssertionError("it did not come to pass" if process.poll() is None else "the program has ended")


def outcomes_of(cases: Mapping[str, Callable[[], None]], log: Path, pattern: str) -> Iterator[tuple[str, Outcome]]:
    """Play cases in their order, whatever the pattern: later ones need what earlier ones did."""
    for name, case in cases.items():
        outcome = Outcome.PASS
        try:
            case()
        except Exception:  # whatever a case raises, the next ones are played
            outcome = Outcome.FAIL
            with log.open("a") as file:
                file.write(f"{name}: {traceback.format_exc()}")
        if re.search(pattern, name):
            yield name, outcome


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
