"""The outbox with a real service: whatever is killed, each committed message is stored once, and no other (SEND-7)."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deltamq import PullConsumer
from deltamq.mq.client.outbox.relay import OutboxRelay
from tests.e2e.outbox_process import POINTS, WRITE_POINTS
from tests.e2e.service_process import CLI, ServiceProcess
from tests.forked import Forked, run_forked
from tests.outbox_database import OutboxDatabase, sqlite_database
from tests.postgresql_server import postgresql_server

PROCESS = "tests.e2e.outbox_process"


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> OutboxDatabase:
    if request.param == "sqlite":
        return sqlite_database(tmp_path)
    return OutboxDatabase(request.getfixturevalue("postgresql_url"))


def stored(url: str, topic: str) -> dict[str | None, list[str]]:
    """Return the bodies of each key, in order."""
    found: dict[str | None, list[str]] = {}
    with PullConsumer(url, topic) as consumer:
        ends = consumer.end_offsets()
        while any(consumer.position(name) < end for name, end in ends.items()):
            for one in consumer.poll(10_000, 1_000):
                found.setdefault(one.key, []).append(one.text)
    return found


def killed(*arguments: str) -> None:
    done = run_forked(PROCESS, *arguments)
    assert done.returncode == -signal.SIGKILL, done.stderr


def relay_once(database: OutboxDatabase, url: str) -> dict[str, Any]:
    command = ["outbox", "relay", "--database", database.url, "--table", database.table, "--once", "--json"]
    done = run_forked(CLI, *command, "--url", url)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_send_07_a_relay_killed_at_any_point_stores_each_message_once(
    shared_service: ServiceProcess, database: OutboxDatabase, topic: str
) -> None:
    for number, point in enumerate(POINTS):
        for step in range(3):
            database.put(f"{number}{step}", key=f"k{step}", topic=topic)
        database.put(f"{number}", topic=topic)
        database.put("never", key="k0", topic=topic, commits=False)
        killed("relay", database.url, database.table, point, shared_service.url, str(len(POINTS) - number))
        if point in ("before_claim", "before_send"):
            assert len(database.waiting()) == 4 * (number + 1)
    relay_once(database, shared_service.url)
    assert database.waiting() == database.set_aside() == []
    found = stored(shared_service.url, topic)
    # Messages without a key are in several partitions, which are read in turn.
    assert sorted(found.pop(None)) == [f"{number}" for number in range(len(POINTS))]
    assert found == {f"k{step}": [f"{number}{step}" for number in range(len(POINTS))] for step in range(3)}


@pytest.mark.parametrize("point", WRITE_POINTS)
def test_send_07_a_killed_writer_sends_what_it_committed_and_nothing_else(
    shared_service: ServiceProcess, database: OutboxDatabase, point: str
) -> None:
    killed("write", database.url, database.table, point)
    assert relay_once(database, shared_service.url)["sent"] == (1 if point == "after_commit" else 0)


def test_send_07_messages_wait_for_a_service_that_dies_and_comes_back(
    service: ServiceProcess, database: OutboxDatabase
) -> None:
    database.put("0", key="k", topic="orders")
    ended = threading.Event()
    relay = OutboxRelay(
        database.connect,
        service.url,
        table=database.table,
        timeout_s=2.0,
        lease_s=4.0,
        poll_ms=10,
        first_wait_ms=10,
        wait_ms_max=100,
    )
    thread = threading.Thread(target=relay.run, args=(ended,))
    thread.start()
    try:
        wait_until(lambda: database.waiting() == [], relay)
        for number in range(1, 3):
            service.kill()
            database.put(f"{number}", key="k", topic="orders")
            database.put("never", key="k", topic="orders", commits=False)
            wait_until(partial(failed_after, relay, relay.stats().repeated), relay)
            service.start()
            wait_until(lambda: database.waiting() == [], relay)
    finally:
        ended.set()
        relay.wake()
        thread.join(30)
        relay.close()
    assert stored(service.url, "orders") == {"k": ["0", "1", "2"]}


def failed_after(relay: OutboxRelay, repeated: int) -> bool:
    return relay.stats().repeated > repeated


def wait_until(condition: Callable[[], bool], relay: OutboxRelay) -> None:
    looked = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        looked.wait(0.01)
    raise AssertionError(f"the condition did not come true in time: {relay.stats()}")


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"], indirect=True)
def test_send_07_two_relays_of_which_one_is_killed_store_each_message_once(
    shared_service: ServiceProcess, database: OutboxDatabase, topic: str
) -> None:
    command = ["relay", database.url, database.table, "never", shared_service.url, "1"]
    relays = [Forked(PROCESS, *command) for _ in range(2)]
    try:
        for number in range(60):
            database.put(f"{number:02}", key=f"k{number % 6}", topic=topic)
            if number % 15 == 14:
                relays[0].kill()
                relays[0].wait(30)
                relays[0].stdout.close()
                relays[0] = Forked(PROCESS, *command)
    finally:
        for one in relays:
            one.kill()
            one.wait(30)
            one.stdout.close()
    relay_once(database, shared_service.url)
    assert database.waiting() == []
    assert stored(shared_service.url, topic) == {
        f"k{key}": [f"{number:02}" for number in range(60) if number % 6 == key] for key in range(6)
    }


def test_send_07_what_the_service_refuses_is_set_aside_and_shown(
    shared_service: ServiceProcess, database: OutboxDatabase, topic: str
) -> None:
    database.put("1", "2", "3", key="k", topic=topic)
    ids = [number for (number,) in database.rows(f"SELECT id FROM {database.table} ORDER BY id")]
    database.change(f"UPDATE {database.table} SET partition_name = 'nowhere@nobody' WHERE id = {ids[1]}")
    command = ["outbox", "relay", "--database", database.url, "--table", database.table, "--once"]
    done = run_forked(CLI, *command, "--url", shared_service.url)
    assert done.returncode == 1
    assert done.stdout == "sent 2 messages; 1 set aside\n"
    assert "partition_not_found" in done.stderr
    assert stored(shared_service.url, topic) == {"k": ["1", "3"]}
