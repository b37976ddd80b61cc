"""What differs between databases: the marks of parameters, the types of columns, how rows are locked.

Statements are written with `?` once, and a dialect turns them into those of its driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deltamq.mq.errors import Refused

Parameters = Sequence[object] | Mapping[str, object]


class Cursor(Protocol):
    """What is used of a cursor of the DB-API."""

    @property
    def description(self) -> Any: ...

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: Any, parameters: Any = ..., /) -> object: ...

    def executemany(self, operation: Any, parameters: Any, /) -> object: ...

    def fetchall(self) -> Sequence[Any]: ...

    def close(self) -> object: ...


class Connection(Protocol):
    """What is used of a connection of the DB-API (PEP 249)."""

    def cursor(self) -> Cursor: ...

    def commit(self) -> object: ...

    def rollback(self) -> object: ...

    def close(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxDialect:
    """How to talk to one kind of database through its driver.

    Parameters
    ----------
    paramstyle
        That of the driver: `qmark`, `format`, `pyformat`, `numeric` or `named`.
    id_column, bytes_type
        The type of a column that numbers rows in the order of their inserts and never uses a number twice, and that of
        a column of bytes.
    begin
        The statement that begins a transaction of the relay; None if the driver begins one by itself.
    lock
        What follows a SELECT that locks its rows and leaves out those that another has locked; empty if `begin` keeps
        other writers out.
    """

    name: str
    paramstyle: str
    id_column: str
    bytes_type: str
    begin: str | None = None
    lock: str = ""

    def sql(self, statement: str) -> str:
        """Return a statement with `?` for its parameters as the driver wants it."""
        if self.paramstyle == "qmark":
            return statement
        first, *others = statement.split("?")
        return first + "".join(f"{self._mark(number)}{text}" for number, text in enumerate(others, 1))

    def _mark(self, number: int) -> str:
        marks = {"format": "%s", "pyformat": "%s", "numeric": f":{number}", "named": f":p{number}"}
        try:
            return marks[self.paramstyle]
        except KeyError:
            raise Refused(f"{self.paramstyle!r} is not a paramstyle of the DB-API", field="paramstyle") from None

    def parameters(self, values: Sequence[object]) -> Parameters:
        """Return the values as the driver wants them."""
        if self.paramstyle == "named":
            return {f"p{number}": value for number, value in enumerate(values, 1)}
        return tuple(values)


SQLITE: Final = OutboxDialect(
    name="sqlite",
    paramstyle="qmark",
    id_column="INTEGER PRIMARY KEY AUTOINCREMENT",
    bytes_type="BLOB",
    # The relay reads and then writes: a transaction that begins with a read could not be sure to become a writer.
    begin="BEGIN IMMEDIATE",
)
POSTGRESQL: Final = OutboxDialect(
    name="postgresql",
    paramstyle="format",
    id_column="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    bytes_type="BYTEA",
    lock="FOR UPDATE SKIP LOCKED",
)

#: The dialect of each known driver, by the name of its package.
_DRIVERS: Final = {
    "sqlite3": SQLITE,
    "psycopg": POSTGRESQL,
    "psycopg2": POSTGRESQL,
    "pg8000": POSTGRESQL,
}


def dialect_of(connection: object) -> OutboxDialect:
    """Return the dialect of a connection, by its driver; raises `Refused` (`dialect_unknown`) for another one."""
    # Also a subclass of the driver's connection is known, as pools and tracers make them.
    packages = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    for package in packages:
        if package in _DRIVERS:
            return _DRIVERS[package]
    raise Refused(
        f"the driver {packages[0]} is not known: give the outbox its OutboxDialect",
        code="dialect_unknown",
        field="dialect",
    )
