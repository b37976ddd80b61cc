"""An application with one job, whose shards a test names in a file; a run proves that no other process has its shards.

    python -m tests.faults.shard_process <folder>       the shards are the lines of <folder>/shards

A run locks a file for each of its shards and writes to <folder>/twice the shards that another process has locked. The
system releases the locks of a killed process, so each shard noted there had two processes at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.run.schedule import Scheduler
from deltamq.tables.config import Config
from deltamq.tables.store.local import LocalStore

JOB = "probe"
_WORK_S = 0.02


class Probe:
    """The runner and the job in one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "work").mkdir(exist_ok=True)

    def shards(self, conf: Config) -> Sequence[str]:
        return (self._folder / "shards").read_text(encoding="utf-8").split()

    def __call__(self, job: Job, conf: Config, now: datetime, shards: Sequence[str]) -> Facts:
        with contextlib.ExitStack() as working:
            for shard in shards:
                file = working.enter_context((self._folder / "work" / shard).open("a"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    with (self._folder / "twice").open("a", encoding="utf-8") as twice:
                        twice.write(f"{shard} {os.getpid()}\n")
            time.sleep(_WORK_S)  # the work
        return {"rows": len(shards)}

    def cancel(self, job: str) -> None: ...

    def missing(self, job: Job, conf: Config) -> str:
        return ""

    def progress(self, job: str) -> str:
        return ""


def _never(spark: object, conf: Config, now: datetime, shards: object = None) -> Facts:
    raise AssertionError("the runner runs the job, never this function")


def main() -> None:
    folder = Path(sys.argv[1])
    probe = Probe(folder)
    job = Job(name=JOB, run=_never, every_s=lambda conf: 0.05, document="Probe.", shards=probe.shards)
    store = LocalStore(folder / "w")
    scheduler = Scheduler([job], Config(), store, runner=probe, tell=lambda line: print(line, flush=True))
    signal.signal(signal.SIGTERM, lambda *_: scheduler.stop())
    scheduler.run_until_stopped()


if __name__ == "__main__":
    main()
