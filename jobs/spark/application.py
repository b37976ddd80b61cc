"""The Spark application of the jobs: started when the first job needs it, and restarted after it has died.

A context dies when its JVM is killed or runs out of memory, or when something in it fails for good; a Connect server
may go away. Then all jobs that need Spark fail. The first of them notices and ends the rest, and the next run
starts the application again: at once, or after growing waits if it dies again soon. Jobs without Spark are not
affected.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.jvm_lock import forget_jvm, lock_jvm
from deltamq.jobs.spark.jvm_lines import jvm_lines_logged
from deltamq.jobs.spark.jvm_options import jvm_options
from deltamq.jobs.tasks.connect import is_connect
from deltamq.jobs.tasks.first_lines import sentence_of
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.mq.errors import Unavailable
from deltamq.tables.config import Config
from deltamq.tables.config_sections import LogFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Seconds to wait before a restart, by the number of deaths soon after a start.
WAITS_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: The death of an application that lived for this time does not count as a death soon after a start.
_LIVED_S: Final = 300.0
_POOLS: Final = Path(__file__).with_name("pools.xml")
#: A JVM that ran out of memory is unreliable: it ends, and another one is started.
_ENDS_WITHOUT_MEMORY: Final = "-XX:+ExitOnOutOfMemoryError"


class SparkGone(Unavailable):
    """The Spark application of the jobs died, or cannot be started now."""

    code = "spark_gone"


class SparkApplication:
    """One application for all jobs and their threads, with a session of its own for each job."""

    def __init__(
        self,
        conf: Config,
        *,
        me: Holder | None = None,
        on_lost: Callable[[], None] = lambda: None,
        make: Callable[[Config], SparkSession] | None = None,
        is_given: Callable[[], bool] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`me` holds the jobs' shards; `on_lost` is called if Spark died and cannot be restarted from this process.

        `make` returns a session; `is_given` returns whether another owner made it, so that it must not be stopped at
        the end.
        """
        self._conf = conf
        self._me = me
        self._on_lost = on_lost
        self._make = make or _made
        self._is_given = is_given or _is_given
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._first: SparkSession | None = None
        self._ours = True
        self._sessions: dict[str, SparkSession] = {}
        self._made_s = 0.0
        self._not_before_s = 0.0
        self._deaths = 0
        self._died_of = ""
        self._jvm_lock: object = None

    def session(self, job: str) -> SparkSession:
        """Return the job's session.

        Raises
        ------
        SparkGone
            The application died or does not start, and the wait before its restart is not over.
        """
        with self._lock:
            if self._first is None:
                self._start()
            assert self._first is not None, "just made"
            session = self._sessions.get(job)
            if session is None:
                # imported here, because it takes longer than `deltamq jobs list` should
                from deltamq.jobs.spark.session import another_session

                session = another_session(self._first, self._conf.warehouse.uri)
                self._sessions[job] = session
            return session

    def known(self, job: str) -> SparkSession | None:
        """Return the job's session if it has one."""
        return self._sessions.get(job)

    def has_died(self, session: SparkSession, error: Exception) -> bool:
        """Return whether a session's application is dead; if so, end its rest, so that it can be restarted.

        Parameters
        ----------
        error
            The error that the job raised.
        """
        with self._lock:
            if session not in self._sessions.values():
                return True  # another job has noticed, and the application may have been restarted already
            if _is_alive(session):
                return False
            self._note_death(f"{type(error).__name__}: {sentence_of(str(error))}")
            assert self._first is not None, "it had a session"
            can_restart = self._ours and _bury(self._first)
            self._first = None
            self._sessions.clear()
        if not can_restart:
            self._on_lost()
        return True

    def close(self) -> None:
        """Stop the application if it was started here."""
        if self._first is None or not self._ours:
            return
        if _is_alive(self._first):
            self._first.stop()
        else:
            _bury(self._first)
        if self._jvm_lock is not None and self._me is not None:
            forget_jvm(storage(self._conf.warehouse.uri), self._me.application)

    def _start(self) -> None:
        if self._monotonic_s() < self._not_before_s:
            raise SparkGone(f"Spark will be restarted soon; it ended by {self._died_of}")
        try:
            self._ours = not self._is_given()
            self._first = self._make(self._conf)
            if self._me is not None and not is_connect(self._first):
                self._jvm_lock = lock_jvm(self._first, storage(self._conf.warehouse.uri), self._me.application)
        except Exception as error:
            self._first = None
            self._made_s = self._monotonic_s()
            self._note_death(f"{type(error).__name__}: {error}")
            if self._ours and self._make is _made:
                with contextlib.suppress(Exception):  # a half-made context would block the next one
                    _bury(None)
            raise
        self._made_s = self._monotonic_s()

    def _note_death(self, of: str) -> None:
        now_s = self._monotonic_s()
        self._deaths = 1 if now_s - self._made_s >= _LIVED_S else self._deaths + 1
        self._died_of = of
        self._not_before_s = now_s + WAITS_S[min(self._deaths, len(WAITS_S)) - 1]


def _is_given() -> bool:
    """Whether there is a session from another maker, such as the platform."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if "DATABRICKS_RUNTIME_VERSION" in os.environ or SparkSession.getActiveSession() is not None:
        return True
    # jobs run in their own threads, and a session is active in the thread that made it
    try:
        return _is_alive(SparkSession.active())
    except PySparkRuntimeError:
        return False


def _made(conf: Config) -> SparkSession:
    from deltamq.jobs.spark.session import spark_session

    if _is_given():
        return spark_session("deltamq-jobs", conf=conf)
    if conf.jobs.master.startswith("sc://"):
        return spark_session("deltamq-jobs", conf=conf, **{"spark.remote": conf.jobs.master})
    if os.environ.get("SPARK_REMOTE"):
        return spark_session("deltamq-jobs", conf=conf)
    bounds = {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": _POOLS.as_uri(),
        "spark.driver.maxResultSize": conf.jobs.result_size_max,
    }
    is_json = conf.jobs.log_format is LogFormat.JSON
    with jvm_options(_ENDS_WITHOUT_MEMORY), jvm_lines_logged() if is_json else contextlib.nullcontext():
        return spark_session("deltamq-jobs", conf=conf, **bounds)


def _is_alive(session: Any) -> bool:
    if is_connect(session):
        try:
            return bool(session.version)  # asks the server
        except Exception:  # the client raises various errors if the server is gone or has lost the session
            return False
    from py4j.protocol import Py4JError

    context = session.sparkContext
    process = getattr(context._gateway, "proc", None)
    if context._jsc is None or (process is not None and process.poll() is not None):
        return False
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _bury(session: Any) -> bool:
    """End the rest of an application; False: this process cannot start another one."""
    if session is not None and is_connect(session):
        with contextlib.suppress(Exception):
            session.stop()
        return True
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    untyped: Any = SparkContext
    context, gateway = untyped._active_spark_context, untyped._gateway
    process = getattr(gateway, "proc", None)
    submitted = gateway is not None and process is None
    if context is not None:
        if not submitted:
            context._jsc = None  # otherwise it would be asked to stop, and would not answer
        with contextlib.suppress(Exception):
            context.stop()
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None
    if submitted:  # the JVM started this process: only there can a new context be made
        return _answers(untyped._jvm)
    if process is not None:
        process.kill()
        process.wait()
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    untyped._gateway = untyped._jvm = None
    return True


def _answers(jvm: Any) -> bool:
    try:
        return bool(jvm.java.lang.System.nanoTime())
    except Exception:  # Py4J raises various errors for a JVM that is gone
        return False
