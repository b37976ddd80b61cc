"""A connection of the relay: its own transactions, one at a time, and failures as errors of `mq.errors`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from deltamq.mq.client.outbox.statements import Connection, OutboxDialect, Tables, dialect_of
from deltamq.mq.errors import DeltaMQError, NotFound, Refused, Unavailable

DATABASE_FAILED: Final = "outbox_database_failed"


def run(
    connection: Connection, dialect: OutboxDialect, statement: str, *values: object
) -> tuple[list[tuple[Any, ...]], int]:
    """Run a statement in the connection's present transaction; returns its rows and the number of rows it changed."""
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.sql(statement), dialect.parameters(values))
        # A statement that is no query has no description, and drivers refuse to fetch from it.
        rows = [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
        return rows, int(cursor.rowcount)
    finally:
        cursor.close()


class Session:
    """The relay's connection, made when it is needed, and again after a failure. Used by one thread."""

    def __init__(self, connect: Callable[[], Connection], dialect: OutboxDialect | None) -> None:
        self._connect = connect
        self._given = dialect
        self._connection: Connection | None = None
        #: What the driver raises.
        self._failures: type[Exception] = Exception

    @contextmanager
    def transaction(self, *, reads_only: bool = False) -> Iterator[None]:
        """Run the block in one transaction; any error rolls it back.

        Raises
        ------
        Unavailable
            `outbox_database_failed`: after a failure of the commit, it may have happened or not.
        """
        try:
            connection = self._opened()
            begin = self.dialect.begin
            # A driver that is always within a transaction (`autocommit=False` of sqlite3) refuses a second one.
            if begin is not None and not reads_only and not getattr(connection, "in_transaction", False):
                run(connection, self.dialect, begin)
            yield
            if reads_only:
                connection.rollback()
            else:
                connection.commit()
        except DeltaMQError:
            self._roll_back()
            raise
        except self._failures as error:
            # Whatever is wrong, the next transaction begins with a new connection.
            self.close()
            raise Unavailable(f"the outbox's database: {error}", code=DATABASE_FAILED) from error
        except BaseException:
            self._roll_back()
            raise

    @property
    def is_open(self) -> bool:
        """True if there is a connection, which has not failed."""
        return self._connection is not None

    @property
    def dialect(self) -> OutboxDialect:
        """The database's dialect."""
        return self._given if self._given is not None else dialect_of(self._opened())

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query in the present transaction."""
        return run(self._opened(), self.dialect, statement, *values)[0]

    def change(self, statement: str, *values: object) -> int:
        """Run a statement in the present transaction; returns the number of rows that it changed."""
        return run(self._opened(), self.dialect, statement, *values)[1]

    def check_tables(self, tables: Tables) -> None:
        """Raise `NotFound` (`outbox_not_found`) if the outbox's tables are missing."""
        with self.transaction(reads_only=True):
            pass  # a database that is away is another error than a table that is missing
        try:
            with self.transaction(reads_only=True):
                for table in (tables.messages, tables.lanes):
                    self.rows(f"SELECT 1 FROM {table} WHERE 1 = 0")
        except Unavailable as error:
            raise NotFound(
                f"the database has no outbox {tables.messages}: {error.__cause__}",
                code="outbox_not_found",
                field="table",
            ) from error

    def close(self) -> None:
        """Close the connection, which rolls back its transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # It may be broken already: there is nothing left to save.
            with suppress(Exception):
                connection.close()

    def _opened(self) -> Connection:
        if self._connection is None:
            self._failures = Exception  # until the driver's own error class is known
            connection = self._connect()
            self._failures = _errors_of(connection)
            if getattr(connection, "autocommit", False) is True:
                connection.close()
                raise Refused("the relay needs a connection without autocommit", field="connect")
            self._connection = connection
        return self._connection

    @property
    def connection(self) -> Connection:
        """The connection itself."""
        return self._opened()

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except Exception:
                self.close()


def _errors_of(connection: object) -> type[Exception]:
    """Return the base class of the errors of a connection's driver, which the DB-API calls `Error`."""
    for kind in type(connection).__mro__:
        error = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "Error", None)
        if isinstance(error, type) and issubclass(error, Exception):
            return error
    return Exception


@contextmanager
def opened(connect: Callable[[], Connection], table: str) -> Iterator[Connection]:
    """Yield a connection to a database that has this outbox, and close it; for commands that show or change it.

    Raises
    ------
    NotFound
        `outbox_not_found`: the database has no such table.
    Unavailable
        `outbox_database_failed`: the database failed.
    """
    session = Session(connect, None)
    try:
        session.check_tables(Tables(table))
        with session.transaction(reads_only=True):
            yield session.connection
    finally:
        session.close()
