"""A process that writes to an outbox, or relays it, and is killed at a named point.

python -m tests.e2e.outbox_process write DATABASE TABLE POINT     before_commit, after_commit
python -m tests.e2e.outbox_process relay DATABASE TABLE POINT URL before_claim, before_send, after_send,
                                                                  before_mark, after_mark, never
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from deltamq.mq.client.messages.message import Message, SentRange
from deltamq.mq.client.outbox.relay import OutboxRelay
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.shells.send_future import SendFuture
from tests.outbox_database import OutboxDatabase

__all__ = ["POINTS", "WRITE_POINTS"]

WRITE_POINTS = ("before_commit", "after_commit")
POINTS = ("before_claim", "before_send", "after_send", "before_mark", "after_mark")
_HOUR_MS = 3_600_000


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Killing:
    """A producer whose process dies before or after a request."""

    def __init__(self, inner: Producer, point: str) -> None:
        self._inner = inner
        self._point = point
        self.sent = False

    def on_commit(self, number: int, done: bool) -> None:
        """Die at the first commit of the relay, or at the first one after a request."""
        points = {(False, False): "before_claim", (True, False): "before_mark", (True, True): "after_mark"}
        if self._point == points.get((self.sent, done)):
            _die()

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> SendFuture[tuple[SentRange, ...]]:
        if self._point == "before_send":
            _die()
        sent = self._inner.send_fixed(
            topic, messages, producer_id=producer_id, producer_seq=producer_seq, timeout_s=timeout_s
        )
        if self._point != "never":
            sent.result()
        if self._point == "after_send":
            _die()
        self.sent = True
        return sent


def _write(database: OutboxDatabase, point: str) -> None:
    connection: Any = database.connect()
    database.outbox.put(connection, "orders", Message(point.encode(), "written"))
    if point == "before_commit":
        _die()
    connection.commit()
    _die()


def _relay(database: OutboxDatabase, point: str, url: str, hours_late: int) -> None:
    with Producer(url) as producer:
        killing = _Killing(producer, point)
        relay = OutboxRelay(
            database.watched(killing.on_commit).connect,
            killing,
            table=database.table,
            dialect=database.dialect,
            # Each process is less late than those before it: when it begins, the leases of the dead have ended.
            now_ms=lambda: time.time_ns() // 1_000_000 - hours_late * _HOUR_MS,
        )
        relay.run()


if __name__ == "__main__":
    what, url_of_database, table, where, *rest = sys.argv[1:]
    there = OutboxDatabase(url_of_database, table)
    if what == "write":
        _write(there, where)
    else:
        _relay(there, where, rest[0], int(rest[1]))
