"""`deltamq jobs`: run the Spark jobs, and show their runs.

`list` and `show` read small files and start no Spark; `run` starts it once, when the first job that needs it is due.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from deltamq.jobs.cli import text
from deltamq.jobs.cli.export_commands import export_group
from deltamq.jobs.cli.group_commands import replay_command, reset_command
from deltamq.jobs.cli.options import conf_of, errors_shown, with_warehouse
from deltamq.jobs.cli.scheduled_commands import scheduled_group
from deltamq.jobs.run.application import Holder
from deltamq.jobs.run.last_run import utc_now
from deltamq.jobs.run.meters import Meters, serving
from deltamq.jobs.run.registry import Job, all_jobs, jobs_named
from deltamq.jobs.run.schedule import Scheduler
from deltamq.jobs.run.state import job_state
from deltamq.jobs.run.telling import log_line
from deltamq.jobs.setup.java import JavaMissing
from deltamq.jobs.spark.masters import java_missing
from deltamq.jobs.spark.runner import SparkRunner
from deltamq.jobs.tasks.warehouse_files import storage
from deltamq.jobs.tasks.warehouses import close_warehouses, warehouse_of
from deltamq.mq.client.cli.console import watchable
from deltamq.mq.errors import NotFound
from deltamq.tables.config import Config
from deltamq.tables.config_sections import Engine, LogFormat
from deltamq.tables.log_lines import logged_to_stderr
from deltamq.tables.ops.job_runs import LastRun
from deltamq.tables.settings import extra_missing
from deltamq.tables.store.store import Store

if TYPE_CHECKING:
    from deltamq.jobs.run.traces import RunTraces

#: A warehouse has at least one of these folders from its first moments on.
_FOLDERS: Final = frozenset(("sys", "topics", "jobs"))
#: Seconds between two looks for a warehouse that is awaited.
_LOOK_S: Final = 0.1
_MASTER: Final = re.compile(
    r"local|local\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\]|local-cluster\[.+\]|spark://.+|yarn|k8s://.+|sc://.+"
)


def _checked_master(_context: click.Context, _option: click.Parameter, master: str | None) -> str | None:
    if master is not None and _MASTER.fullmatch(master) is None:
        raise click.BadParameter(
            f"{master!r} is not a master of Spark: local[*], local[2], spark://host:7077, yarn, k8s://..., "
            "or sc://host:15002 for Spark Connect"
        )
    return master


@click.group(name="jobs")
def jobs_command() -> None:
    """Run the Spark jobs, or list them with their shards, owners and last runs."""


jobs_command.add_command(export_group)
jobs_command.add_command(replay_command)
jobs_command.add_command(reset_command)
jobs_command.add_command(scheduled_group)


@jobs_command.command(name="run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--engine",
    type=click.Choice([engine.value for engine in Engine]),
    help="Instead of jobs.engine: local follows due messages in this process's memory, spark finds them in tasks.",
)
@click.option(
    "--master",
    metavar="URL",
    callback=_checked_master,
    help="Instead of jobs.master: where Spark runs, such as local[2], spark://host:7077, sc://host:15002.",
)
@click.option("--once", is_flag=True, help="Run each job once now and exit; non-zero if a job failed.")
@click.option("--every", type=click.FloatRange(min=0.05), metavar="SECONDS", help="Instead of each job's schedule.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait this long for a service that is about to make the warehouse (0).",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Instead of jobs.metrics_port: serve /metrics and /readyz there, for Prometheus and Kubernetes.",
)
@click.option("--no-wait", is_flag=True, help="Fail if another application has a shard, instead of standing by.")
@with_warehouse
def run_command(
    names: tuple[str, ...],
    engine: str | None,
    master: str | None,
    once: bool,
    every: float | None,
    wait_s: float,
    metrics_port: int | None,
    no_wait: bool,
    warehouse: str | None,
    profile: str | None,
) -> None:
    """Run the named jobs, or all, on their schedules until SIGTERM or Ctrl-C.

    Several applications of one warehouse share the shards of each job; one application at a time holds each shard. An
    application that is started while others hold all shards stands by, and takes over the shards that they give back or
    leave.

    With --once, each job works on the free shards; it fails if another application holds some.
    """
    # The queue's state is millions of objects without cycles: looking for cycles doubles the cost of a burst.
    gc.set_threshold(100_000, 50, 100)
    with errors_shown(), contextlib.ExitStack() as ending:
        conf = conf_of(profile, warehouse, engine=engine, master=master, metrics_port=metrics_port)
        jobs = _that_can_run(jobs_named(names), conf, all_are_meant=not names)
        ending.enter_context(logged_to_stderr(conf.jobs.log_format, conf.jobs.log_level))
        meters = Meters([job.name for job in jobs])
        if conf.jobs.metrics_port:
            ending.enter_context(serving(meters, conf.jobs.metrics_host, conf.jobs.metrics_port))
        ran = [meters.ran]
        if conf.jobs.traces_url:
            traces = _traces(conf)
            ending.callback(traces.close)
            ran.append(traces.ran)
        ending.callback(close_warehouses)
        _await_warehouse(conf, wait_s)
        warehouse_of(conf).check_may_write("jobs")
        _run(jobs, conf, ending, ran, once=once, every_s=every, wait=not no_wait)


def _traces(conf: Config) -> RunTraces:
    try:
        from deltamq.jobs.run.traces import RunTraces
    except ImportError as error:
        raise extra_missing("jobs.traces_url", "otel", error) from error
    return RunTraces(conf.jobs.traces_url, cluster=conf.warehouse.cluster)


def _that_can_run(jobs: list[Job], conf: Config, *, all_are_meant: bool) -> list[Job]:
    """If all jobs are meant, the local engine leaves out the ones that need Spark where there is no Java."""
    with_spark = [job.name for job in jobs if job.needs_spark(conf)]
    error = java_missing(conf.jobs.master) if with_spark else None
    if error is None:
        return jobs
    if conf.jobs.engine is Engine.SPARK:
        raise JavaMissing(f"{error} Or run the jobs that need no Spark: deltamq jobs run --engine local")
    if not all_are_meant:
        raise error
    click.echo(f"warning: {', '.join(with_spark)} do not run without Java: {error}", err=True)
    return [job for job in jobs if job.name not in with_spark]


def _run(
    jobs: list[Job],
    conf: Config,
    ending: contextlib.ExitStack,
    ran: Sequence[Callable[[LastRun], None]],
    *,
    once: bool,
    every_s: float | None,
    wait: bool,
) -> None:
    lost: list[str] = []

    def spark_lost() -> None:
        lost.append("Spark is gone, and this process cannot start it again: start the application again")
        scheduler.stop()

    def noted(run: LastRun) -> None:
        for note in ran:
            note(run)

    me = Holder.this()
    runner = SparkRunner(conf, me=me, on_lost=spark_lost)
    ending.callback(runner.close)
    scheduler = Scheduler(
        jobs,
        conf,
        _existing(conf),
        runner=runner,
        ran=noted,
        tell=click.echo if conf.jobs.log_format is LogFormat.LINE else log_line,
        every_s=every_s,
        wait=wait,
        me=me,
    )

    def stop(_signal: int, _frame: FrameType | None) -> None:
        scheduler.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    succeeded = True
    if once:
        succeeded = scheduler.run_once()
    else:
        scheduler.run_until_stopped()
    if scheduler.unfinished:
        _end_now(scheduler.unfinished)
    if lost:
        raise click.ClickException(lost[0])
    if not succeeded:
        raise SystemExit(1)


def _end_now(unfinished: list[str]) -> None:
    """End the process while runs go on: as after a kill, their next runs do the rest."""
    click.echo(
        f"Error: {', '.join(unfinished)} did not end in time and is killed; its next run does the rest", err=True
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


@jobs_command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document for machines.")
@click.option("--long", is_flag=True, help="Add each job's input, its output, and the consequences of a kill.")
@with_warehouse
@watchable
def list_command(as_json: bool, long: bool, warehouse: str | None, profile: str | None) -> None:
    """Show every job: its summary, engine, schedule and last run, its shards and their owners."""
    with errors_shown(), contextlib.ExitStack() as ending:
        conf = conf_of(profile, warehouse)
        store = _existing(conf)
        now = utc_now()
        ending.callback(close_warehouses)  # a job may look into the warehouse for its shards
        states = [job_state(job, conf, store, now) for job in all_jobs()]
        if as_json:
            click.echo(json.dumps([text.as_json(state) for state in states], indent=2))
            return
        for state in states:
            click.echo(text.as_text(state, long=long))


@jobs_command.command(name="show")
@click.argument("name")
@with_warehouse
def show_command(name: str, warehouse: str | None, profile: str | None) -> None:
    """Show one job: its input and output, the consequences of a kill, its last run and its shards."""
    with errors_shown(), contextlib.ExitStack() as ending:
        conf = conf_of(profile, warehouse)
        ending.callback(close_warehouses)
        (job,) = jobs_named((name,))
        click.echo(text.as_text(job_state(job, conf, _existing(conf), utc_now()), long=True))


def _await_warehouse(conf: Config, wait_s: float) -> None:
    """Raise `NotFound` after `wait_s`."""
    until = time.monotonic() + wait_s
    while True:
        try:
            _existing(conf)
        except NotFound:
            if time.monotonic() >= until:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _existing(conf: Config) -> Store:
    """Return the store of an existing warehouse: jobs of a missing one would do nothing, and report success."""
    store = storage(conf.warehouse.uri)
    if not _FOLDERS & set(store.folders("")):
        uri = conf.warehouse.uri
        detail = f"there is no warehouse at {uri}: start the service, or name it with --warehouse or --url"
        raise NotFound(detail, code="warehouse_not_found", field="warehouse")
    return store
