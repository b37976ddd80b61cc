"""Connections to a database that is named by a URL, for the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from deltamq.mq.client.outbox.statements import Connection
from deltamq.mq.errors import NotFound, Refused, Unavailable

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
    # Not created if it vanishes: an empty database has no outbox, and says nothing about what became of the old one.
    uri = f"{path.resolve().as_uri()}?mode=rw"
    return lambda: sqlite3.connect(uri, uri=True)


def _postgresql(url: str) -> Callable[[], Connection]:
    try:
        psycopg: Any = import_module("psycopg")
    except ImportError as error:
        raise Unavailable("the driver of PostgreSQL is not installed", code="driver_missing") from error
    return lambda: cast(Connection, psycopg.connect(url))
