"""`deltamq jobs run` as users start it, in a process that tests may kill at a failpoint or at any moment.

There are dozens of single runs (`--once`), so they are forked from one process that has imported everything:

    python -m tests.faults.job_process        orders on stdin, exit statuses on stdout, one JSON document a line
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from deltamq.jobs.cli.jobs_group import jobs_command
from deltamq.jobs.run.registry import all_jobs
from deltamq.tables import failpoints

__all__ = ["JobProcess", "JobRuns", "job_runs"]

_ROOT: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 60
_DELTAMQ: Final = (sys.executable, "-m", "deltamq.mq.client.cli")


class JobRuns:
    """Runs jobs once, each time in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def once(
        self, warehouse: Path, *jobs: str, failpoints: str = "", environment: Mapping[str, str] | None = None
    ) -> int:
        """Run the due jobs; returns the exit status, negative for a signal. Failpoints act in tasks of Spark, too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "arguments": ["run", *jobs, "--once", "--engine", "local", "--warehouse", str(warehouse)],
            "failpoints": failpoints,
            "environment": dict(environment or {}),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status: int = json.loads(self._process.stdout.readline())
        return status


@contextmanager
def job_runs() -> Iterator[JobRuns]:
    """Start the process that forks the runs."""
    command = [sys.executable, "-m", "tests.faults.job_process"]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield JobRuns(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(_PATIENCE_S)


class JobProcess:
    """A process that runs jobs on their schedules."""

    def __init__(
        self,
        warehouse: Path | str,
        *jobs: str,
        every_s: float | None = None,
        waits: bool = True,
        program: Sequence[str] = _DELTAMQ,
        engine: str = "local",
    ) -> None:
        """Start `program`, the command that has `jobs run`; if it `waits`, it stands by while another one runs."""
        flags = [] if every_s is None else ["--every", str(every_s)]
        flags += [] if waits else ["--no-wait"]
        flags += ["--engine", engine]
        command = [*program, "jobs", "run", *jobs, "--warehouse", str(warehouse), *flags]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in _ended()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self._process.stdout is not None
        #: The first output line: the first run, or that the process stands by.
        self.first_line = self._process.stdout.readline()
        # a process that writes to a full pipe stands still
        self._reading = threading.Thread(target=self._process.stdout.read, daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process as an operator would; returns the exit status."""
        return self._end(by)

    def wait(self) -> tuple[int, str]:
        """Wait until the process ends by itself; returns its status and standard error."""
        status = self._process.wait(_PATIENCE_S)
        self._errors.seek(0)
        said = self._errors.read()
        self._ended()
        return status, said

    def _end(self, by: signal.Signals) -> int:
        self._process.send_signal(by)
        status = self._process.wait(_PATIENCE_S)
        self._ended()
        return status

    def _ended(self) -> None:
        self._reading.join(_PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def _run(arguments: Sequence[str], points: str, environment: Mapping[str, str]) -> NoReturn:
    """Run the command in the forked process, and exit with its status."""
    status = 99
    try:
        # Python processes of Spark's executors arm the failpoints of their environment.
        os.environ.update(environment, DELTAMQ_FAILPOINTS=points)
        # Standard output is for the answers to orders.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        failpoints.arm(points)
        jobs_command.main(list(arguments), prog_name="jobs")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(status)


def _serve() -> None:
    all_jobs()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(order["arguments"], order["failpoints"], order["environment"])
        _, ended = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)


if __name__ == "__main__":
    _serve()
