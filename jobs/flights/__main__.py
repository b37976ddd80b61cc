"""`make run`: the main job on the command line."""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console

from deltamq.jobs.flights.child import JobFailed
from deltamq.jobs.flights.run import Run
from deltamq.jobs.setup.jars import PROJECT_FOLDER, JarsUnusable
from deltamq.jobs.setup.java import JavaMissing, find_java
from deltamq.jobs.tasks.warehouses import absolute
from deltamq.mq.errors import DeltaMQError
from deltamq.tables.config import load

RATE_EVENTS_S: Final = 25_000
WAIT_S: Final = 120.0
INTERRUPTED: Final = 130
#: The console's width if stdout is not a terminal.
LOG_COLUMNS: Final = 110


@click.command(name="make run")
@click.option("--once", is_flag=True, help="End after the report; non-zero if anything disagrees.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the service; 0 takes a free one.")
@click.option("--events", type=click.IntRange(min=1), help="Replay only this number of events.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=RATE_EVENTS_S, show_default=True, help="Events/s; 0: no pauses."
)
@click.option("--warehouse", metavar="DIR", help="Folder or URL of the tables (by default the setting warehouse.uri).")
@click.option("--logs", metavar="DIR", default=str(PROJECT_FOLDER / ".run"), help="Folder for logs and report.")
@click.option(
    "--wait",
    type=click.FloatRange(min=1),
    default=WAIT_S,
    show_default=True,
    help="Seconds to wait for a silent process; a busy machine gets more.",
)
def main(
    once: bool, port: int | None, events: int | None, rate: float, warehouse: str | None, logs: str, wait: float
) -> None:
    """Replay a year of real flights through the service while Spark reads them, compare, then keep serving."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        find_java()
        config = load(overrides={"service.port": port, "warehouse.uri": warehouse})
        folder = Path(logs).resolve() / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}"
        folder.mkdir(parents=True)
        run = Run(
            console=Console(width=None if sys.stdout.isatty() else LOG_COLUMNS),
            warehouse=absolute(config.warehouse.uri),
            host=config.service.host,
            port=config.service.port,
            events_max=events,
            rate_events_s=rate,
            folder=folder,
            wait_s=wait,
        )
        sys.exit(_status(run, once=once))
    except (JobFailed, DeltaMQError, JavaMissing, JarsUnusable) as error:
        raise click.ClickException(str(error)) from error


def _status(run: Run, *, once: bool) -> int:
    """Return the exit status; all processes are stopped in any case."""
    status = INTERRUPTED
    try:
        status = run.report().exit_status
        if not once:
            run.serve_on()
    except KeyboardInterrupt:
        click.echo("stopping ...")
    except DeltaMQError:
        run.check()
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        run.close()
    return status


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
