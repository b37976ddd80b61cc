"""Runs jobs, with Spark if they need it, within bounds that keep one job from stopping another.

Each job has a session of its own, for its settings; a pool of the fair scheduler, so that its long queries do not keep
the cores from short ones; and a job group for each run, to cancel the run. Over Spark Connect there are
no pools, and the group is a tag.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.registry import Facts, Job
from deltamq.jobs.spark.application import SparkApplication, SparkGone
from deltamq.jobs.spark.masters import java_missing
from deltamq.jobs.tasks.connect import is_connect
from deltamq.jobs.tasks.task_errors import errors_of_tasks
from deltamq.tables.config import Config

_POOL: Final = "spark.scheduler.pool"


class SparkRunner:
    """Runs jobs; safe for threads."""

    def __init__(
        self,
        conf: Config,
        *,
        me: Holder | None = None,
        on_lost: Callable[[], None] = lambda: None,
        application: SparkApplication | None = None,
    ) -> None:
        """`me` holds the jobs' shards; `on_lost` is called if Spark died and cannot be restarted from this process."""
        self._application = application or SparkApplication(conf, me=me, on_lost=on_lost)
        self._numbers = itertools.count()
        #: The job group of each job's present run.
        self._groups: dict[str, str] = {}

    def __call__(self, job: Job, conf: Config, now: datetime, shards: Sequence[str]) -> Facts:
        """Run a job once."""
        if not job.needs_spark(conf):
            return job.run(None, conf, now, shards)
        session = self._application.session(job.name)
        try:
            with self._bounded(session, job), errors_of_tasks():
                return job.run(session, conf, now, shards)
        except Exception as error:
            if self._application.has_died(session, error):
                raise SparkGone(f"Spark died under the job: {type(error).__name__}: {error}") from error
            raise

    def missing(self, job: Job, conf: Config) -> str:
        """Return why there is no Spark for the job, which may have begun to need it; empty if it can run."""
        error = java_missing(conf.jobs.master)
        return "" if error is None or not job.needs_spark(conf) else str(error)

    def cancel(self, job: str) -> None:
        """Cancel Spark's work for the job's run, including later work of the run."""
        group, session = self._groups.get(job), self._application.known(job)
        if group is None or session is None:
            return
        with contextlib.suppress(Exception):  # a driver that has ended has nothing to cancel
            _cancel(session, group)

    def progress(self, job: str) -> str:
        """Return the number of ended tasks of the job's run, and of those that Spark knows so far."""
        group, session = self._groups.get(job), self._application.known(job)
        if group is None or session is None or is_connect(session):
            return ""
        with contextlib.suppress(Exception):  # a driver that has ended has no progress
            return _progress(session, group)
        return ""

    def close(self) -> None:
        """Stop the Spark application if it was started here."""
        self._application.close()

    @contextlib.contextmanager
    def _bounded(self, session: Any, job: Job) -> Iterator[None]:
        group = f"mq-{job.name}-{next(self._numbers)}"
        self._groups[job.name] = group
        try:
            with _tagged(session, group) if is_connect(session) else _grouped(session, group, job):
                yield
        finally:
            del self._groups[job.name]


@contextlib.contextmanager
def _tagged(session: Any, group: str) -> Iterator[None]:
    session.addTag(group)
    try:
        yield
    finally:
        session.removeTag(group)


@contextlib.contextmanager
def _grouped(session: Any, group: str, job: Job) -> Iterator[None]:
    context = session.sparkContext
    context.setJobGroup(group, f"deltamq {job.name}: {job.summary}", interruptOnCancel=True)
    context.setLocalProperty(_POOL, job.name)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a driver that died during the job has lost it anyway
            context.setLocalProperty(_POOL, None)


def _cancel(session: Any, group: str) -> None:
    if is_connect(session):
        session.interruptTag(group)
        return
    session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)
    for query in session.streams.active:  # only this job's, because each job has its own session
        query.stop()


def _progress(session: Any, group: str) -> str:
    tracker = session.sparkContext.statusTracker()
    known = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for info in known if info is not None for stage in info.stageIds]
    total = sum(stage.numTasks for stage in stages if stage is not None)
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return f"tasks={done}/{total}"
