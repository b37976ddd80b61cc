"""`deltamq jobs`: run the Spark jobs, and see what they did.

`list` reads small files and starts no Spark; `run` starts it once, when the first job that needs it is due.
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from jobs.run.last_run import LastRun, read_last_run, seconds_behind, utc_now
from jobs.run.registry import Facts, Job, all_jobs, jobs_named
from jobs.run.schedule import Scheduler
from jobs.run.storage import storage
from jobs.run.warehouses import close_warehouses
from jobs.setup.jars import JarsUnusable
from jobs.setup.java import JavaMissing
from mq.errors import DeltaMQError
from tables.config import Config, load
from tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jobs_command"]

_warehouse = click.option("--warehouse", metavar="DIR", help="Folder or URL of the warehouse.")
_profile = click.option("--profile", metavar="NAME", help="Settings of conf/NAME.toml (local).")


@click.group(name="jobs")
def jobs_command() -> None:
    """Run the Spark jobs, or list them with their last run."""


@jobs_command.command(name="run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--once", is_flag=True, help="Do what is due now and exit; non-zero when a job failed.")
@click.option("--every", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Instead of each job's schedule.")
@_warehouse
@_profile
def run_command(
    names: tuple[str, ...], once: bool, every: float | None, warehouse: str | None, profile: str | None
) -> None:
    """Run the named jobs, or all, on their schedules until SIGTERM or Ctrl-C.

    One driver at a time: another that is started for the same warehouse names the one that runs, and exits with 1.
    """
    # The state of the queue is millions of objects without cycles: looking for some doubles what a storm costs.
    gc.set_threshold(100_000, 50, 100)
    with _errors_told(), contextlib.ExitStack() as ending:
        conf = _conf(profile, warehouse)
        ending.callback(close_warehouses)
        runner = _SparkRunner(conf)
        ending.callback(runner.close)
        scheduler = Scheduler(
            jobs_named(names),
            conf,
            _made(conf),
            runner=runner,
            tell=click.echo,
            every_s=every,
        )

        def stop(_signal: int, _frame: FrameType | None) -> None:
            scheduler.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if not once:
            scheduler.run_until_stopped()
        elif not scheduler.run_once():
            raise SystemExit(1)


@jobs_command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@_warehouse
@_profile
def list_command(as_json: bool, warehouse: str | None, profile: str | None) -> None:
    """Show every job: what it does, its schedule, its last run, how far it is behind."""
    with _errors_told():
        conf = _conf(profile, warehouse)
        store = _made(conf)
        found = [(job, read_last_run(store, job.name)) for job in all_jobs()]
        now = utc_now()
        if as_json:
            click.echo(json.dumps([_as_json(job, last, conf, now) for job, last in found], indent=2))
            return
        for job, last in found:
            click.echo(_as_text(job, last, conf, now))


def _as_json(job: Job, last: LastRun | None, conf: Config, now: datetime) -> dict[str, object]:
    every_s = job.every_s(conf)
    shown = None
    if last is not None:
        shown = {
            "started_at": last.started_at.isoformat(),
            "seconds": last.seconds,
            "ok": last.ok,
            "detail": last.detail,
            "facts": last.facts,
            "rows": last.rows,
            "rows_since": last.since.isoformat() if last.since else None,
        }
    behind_s = round(seconds_behind(last, every_s, now), 3)
    return {"name": job.name, "does": job.summary, "every_s": every_s, "last_run": shown, "behind_s": behind_s}


def _as_text(job: Job, last: LastRun | None, conf: Config, now: datetime) -> str:
    every_s = job.every_s(conf)
    if last is None:
        ran = "never ran"
    else:
        facts = " ".join(f"{key}={value}" for key, value in last.facts.items())
        how = f"ok {facts}" if last.ok else f"FAILED {last.detail}"
        ran = f"last run {last.started_at:%Y-%m-%d %H:%M:%S} UTC, {last.seconds:g} s, {how}".rstrip()
    behind_s = seconds_behind(last, every_s, now)
    behind = f", {behind_s:.0f} s behind" if behind_s >= 1 else ""
    rows = f"\n    {last.rows} rows since {last.since:%Y-%m-%d %H:%M:%S} UTC" if last and last.since else ""
    return f"{job.name}: {job.summary}\n    every {every_s:g} s; {ran}{behind}{rows}"


def _conf(profile: str | None, warehouse: str | None) -> Config:
    conf = load(profile, {"warehouse.uri": warehouse})
    uri = conf.warehouse.uri
    return conf if "://" in uri else load(profile, {"warehouse.uri": str(Path(uri).resolve())})


def _made(conf: Config) -> Store:
    """Return the warehouse's files; a folder is made when it is not there: jobs may start before the service."""
    if "://" not in conf.warehouse.uri:
        Path(conf.warehouse.uri).mkdir(parents=True, exist_ok=True, mode=0o750)
    return storage(conf.warehouse.uri)


class _SparkRunner:
    """Runs jobs, for any number of threads: one Spark application, and a session of its own for each job.

    Jobs set what belongs to their session alone, such as the idempotent-write ids of Delta.
    """

    def __init__(self, conf: Config) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._first: SparkSession | None = None
        self._made = False
        self._sessions: dict[str, SparkSession] = {}

    def __call__(self, job: Job, conf: Config, now: datetime) -> Facts:
        return job.run(self._session(job) if job.needs_spark(conf) else None, conf, now)

    def _session(self, job: Job) -> SparkSession:
        with self._lock:
            if self._first is None:
                # importing Spark takes longer than `deltamq jobs list` should
                from pyspark.sql import SparkSession

                from jobs.sql import spark_session

                self._made = SparkSession.getActiveSession() is None
                self._first = spark_session("deltamq-jobs", conf=self._conf)
            found = self._sessions.get(job.name)
            if found is None:
                from jobs.sql.session import another_session

                found = another_session(self._first, self._conf.warehouse.uri)
                self._sessions[job.name] = found
            return found

    def close(self) -> None:
        """End the Spark application, if one was started here."""
        if self._first is not None and self._made:
            self._first.stop()


@contextmanager
def _errors_told() -> Iterator[None]:
    """End the command with one line for an error that is meant for people."""
    try:
        yield
    except (DeltaMQError, JavaMissing, JarsUnusable) as error:
        raise click.ClickException(str(error)) from error
