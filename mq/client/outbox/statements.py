"""The two tables of an outbox, the statements on them, and what differs between databases.

    messages (TABLE)         one row for each message that is not acknowledged; `lane` is null once it is set aside
    lanes    (TABLE_lanes)   one row for each lane: its relay, until when, and the request that is under way (its claim)

Statements are written with `?` once. A dialect adapts them to its driver: the marks of parameters, the types of
columns, how rows are locked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from deltamq.mq.errors import Refused

Parameters = Sequence[object] | Mapping[str, object]


class Cursor(Protocol):
    """The part of a DB-API cursor that is used here."""

    @property
    def description(self) -> Any: ...

    @property
    def rowcount(self) -> int: ...

    def execute(self, operation: Any, parameters: Any = ..., /) -> object: ...

    def executemany(self, operation: Any, parameters: Any, /) -> object: ...

    def fetchall(self) -> Sequence[Any]: ...

    def close(self) -> object: ...


class Connection(Protocol):
    """The part of a DB-API connection (PEP 249) that is used here."""

    def cursor(self) -> Cursor: ...

    def commit(self) -> object: ...

    def rollback(self) -> object: ...

    def close(self) -> object: ...


class OutboxDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How to talk to one kind of database through its driver.

    Parameters
    ----------
    paramstyle
        The driver's: `qmark`, `format`, `pyformat`, `numeric` or `named`.
    id_column, bytes_type
        The type of a column that numbers rows in the order of their inserts and never uses a number twice, and the
        type of a column of bytes.
    begin
        The statement that begins a transaction of the relay; None if the driver begins one by itself.
    lock
        The end of a SELECT that locks its rows and skips rows that another transaction has locked; empty if `begin`
        keeps other writers out.
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


#: A name, or a schema and a name, that needs no quotes.
_TABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,50}")

#: The columns of a message, in the order in which rows are written and read.
MESSAGE_COLUMNS: Final = (
    "topic",
    "message_key",
    "tag",
    "headers",
    "body",
    "partition_name",
    "message_id",
    "born_us",
    "deliver_us",
    "is_value",
)


class Tables(msgspec.Struct, frozen=True):
    """The names of an outbox's tables, and the statements on them, with `?` for parameters."""

    messages: str

    def __post_init__(self) -> None:
        if _TABLE.fullmatch(self.messages) is None:
            raise Refused("table must be letters, digits and _, with or without a schema before a dot", field="table")

    @property
    def lanes(self) -> str:
        """The name of the table of lanes."""
        return f"{self.messages}_lanes"

    def definitions(self, dialect: OutboxDialect) -> list[str]:
        """Return the statements that make the tables if they are missing."""
        index = self.messages.rpartition(".")[2]
        return [
            f"CREATE TABLE IF NOT EXISTS {self.messages} (id {dialect.id_column}, lane TEXT, topic TEXT NOT NULL, "
            f"message_key TEXT, tag TEXT, headers TEXT, body {dialect.bytes_type} NOT NULL, partition_name TEXT, "
            "message_id TEXT NOT NULL, born_us BIGINT NOT NULL, deliver_us BIGINT, "
            "is_value SMALLINT NOT NULL DEFAULT 0, error_code TEXT, error_detail TEXT, failed_ms BIGINT)",
            f"CREATE INDEX IF NOT EXISTS {index}_by_lane ON {self.messages} (lane, id)",
            f"CREATE INDEX IF NOT EXISTS {index}_set_aside ON {self.messages} (topic, message_key) WHERE lane IS NULL",
            f"CREATE TABLE IF NOT EXISTS {self.lanes} (lane TEXT PRIMARY KEY, producer_id TEXT NOT NULL, "
            "producer_seq BIGINT NOT NULL, claim TEXT, claimed_ms BIGINT NOT NULL, holder TEXT NOT NULL, "
            "lease_until_ms BIGINT NOT NULL, failures BIGINT NOT NULL, next_try_ms BIGINT NOT NULL, "
            "error_code TEXT, error_detail TEXT)",
        ]

    # Messages ---------------------------------------------------------------------------------------------------

    @property
    def insert(self) -> str:
        """Write a message: its lane, then `MESSAGE_COLUMNS`."""
        marks = ", ".join("?" * (1 + len(MESSAGE_COLUMNS)))
        return f"INSERT INTO {self.messages} (lane, {', '.join(MESSAGE_COLUMNS)}) VALUES ({marks})"

    @property
    def lanes_with_messages(self) -> str:
        """Find the lanes that have messages: a step on the index for each lane, however many messages there are."""
        return (
            f"WITH RECURSIVE found (lane) AS (SELECT MIN(lane) FROM {self.messages} UNION ALL "
            f"SELECT (SELECT MIN(lane) FROM {self.messages} WHERE lane > found.lane) FROM found "
            "WHERE found.lane IS NOT NULL) SELECT lane FROM found WHERE lane IS NOT NULL"
        )

    def next_messages(self, *, strict: bool) -> str:
        """Find the first messages of a lane: id, partition and bytes; parameters are the lane and their number.

        With `strict`, messages after one of their key that was set aside are left out.
        """
        behind = (
            f"AND NOT EXISTS (SELECT 1 FROM {self.messages} AS aside WHERE aside.lane IS NULL "
            "AND aside.id < waiting.id AND aside.topic = waiting.topic AND aside.message_key = waiting.message_key) "
        )
        return (
            f"SELECT id, partition_name, LENGTH(body) FROM {self.messages} AS waiting WHERE lane = ? "
            f"{behind if strict else ''}ORDER BY id LIMIT ?"
        )

    def read(self, ids: Sequence[int]) -> str:
        """Read these messages in order: id, then `MESSAGE_COLUMNS`. Messages that are set aside are left out."""
        columns = ", ".join(MESSAGE_COLUMNS)
        return f"SELECT id, {columns} FROM {self.messages} WHERE lane IS NOT NULL AND {ids_in(ids)} ORDER BY id"

    def delete(self, ids: Sequence[int]) -> str:
        """Delete these messages."""
        return f"DELETE FROM {self.messages} WHERE {ids_in(ids)}"

    def set_aside(self, ids: Sequence[int]) -> str:
        """Set these messages aside; parameters are code and detail of the error, and the time in ms."""
        return (
            f"UPDATE {self.messages} SET lane = NULL, error_code = ?, error_detail = ?, failed_ms = ? "
            f"WHERE {ids_in(ids)}"
        )

    @property
    def send_again(self) -> str:
        """Put a message that was set aside back into its lane; parameters are the lane and its id."""
        return (
            f"UPDATE {self.messages} SET lane = ?, error_code = NULL, error_detail = NULL, failed_ms = NULL "
            "WHERE id = ? AND lane IS NULL"
        )

    # Lanes ------------------------------------------------------------------------------------------------------

    @property
    def add_lane(self) -> str:
        """Add a lane unless it is there; parameters are its name and a producer id."""
        return (
            f"INSERT INTO {self.lanes} (lane, producer_id, producer_seq, claimed_ms, holder, lease_until_ms, failures, "
            "next_try_ms) VALUES (?, ?, 0, 0, '', 0, 0, 0) ON CONFLICT (lane) DO NOTHING"
        )

    def read_lanes(self, lock: str = "") -> str:
        """Read the lanes that a relay may take now; parameters are the time twice, and the relay."""
        return (
            "SELECT lane, producer_id, producer_seq, claim, claimed_ms, failures, holder "
            f"FROM {self.lanes} WHERE next_try_ms <= ? AND (lease_until_ms <= ? OR holder = ?) ORDER BY lane {lock}"
        )

    @property
    def known_lanes(self) -> str:
        """Read the names of all lanes."""
        return f"SELECT lane FROM {self.lanes}"

    @property
    def claim(self) -> str:
        """Note a lane's request and its relay: producer id, sequence, claim, times, relay; then the lane."""
        return (
            f"UPDATE {self.lanes} SET producer_id = ?, producer_seq = ?, claim = ?, claimed_ms = ?, holder = ?, "
            "lease_until_ms = ? WHERE lane = ?"
        )

    @property
    def close_claim(self) -> str:
        """End a lane's request if it is still this relay's: lane, relay, producer id and sequence."""
        return (
            f"UPDATE {self.lanes} SET claim = NULL, producer_seq = producer_seq + 1, lease_until_ms = 0, failures = 0, "
            f"next_try_ms = 0, error_code = NULL, error_detail = NULL {self._if_mine}"
        )

    @property
    def keep_claim(self) -> str:
        """Note a failure of a lane's request: when it is repeated, the error, its time; then as `close_claim`."""
        return (
            f"UPDATE {self.lanes} SET lease_until_ms = 0, failures = failures + 1, next_try_ms = ?, error_code = ?, "
            f"error_detail = ?, claimed_ms = ? {self._if_mine}"
        )

    @property
    def release(self) -> str:
        """End the leases of a relay."""
        return f"UPDATE {self.lanes} SET lease_until_ms = 0 WHERE holder = ? AND lease_until_ms > 0"

    @property
    def _if_mine(self) -> str:
        return "WHERE lane = ? AND holder = ? AND producer_id = ? AND producer_seq = ? AND claim IS NOT NULL"

    # For people -------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> str:
        """Count by topic: waiting, set aside, and the time in us of the oldest that waits."""
        return (
            "SELECT topic, COUNT(lane), COUNT(*) - COUNT(lane), MIN(CASE WHEN lane IS NOT NULL THEN born_us END) "
            f"FROM {self.messages} GROUP BY topic ORDER BY topic"
        )

    @property
    def read_set_aside(self) -> str:
        """Read messages that were set aside; the parameter is their number."""
        return (
            "SELECT id, topic, message_key, message_id, error_code, error_detail, failed_ms "
            f"FROM {self.messages} WHERE lane IS NULL ORDER BY id LIMIT ?"
        )

    @property
    def failing_lanes(self) -> str:
        """Read the lanes whose request has failed and is repeated."""
        return (
            f"SELECT lane, failures, next_try_ms, error_code, error_detail FROM {self.lanes} "
            "WHERE failures > 0 ORDER BY lane"
        )


def ids_in(ids: Sequence[int]) -> str:
    """Return the condition that the id is one of these; written out, since drivers limit the number of parameters."""
    return f"id IN ({', '.join(str(int(number)) for number in ids)})"
