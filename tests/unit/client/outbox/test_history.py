"""Any history of writers, relays, failures and crashes ends with each committed message stored once, keys in order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamq.mq.client.outbox.relay import OutboxRelay
from tests.outbox_database import OutboxDatabase, WatchedConnections, sqlite_database
from tests.unit.client.outbox.outbox_service import Crash, Fault, OutboxService

LEASE_MS = 30_000
KEYS = (None, "a", "b", "c")

puts = st.tuples(st.just("put"), st.sampled_from(KEYS), st.booleans(), st.booleans())
#: Of a pass: which relay, the faults of its requests, and the commit at which its process dies, before or after it.
passes = st.tuples(
    st.just("pass"),
    st.integers(0, 1),
    st.lists(st.none() | st.sampled_from(Fault), max_size=3),
    st.none() | st.tuples(st.integers(1, 3), st.booleans()),
)
#: A pass during which the relay sleeps past its lease, while the other one works.
sleeps = st.tuples(st.just("sleep"), st.integers(0, 1))
clocks = st.tuples(st.just("clock"), st.sampled_from([100, 10_000, LEASE_MS]))


class History:
    """Two relays, which are made anew when they die."""

    def __init__(self, database: OutboxDatabase) -> None:
        self.database = database
        self.service = OutboxService()
        self.now_ms = 1_000_000
        self.committed: dict[str | None, list[str]] = {}
        self.bad: list[str] = []
        self._count = 0
        self._relays: dict[int, tuple[OutboxRelay, WatchedConnections]] = {}

    def put(self, key: str | None, commits: bool, bad: bool) -> None:
        self._count += 1
        body = f"{'bad' if bad else 'good'} {self._count:03}"
        self.database.put(body, key=key, commits=commits)
        if commits and bad:
            self.bad.append(body)
        elif commits:
            self.committed.setdefault(key, []).append(body)

    def look(self, number: int, faults: list[Fault | None], death: tuple[int, bool] | None) -> None:
        relay, connections = self._relay(number)
        self.service.faults.extend(faults)
        begun = connections.commits

        def die(commit: int, done: bool) -> None:
            if (commit - begun, done) == death:
                raise Crash

        connections.on_commit = die
        try:
            relay.run_once()
        except Crash:
            connections.close()
            del self._relays[number]
        finally:
            connections.on_commit = lambda commit, done: None
            self.service.faults.clear()

    def sleep(self, number: int) -> None:
        def others_go_on() -> None:
            self.now_ms += LEASE_MS
            self.look(1 - number, [], None)

        self.service.meanwhile = others_go_on
        self.look(number, [], None)
        self.service.meanwhile = None

    def end(self) -> None:
        for _ in range(60):
            self.now_ms += 60_000
            self.look(0, [], None)
            if not self.database.waiting():
                return
        raise AssertionError(f"still waiting: {self.database.waiting()}")

    def close(self) -> None:
        for relay, _ in self._relays.values():
            relay.close()

    def _relay(self, number: int) -> tuple[OutboxRelay, WatchedConnections]:
        if number not in self._relays:
            connections = self.database.watched(lambda commit, done: None)
            relay = OutboxRelay(
                connections.connect,
                self.service,
                table=self.database.table,
                dialect=self.database.dialect,
                messages_max=3,
                now_ms=lambda: self.now_ms,
            )
            self._relays[number] = (relay, connections)
        return self._relays[number]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(puts | puts | passes | sleeps | clocks, max_size=25))
def test_send_07_any_history_stores_each_committed_message_once_and_each_key_in_order(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite_database(Path(folder))
        history = History(database)
        try:
            for what, *rest in steps:
                if what == "clock":
                    history.now_ms += rest[0]
                else:
                    {"put": history.put, "pass": history.look, "sleep": history.sleep}[what](*rest)
            history.end()
        finally:
            history.close()
        for key in KEYS:
            assert history.service.bodies(key=key) == history.committed.get(key, [])
        assert sorted(body for body, _ in database.set_aside()) == sorted(history.bad)
