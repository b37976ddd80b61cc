"""What `deltamq jobs run` prints: one line for each notable run, and one when shards are taken or given back.

With `jobs.log_format = "json"` each line is an event of the log instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from deltamq.jobs.run.application import Holder
from deltamq.tables.ops.job_runs import LastRun

log = logging.getLogger("deltamq.jobs")

_DETAIL_LENGTH_MAX: Final = 1_000
#: Seconds after which a run is printed even if nothing happened; a job may be due several times a second.
_TELL_IDLE_S: Final = 60.0
_SHARDS_SHOWN_MAX: Final = 8
_STACK_LINES: Final = ("at ", "... ")


class Telling:
    """Prints the lines about one job."""

    def __init__(self, tell: Callable[[str], None], job: str) -> None:
        self._tell = tell
        self._job = job
        self._last: tuple[bool, str] | None = None
        self._told_s = 0.0

    def ran(self, run: LastRun) -> None:
        """Print a run that did something, ended differently from the one before, or follows a long silence."""
        outcome = (run.ok, run.detail)
        quiet = time.monotonic() - self._told_s < _TELL_IDLE_S
        if quiet and outcome == self._last and not run.facts.get("rows"):
            return
        self._last, self._told_s = outcome, time.monotonic()
        shown = " ".join(f"{key}={value}" for key, value in run.facts.items())
        self._tell(job_line(run.job, ok=run.ok, seconds=run.seconds, shown=shown or run.detail))

    def trouble(self, shown: str) -> None:
        """Print what keeps the job from running, once."""
        outcome = (False, shown)
        if outcome != self._last:
            self._last = outcome
            self._tell(job_line(self._job, ok=False, seconds=0.0, shown=shown))

    def running(self, seconds: float, shown: str) -> None:
        """Print that a run is still going on."""
        self._tell(f"job={self._job} running seconds={seconds:.0f} {shown}".rstrip())

    def took(self, taken: Mapping[str, Holder | None]) -> None:
        """Print the shards that were taken over from other applications."""
        for holder in dict.fromkeys(str(holder) for holder in taken.values() if holder is not None):
            shards = [shard for shard, had in taken.items() if str(had) == holder]
            self._tell(f"job={self._job} takes over {shard_text(shards)} from {holder}")

    def gave(self, given: Sequence[str]) -> None:
        """Print the shards that were given back."""
        if given:
            self._tell(f"job={self._job} gives back {shard_text(given)}")


def job_line(job: str, *, ok: bool, seconds: float, shown: str) -> str:
    """Return the line about one run."""
    return f"job={job} {'ok' if ok else 'FAILED'} seconds={seconds} {shown}".rstrip()


def log_line(line: str) -> None:
    """Log a line as an event with fields: `job=merge ok seconds=1` is `event=job_ok job=merge seconds=1`."""
    job, _, rest = line.partition(" ")
    if not job.startswith("job="):
        log.info("event=jobs_tell detail=%r", line)
        return
    outcome, _, fields = rest.partition(" ")
    level = logging.ERROR if outcome == "FAILED" else logging.INFO
    log.log(level, "event=job_%s %s %s", outcome.lower(), job, fields)


def shard_text(shards: Sequence[str]) -> str:
    """Return `shards=a,b`, with only the first of many."""
    more = f",+{len(shards) - _SHARDS_SHOWN_MAX}" if len(shards) > _SHARDS_SHOWN_MAX else ""
    return "shards=" + ",".join(shards[:_SHARDS_SHOWN_MAX]) + more


def error_text(error: Exception) -> str:
    """Return an error as one line of bounded length; of a Java stack trace, only the causes."""
    lines = (line.strip() for line in f"{type(error).__name__}: {error}".splitlines())
    text = " ".join(line for line in lines if line and not line.startswith(_STACK_LINES))
    return text if len(text) <= _DETAIL_LENGTH_MAX else text[: _DETAIL_LENGTH_MAX - 3] + "..."
