"""A database with an outbox, of either kind, for tests."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from deltamq.mq.client.cli.outbox import connector_of
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.outbox.outbox import Outbox
from deltamq.mq.client.outbox.statements import POSTGRESQL, SQLITE, OutboxDialect

__all__ = ["OutboxDatabase", "WatchedConnections", "sqlite_database"]

_numbers = itertools.count()


class OutboxDatabase:
    """A database at `url`, and a new outbox in it."""

    def __init__(self, url: str, table: str | None = None) -> None:
        self.url = url
        self.table = table or f"outbox_{next(_numbers)}"
        self.outbox = Outbox(table=self.table)
        self.connect = connector_of(url)
        with self.transaction() as connection:
            self.outbox.create(connection)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def dialect(self) -> OutboxDialect:
        return SQLITE if self.is_sqlite else POSTGRESQL

    def watched(self, on_commit: Callable[[int, bool], object]) -> WatchedConnections:
        return WatchedConnections(self.connect, on_commit)

    @contextmanager
    def transaction(self, *, commits: bool = True) -> Iterator[Any]:
        """Run the block in a transaction of a connection of its own."""
        with closing(self.connect()) as connection:
            yield connection
            if commits:
                connection.commit()
            else:
                connection.rollback()

    def put(self, *bodies: str, key: str | None = None, topic: str = "orders", commits: bool = True) -> None:
        with self.transaction(commits=commits) as connection:
            self.outbox.put_many(connection, topic, [Message(body.encode(), key) for body in bodies])

    def rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        with self.transaction() as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]

    def change(self, statement: str) -> None:
        with self.transaction() as connection:
            connection.cursor().execute(statement)

    def waiting(self) -> list[str]:
        return [
            bytes(body).decode()
            for (body,) in self.rows(f"SELECT body FROM {self.table} WHERE lane IS NOT NULL ORDER BY id")
        ]

    def set_aside(self) -> list[tuple[str, str]]:
        """Return body and code of the messages that were set aside."""
        found = self.rows(f"SELECT body, error_code FROM {self.table} WHERE lane IS NULL ORDER BY id")
        return [(bytes(body).decode(), code) for body, code in found]


class WatchedConnections:
    """Connections whose commits a test watches: `on_commit(number, done)` is called before and after each."""

    def __init__(self, connect: Callable[[], Any], on_commit: Callable[[int, bool], object]) -> None:
        self._connect = connect
        self.on_commit = on_commit
        self.commits = 0
        self._made: list[Any] = []

    def connect(self) -> Any:
        self._made.append(self._connect())
        return _Watched(self._made[-1], self)

    def close(self) -> None:
        """Close all connections, as the end of their process does."""
        for connection in self._made:
            connection.close()


class _Watched:
    """One watched connection."""

    def __init__(self, inner: Any, watch: WatchedConnections) -> None:
        self._inner = inner
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        self._watch.commits += 1
        self._watch.on_commit(self._watch.commits, False)
        self._inner.commit()
        self._watch.on_commit(self._watch.commits, True)


def sqlite_database(folder: Path) -> OutboxDatabase:
    path = folder / "shop.db"
    sqlite3.connect(path).close()
    path.touch()
    return OutboxDatabase(f"sqlite:///{path}")
