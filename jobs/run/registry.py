"""What a job is, and the registry of all jobs.

A job is a function `run(spark, conf, now)` that is idempotent and can be restarted at any line. Its docstring states
its input, its output, what makes it idempotent, and what a kill at any line leaves; a function without a docstring does
not register. It returns facts to show, and raises errors. Two kinds of facts have a fixed meaning:

    rows         rows that this run wrote or changed; summed over the runs of one driver
    behind_...   how far behind the job is after the run: `behind_ms`, `behind_records`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from deltamq.mq.errors import Conflict, NotFound, Unavailable
from deltamq.tables.config import Config
from deltamq.tables.config_sections import Engine

Facts = Mapping[str, int | str]
#: The shards of a job whose work is not divided.
WHOLE: Final = ("all",)


class JobFunction(Protocol):
    """A job's function."""

    __qualname__: str

    def __call__(self, spark: Any, conf: Config, now: datetime, shards: Sequence[str] | None = None) -> Facts:
        """Do what is due at `now`.

        Parameters
        ----------
        spark
            A Spark session; None for a job that needs none with these settings.
        shards
            The shards that the caller has locked, as in `Job.shards`; None: all.
        """


#: Modules that register jobs when they are imported.
_MODULES: Final = (
    "deltamq.jobs.export.export",
    "deltamq.jobs.export.latest",
    "deltamq.jobs.export.scheduled_jobs",
    "deltamq.jobs.queue.delay",
    "deltamq.jobs.merge.merge",
    "deltamq.jobs.upkeep.compact",
    "deltamq.jobs.upkeep.erase",
    "deltamq.jobs.upkeep.retain",
    "deltamq.jobs.queue.revive",
    "deltamq.jobs.upkeep.verify",
    "deltamq.jobs.sql.catalog",
)
_registered: Final[dict[str, Job]] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A registered job."""

    name: str
    run: JobFunction
    every_s: Callable[[Config], float]
    document: str
    #: Whether `run` needs a session with these settings; otherwise it gets None, and none is started for it.
    needs_spark: Callable[[Config], bool] = lambda conf: True
    #: The parts of its work, each with a lock of its own; several applications may share them.
    shards: Callable[[Config], Sequence[str]] = lambda conf: WHOLE

    def engine(self, conf: Config) -> str:
        """Return the engine that runs the job with these settings."""
        return str((Engine.SPARK if self.needs_spark(conf) else Engine.LOCAL).value)

    @property
    def summary(self) -> str:
        """The first line of the job's docstring."""
        return self.document.strip().splitlines()[0]


def job(
    *,
    name: str,
    every_s: Callable[[Config], float],
    needs_spark: Callable[[Config], bool] = lambda conf: True,
    shards: Callable[[Config], Sequence[str]] = lambda conf: WHOLE,
) -> Callable[[JobFunction], JobFunction]:
    """Register the decorated function as the job `name`, due every `every_s(conf)` seconds.

    Raises
    ------
    SyntaxError
        The function has no docstring.
    Conflict
        Another job has this name.
    """

    def register(run: JobFunction) -> JobFunction:
        document = (run.__doc__ or "").strip()
        if not document:
            raise SyntaxError(f"job {name}: {run.__qualname__} needs a docstring; its first line describes the job")
        if name in _registered:
            raise Conflict(f"there is a job {name!r} already: {_registered[name].run.__qualname__}")
        _registered[name] = Job(
            name=name, run=run, every_s=every_s, document=document, needs_spark=needs_spark, shards=shards
        )
        return run

    return register


def with_spark_engine(conf: Config) -> bool:
    """Return whether Spark runs the jobs; this is `needs_spark` of a job that has both engines."""
    return conf.jobs.engine is Engine.SPARK


def all_jobs() -> list[Job]:
    """Return every job, by name; raises `Unavailable` (`package_missing`) without the extra `spark`."""
    try:
        for module in _MODULES:
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "deltamq").partition(".")[0]
        if package == "deltamq":
            raise
        detail = f"the jobs need the package {package}: pip install 'deltamq[spark]'"
        raise Unavailable(detail, code="package_missing") from error
    return [_registered[name] for name in sorted(_registered)]


def jobs_named(names: tuple[str, ...]) -> list[Job]:
    """Return the named jobs in this order, or all jobs if no name is given; raise `NotFound` for an unknown name."""
    known = {job_.name: job_ for job_ in all_jobs()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise NotFound(f"there is no job {unknown[0]!r}; there are {', '.join(known)}", code="job_not_found")
    return [known[name] for name in dict.fromkeys(names or known)]
