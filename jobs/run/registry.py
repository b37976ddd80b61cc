"""What a job is, and the jobs there are.

A job is a function `run(spark, conf, now)` that is idempotent and can be restarted at any line. Its docstring says
input, output, what makes it idempotent, and what a kill at any line leaves; a function without a docstring does not
register. It returns facts to show, and raises what went wrong. Two kinds of facts have a meaning of their own:

    rows         what this run wrote or changed; added up over the runs of one driver
    behind_...   how far behind the job is after the run: `behind_ms`, `behind_records`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mq.errors import Conflict, NotFound
from tables.config import Config

__all__ = ["Facts", "Job", "all_jobs", "job", "jobs_named"]

Facts = Mapping[str, int | str]
#: Called with a Spark session (None for a job that needs none), the settings and the time.
Run = Callable[[Any, Config, datetime], Facts]

#: Modules that register jobs when they are imported.
_MODULES: Final = (
    "jobs.queue.delay",
    "jobs.merge.merge",
    "jobs.upkeep.retain",
    "jobs.queue.revive",
    "jobs.upkeep.verify",
)
_registered: Final[dict[str, Job]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A registered job."""

    name: str
    run: Run
    every_s: Callable[[Config], float]
    document: str
    #: Without it, `run` gets None instead of a session, and none is started for it.
    needs_spark: bool = True

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return self.document.strip().splitlines()[0]


def job(*, name: str, every_s: Callable[[Config], float], needs_spark: bool = True) -> Callable[[Run], Run]:
    """Register the decorated function as the job `name`, due every `every_s(conf)` seconds.

    Raises
    ------
    SyntaxError
        It has no docstring.
    Conflict
        Another job has this name.
    """

    def register(run: Run) -> Run:
        document = (run.__doc__ or "").strip()
        if not document:
            raise SyntaxError(f"job {name}: {run.__qualname__} needs a docstring; people are shown its first line")
        if name in _registered:
            raise Conflict(f"there is a job {name!r} already: {_registered[name].run.__qualname__}")
        _registered[name] = Job(name=name, run=run, every_s=every_s, document=document, needs_spark=needs_spark)
        return run

    return register


def all_jobs() -> list[Job]:
    """Return every job, by name."""
    for module in _MODULES:
        importlib.import_module(module)
    return [_registered[name] for name in sorted(_registered)]


def jobs_named(names: tuple[str, ...]) -> list[Job]:
    """Return the named jobs in the given order, or all when no name is given.

    Raises
    ------
    NotFound
        There is no job of that name.
    """
    known = {found.name: found for found in all_jobs()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise NotFound(f"there is no job {unknown[0]!r}; there are {', '.join(known)}", code="job_not_found")
    return [known[name] for name in dict.fromkeys(names or known)]
