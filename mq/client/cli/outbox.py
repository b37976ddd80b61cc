"""`deltamq outbox ...`: send what applications have committed in their outbox, and show what waits there.

The database is named by a URL: `sqlite:///PATH`, or `postgresql://...` as libpq understands it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import click
import msgspec

from deltamq.mq.client.cli.console import error_line, print_json, print_table, service_options
from deltamq.mq.client.cli.group_consume import stopped_by_sigterm
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.outbox.ledger import SetAside
from deltamq.mq.client.outbox.outbox import Outbox, OutboxStatus
from deltamq.mq.client.outbox.relay import OutboxRelay
from deltamq.mq.client.outbox.session import opened
from deltamq.mq.client.outbox.statements import Connection
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable

_FAILED: Final = 1
_SHOWN_MAX: Final = 1_000

_DATABASE = click.option(
    "--database",
    envvar="DELTAMQ_OUTBOX_DATABASE",
    required=True,
    help="sqlite:///PATH, or postgresql://USER@HOST/NAME.",
)
_TABLE = click.option("--table", default="mq_outbox", show_default=True, help="The table of the outbox.")


@click.group()
def outbox() -> None:
    """Send what applications have committed in their outbox, and show what waits there."""


@outbox.command()
@_DATABASE
@_TABLE
@click.option("--once", is_flag=True, help="End when nothing can be sent now; exits 1 if messages are left.")
@click.option("--strict", is_flag=True, help="Let messages of a key wait while one of it is set aside.")
@service_options
def relay(database: str, table: str, once: bool, strict: bool, url: str, access: ClientAccess, as_json: bool) -> int:
    """Send the messages of an outbox, each once, messages of a key in order, until SIGTERM or Ctrl-C.

    Any number of relays may run. A message that the service refuses is set aside and reported; `deltamq outbox show`
    lists it.
    """

    def report(aside: SetAside) -> None:
        error = DeltaMQError(f"{len(aside.ids):,} messages for {aside.topic} were set aside: {aside.detail}")
        error.code = aside.code
        error.extra["ids"] = list(aside.ids)
        click.echo(error_line(error, as_json=as_json), err=True)

    connect = connector_of(database)
    with OutboxRelay(connect, url, table=table, strict=strict, on_set_aside=report, **access) as running:
        done = True
        with stopped_by_sigterm(running):
            try:
                if once:
                    done = running.drain()
                else:
                    running.run()
            except KeyboardInterrupt:
                running.stop()
        stats = running.stats()
    if as_json:
        print_json(stats)
    else:
        again = f", {stats.duplicates:,} of them sent before" if stats.duplicates else ""
        click.echo(f"sent {stats.sent:,} messages{again}; {stats.set_aside:,} set aside")
    return 0 if done and not stats.set_aside else _FAILED


@outbox.command()
@_DATABASE
@_TABLE
@click.option(
    "--max",
    "set_aside_max",
    type=click.IntRange(0, _SHOWN_MAX),
    default=20,
    show_default=True,
    help="Show at most this number of messages that were set aside.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def show(database: str, table: str, set_aside_max: int, as_json: bool) -> None:
    """Print what waits in an outbox, which requests fail, and the messages that were set aside."""
    with opened(connector_of(database), table) as connection:
        status = Outbox(table=table).status(connection, set_aside_max=set_aside_max)
    if as_json:
        print_json({"waiting": status.waiting, "set_aside": status.set_aside, **msgspec.to_builtins(status)})
    else:
        _print(status, datetime.now(UTC))


@outbox.command("send-again")
@_DATABASE
@_TABLE
@click.argument("ids", nargs=-1, type=int, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def send_again(database: str, table: str, ids: tuple[int, ...], as_json: bool) -> int:
    """Let messages that were set aside be sent again, by their IDS; exits 1 if one of them is not there."""
    with opened(connector_of(database), table) as connection:
        count = Outbox(table=table).send_again(connection, ids)
        connection.commit()
    if as_json:
        print_json({"again": count})
    else:
        click.echo(f"{count:,} messages are sent again")
    return 0 if count == len(ids) else _FAILED


def _print(status: OutboxStatus, now: datetime) -> None:
    click.echo(f"{status.waiting:,} messages wait, {status.set_aside:,} were set aside")
    if status.topics:
        rows = [(t.topic, t.waiting, t.set_aside, _age(t.oldest_time, now)) for t in status.topics]
        print_table(("topic", "waiting", "set aside", "oldest"), rows, right=("waiting", "set aside", "oldest"))
    if status.lanes:
        lanes = [(lane.lane, lane.failures, _time(lane.next_try_time), lane.code, lane.detail) for lane in status.lanes]
        print_table(("failing lane", "failures", "next try", "error", "detail"), lanes, right=("failures",))
    if status.messages:
        aside = [
            (m.id, m.topic, m.key or "", m.message_id, _time(m.failed_time), m.code, m.detail) for m in status.messages
        ]
        print_table(("id", "topic", "key", "message id", "set aside", "error", "detail"), aside, right=("id",))


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _age(oldest: datetime | None, now: datetime) -> str:
    return "-" if oldest is None else f"{max(0.0, (now - oldest).total_seconds()):,.0f} s"


_SQLITE: Final = "sqlite:///"
_POSTGRESQL: Final = ("postgresql://", "postgres://")


def connector_of(url: str) -> Callable[[], Connection]:
    """Return the function that connects to the database at `url`.

    Parameters
    ----------
    url
        `sqlite:///PATH` (`sqlite:////absolute/path`), or `postgresql://...` as libpq understands it.

    Raises
    ------
    Refused
        `invalid_database_url`.
    NotFound
        `database_not_found`: there is no such file.
    Unavailable
        `driver_missing`: the driver of PostgreSQL is not installed.
    """
    if url.startswith(_SQLITE):
        return _sqlite(Path(url.removeprefix(_SQLITE)))
    if url.startswith(_POSTGRESQL):
        return _postgresql(url)
    raise Refused(
        "a database's URL looks like sqlite:///path or postgresql://user@host/name",
        code="invalid_database_url",
        field="database",
    )


def _sqlite(path: Path) -> Callable[[], Connection]:
    if not path.is_file():
        raise NotFound(f"there is no database {path}", code="database_not_found", field="database")
    # Never creates the file: an empty database would hide that the old one is gone.
    uri = f"{path.resolve().as_uri()}?mode=rw"
    return lambda: sqlite3.connect(uri, uri=True)


def _postgresql(url: str) -> Callable[[], Connection]:
    try:
        psycopg: Any = import_module("psycopg")
    except ImportError as error:
        raise Unavailable("the driver of PostgreSQL is not installed", code="driver_missing") from error
    return lambda: cast(Connection, psycopg.connect(url))
