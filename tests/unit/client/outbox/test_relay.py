"""The relay on SQLite and PostgreSQL: what is committed is sent once and in order, whatever fails (SEND-7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from deltamq.mq.client.http.answers import error_of
from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.outbox.ledger import HELD_BACK_LOOKS_MAX, LOOKS_MAX, SetAside
from deltamq.mq.client.outbox.next_step import REPEATABLE_MS
from deltamq.mq.client.outbox.outbox import lane_of
from deltamq.mq.client.outbox.relay import OutboxRelay
from deltamq.mq.errors import NotFound, Refused, TooLarge, Unauthenticated, Unavailable
from tests.outbox_database import OutboxDatabase
from tests.unit.client.outbox.conftest import Clock
from tests.unit.client.outbox.outbox_service import Crash, Fault, OutboxService

MakeRelay = Callable[..., OutboxRelay]
LEASE_MS = 30_000


def drained(relay: OutboxRelay, database: OutboxDatabase) -> None:
    assert relay.drain()
    assert database.waiting() == []


def make_unreadable(database: OutboxDatabase, body: str) -> None:
    """Change the rows with this body as another program may: they hold no message any more."""
    for number, found in database.rows(f"SELECT id, body FROM {database.table}"):
        if bytes(found).decode() == body:
            database.change(f"UPDATE {database.table} SET headers = 'no json' WHERE id = {number}")


# What is sent -----------------------------------------------------------------------------------------------------


def test_send_07_what_commits_is_sent_and_what_rolls_back_is_not(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("paid", key="o-1")
    database.put("never", key="o-1", commits=False)
    database.put("shipped", key="o-1")
    relay = make_relay()
    drained(relay, database)
    assert service.bodies(key="o-1") == ["paid", "shipped"]
    assert relay.stats().sent == 2


def test_send_07_an_open_transaction_is_not_sent_and_nothing_commits_behind_its_back(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    connection: Any = database.connect()
    database.outbox.put(connection, "orders", b"later")
    relay = make_relay()
    assert relay.run_once().sent == 0
    connection.rollback()
    assert relay.run_once().sent == 0
    database.outbox.put(connection, "orders", b"now")
    connection.commit()
    connection.close()
    assert relay.run_once().sent == 1
    assert service.all_bodies() == ["now"]


def test_send_07_keys_and_keyless_messages_keep_their_order(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    for number in range(30):
        database.put(f"{number:02}", key=f"k{number % 7}" if number % 3 else None)
    drained(make_relay(messages_max=2), database)
    for key in (None, *(f"k{n}" for n in range(7))):
        bodies = service.bodies(key=key)
        assert bodies == sorted(bodies)
    assert len(service.all_bodies()) == 30


def test_send_07_everything_of_a_message_arrives(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    with database.transaction() as connection:
        given = Message(
            b"\x00\xff", "k", "tag", {"a": "b"}, message_id="m-1", partition="orders@broker-a", delay_ms=60_000
        )
        assert database.outbox.put(connection, "orders", given) == "m-1"
        made = database.outbox.put(connection, "orders", "text")
    drained(make_relay(), database)
    (sent,) = (one for one in service.stored["orders"] if one.key == "k")
    assert (sent.body, sent.tag, sent.headers, sent.partition) == (b"\x00\xff", "tag", {"a": "b"}, "orders@broker-a")
    assert sent.born_time is not None and sent.deliver_time is not None and sent.delay_ms is None
    assert (sent.deliver_time - sent.born_time).total_seconds() == 60
    (plain,) = (one for one in service.stored["orders"] if one.key is None)
    assert plain.message_id == made and len(made) == 32


def test_messages_for_named_partitions_have_requests_of_their_own(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    with database.transaction() as connection:
        for partition in ("p@a", "p@a", None, "q@a"):
            database.outbox.put(connection, "orders", Message(b"x", "k", partition=partition))
    drained(make_relay(), database)
    assert [[one.partition for one in messages] for *_, messages in service.requests] == [["p@a"] * 2, [None], ["q@a"]]


def test_requests_keep_to_their_bounds(database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay) -> None:
    database.put(*("x" * 100 for _ in range(10)))
    drained(make_relay(messages_max=4, bytes_max=250), database)
    assert [len(messages) for *_, messages in service.requests] == [2] * 5
    database.put("y" * 1_000)
    drained(make_relay(bytes_max=250), database)


def test_lanes_take_turns_when_a_pass_cannot_have_all(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    for topic in ("a", "b", "c"):
        database.put("1", "2", "3", topic=topic)
    relay = make_relay(lanes_max=1, messages_max=1)
    for _ in range(6):
        relay.run_once()
    assert [topic for topic, *_ in service.requests] == ["a", "b", "c"] * 2


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_send_07_rows_of_a_transaction_that_commits_later_are_not_skipped(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    early: Any = database.connect()
    database.outbox.put(early, "orders", Message(b"early", "k"))
    database.put("late", key="k")
    relay = make_relay()
    drained(relay, database)
    early.commit()
    early.close()
    drained(relay, database)
    assert service.bodies(key="k") == ["late", "early"], "they overlapped: any order, but both"


# Failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.BUSY, Fault.LOST])
def test_send_07_a_failed_request_is_repeated_until_it_is_stored_and_nothing_overtakes_it(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock, fault: Fault
) -> None:
    database.put("1", "2", key="k")
    service.faults.extend([fault] * 3)
    relay = make_relay()
    for number in range(3):
        assert relay.run_once().repeated == 1
        database.put(f"later {number}", key="k")
        clock.now_ms += LEASE_MS
    drained(relay, database)
    assert service.bodies(key="k") == ["1", "2", "later 0", "later 1", "later 2"]
    assert len({(producer_id, seq) for _, producer_id, seq, _ in service.requests[:4]}) == 1


def test_send_07_waits_double_up_to_the_most(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1")
    service.faults.extend([Fault.BUSY] * 5)
    relay = make_relay(first_wait_ms=100, wait_ms_max=400)
    waits = []
    for _ in range(5):
        assert relay.run_once().repeated == 1
        ((next_try_ms,),) = database.rows(f"SELECT next_try_ms FROM {database.table}_lanes")
        waits.append(next_try_ms - clock.now_ms)
        clock.now_ms = next_try_ms - 1
        assert relay.run_once().requests == 0
        clock.now_ms = next_try_ms
    assert waits == [100, 200, 400, 400, 400]
    with database.transaction() as connection:
        (lane,) = database.outbox.status(connection).lanes
    assert (lane.failures, lane.code) == (5, "unavailable")
    drained(relay, database)
    with database.transaction() as connection:
        assert database.outbox.status(connection).lanes == ()


@pytest.mark.threads  # it uses the connection, or the relay, from the test's own thread
@pytest.mark.parametrize("commit", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [None, Fault.LOST, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_send_07_a_crash_at_any_point_stores_each_message_once(
    database: OutboxDatabase,
    service: OutboxService,
    make_relay: MakeRelay,
    clock: Clock,
    commit: int,
    after: bool,
    fault: Fault | None,
) -> None:
    """Commits of a pass: new lanes, claims, outcomes."""
    database.put("1", "2", key="k")
    database.put("a", "b")
    service.faults.append(fault)
    dead: list[bool] = []

    def die(number: int, done: bool) -> None:
        if (number, done) == (commit, after) and not dead:
            raise Crash

    watched = database.watched(die)
    dying = make_relay(connect=watched.connect, dialect=database.dialect)
    with pytest.raises(Crash):
        dying.run_once()
    dead.append(True)
    watched.close()
    service.faults.clear()
    database.put("3", key="k")
    clock.now_ms += LEASE_MS
    drained(make_relay(), database)
    assert service.bodies(key="k") == ["1", "2", "3"]
    assert service.bodies() == ["a", "b"]


def test_send_07_another_relay_takes_a_lane_only_when_its_lease_ends(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1", "2", key="k")
    service.faults.append(Fault.CRASH_AFTER)
    with pytest.raises(Crash):
        make_relay().run_once()
    other = make_relay()
    clock.now_ms += LEASE_MS - 1
    assert other.run_once().requests == 0
    clock.now_ms += 1
    assert other.run_once().duplicates == 2
    assert service.bodies(key="k") == ["1", "2"]


@pytest.mark.threads  # it uses the connection, or the relay, from the test's own thread
def test_send_07_a_relay_that_slept_past_its_lease_neither_duplicates_nor_deletes(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1", "2", key="k")
    sleeper, other = make_relay(messages_max=1), make_relay(messages_max=1)

    def meanwhile() -> None:
        clock.now_ms += LEASE_MS
        assert other.run_once().sent == 1
        assert other.run_once().sent == 1
        database.put("3", key="k")
        service.meanwhile = None

    service.meanwhile = meanwhile
    assert sleeper.run_once().lost == 1
    assert database.waiting() == ["3"]
    drained(other, database)
    assert service.bodies(key="k") == ["1", "2", "3"]


def test_send_07_two_relays_at_once_store_each_message_once_and_in_order(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    ended = threading.Event()
    relays = [make_relay(messages_max=3, poll_ms=1) for _ in range(2)]
    locked = threading.Lock()
    send = service.send_fixed

    def send_fixed(*arguments: Any, **names: Any) -> Any:
        with locked:
            return send(*arguments, **names)

    service.send_fixed = send_fixed  # type: ignore[method-assign]  # the fake is not made for threads

    threads = [threading.Thread(target=relay.run, args=(ended,)) for relay in relays]
    for thread in threads:
        thread.start()
    for number in range(60):
        database.put(f"{number:02}", key=f"k{number % 5}")
    while database.waiting():
        for relay in relays:
            relay.wake()
    ended.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for key in range(5):
        assert service.bodies(key=f"k{key}") == [f"{n:02}" for n in range(60) if n % 5 == key]
    assert sum(relay.stats().sent for relay in relays) == 60


@pytest.mark.threads  # it uses the connection, or the relay, from the test's own thread
def test_send_07_failures_of_the_database_are_repeated(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1")
    failures = iter([OSError("no route")])
    ended = threading.Event()

    def connect() -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return watched.connect()

    watched = database.watched(lambda number, done: None)
    relay = make_relay(connect=connect, dialect=database.dialect, first_wait_ms=1, wait_ms_max=2, poll_ms=1)
    with pytest.raises(Unavailable) as caught:
        relay.run_once()
    assert caught.value.code == "outbox_database_failed"
    send = service.send_fixed

    def send_fixed(*arguments: Any, **names: Any) -> Any:
        watched.close()  # as if the connection broke between claim and outcome
        ended.set()
        return send(*arguments, **names)

    service.send_fixed = send_fixed  # type: ignore[method-assign]  # one more thing that happens meanwhile
    relay.run(until=ended)
    service.send_fixed = send  # type: ignore[method-assign]  # as before
    assert relay.stats().database_failures == 1
    drained(relay, database)
    assert service.all_bodies() == ["1"]


def test_errors_of_the_program_are_not_taken_for_failures_of_the_database(
    database: OutboxDatabase, make_relay: MakeRelay
) -> None:
    class Broken:
        def send_fixed(self, *arguments: Any, **names: Any) -> Any:
            raise ZeroDivisionError

    database.put("1")
    with pytest.raises(ZeroDivisionError):
        make_relay(producer=Broken()).run_once()


# Refused messages -------------------------------------------------------------------------------------------------


def test_send_07_a_refused_message_is_set_aside_with_its_error_and_others_go_on(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    told = []
    database.put(*(f"{n:02}" for n in range(10)), "bad one", *(f"{n:02}" for n in range(10, 20)), key="k")
    relay = make_relay(on_set_aside=told.append)
    drained(relay, database)
    assert service.bodies(key="k") == [f"{n:02}" for n in range(20)]
    assert database.set_aside() == [("bad one", "invalid_message")]
    assert [(one.topic, len(one.ids), one.code) for one in told] == [("orders", 1, "invalid_message")]
    assert relay.stats().set_aside == 1
    assert relay.stats().sent == 20
    with database.transaction() as connection:
        status = database.outbox.status(connection)
    assert (status.waiting, status.set_aside) == (0, 1)
    assert (status.messages[0].key, status.messages[0].code) == ("k", "invalid_message")


def test_send_07_strict_lets_later_messages_of_the_key_wait(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1", "bad", "2", key="k")
    database.put("a", key="other")
    relay = make_relay(strict=True)
    relay.drain()
    assert service.bodies(key="k") == ["1"]
    assert service.bodies(key="other") == ["a"]
    assert database.waiting() == ["2"]
    database.change(f"DELETE FROM {database.table} WHERE lane IS NULL")
    drained(relay, database)
    assert service.bodies(key="k") == ["1", "2"]


def test_send_07_strict_lanes_that_are_held_back_starve_no_others(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    for topic in ("a", "b"):
        database.put("bad", "later", key="k", topic=topic)
    database.put("1", "2", "3", key="k", topic="c")
    relay = make_relay(strict=True, lanes_max=1, messages_max=1)
    for _ in range(8):
        assert relay.run_once().requests <= 1
    assert service.bodies("c", "k") == ["1", "2", "3"]
    # Nor those that a new relay, which does not know of them, finds.
    database.put("4", key="k", topic="c")
    assert not make_relay(strict=True, lanes_max=1).drain()
    assert service.bodies("c", "k") == ["1", "2", "3", "4"]
    assert database.waiting() == ["later", "later"]


def test_send_07_strict_a_pass_looks_at_some_of_the_lanes_that_are_held_back_and_the_others_go_on(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    topics = [f"held-{number:04}" for number in range(LOOKS_MAX + 10)]
    with database.transaction() as connection:
        for topic in topics:
            database.outbox.put_many(connection, topic, [Message(b"aside", "k"), Message(b"later", "k")])
    first_rows = f"SELECT MIN(id) FROM {database.table} GROUP BY topic"
    database.change(
        f"UPDATE {database.table} SET lane = NULL, error_code = 'x', error_detail = '', failed_ms = 0 "
        f"WHERE id IN ({first_rows})"
    )
    database.put("1", key="k", topic="sent")
    relay = make_relay(strict=True)
    first = relay.run_once()
    assert (first.requests, first.lanes_left, first.went_on) == (0, 11, True)
    assert relay.run_once().sent == 1
    # It knows them now: a lane that goes on waits for none of them, and they keep no relay busy.
    database.put("2", key="k", topic="sent")
    assert relay.run_once().sent == 1
    assert not relay.run_once().went_on
    # One that a person mends is found after some passes, and by drain() at once.
    database.change(f"DELETE FROM {database.table} WHERE lane IS NULL AND topic = '{topics[-1]}'")
    assert any(relay.run_once().sent for _ in range(len(topics) // HELD_BACK_LOOKS_MAX + 1))
    for topic in (topics[0], topics[-2]):
        database.change(f"DELETE FROM {database.table} WHERE lane IS NULL AND topic = '{topic}'")
    assert not relay.drain()
    assert [service.bodies(topic, "k") for topic in (topics[0], topics[-2], topics[-1])] == [["later"]] * 3
    assert service.bodies("sent", "k") == ["1", "2"]


def test_send_07_an_unknown_topic_is_set_aside_and_can_be_sent_again(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    service.missing.add("nowhere")
    database.put("1", "2", key="k", topic="nowhere")
    database.put("x", key="k")
    relay = make_relay()
    drained(relay, database)
    assert service.all_bodies() == ["x"]
    assert database.set_aside() == [("1", "topic_not_found"), ("2", "topic_not_found")]
    service.missing.clear()
    with database.transaction() as connection:
        ids = [one.id for one in database.outbox.status(connection).messages]
        assert database.outbox.send_again(connection, [*ids, 10**6]) == 2
        assert database.outbox.send_again(connection, []) == 0
    drained(relay, database)
    assert service.bodies("nowhere", "k") == ["1", "2"]
    assert database.set_aside() == []


def test_send_07_rows_that_hold_no_message_are_set_aside(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1", "2", "3", key="k")
    database.change(
        f"UPDATE {database.table} SET headers = 'no json' WHERE id = (SELECT MIN(id) FROM {database.table})"
    )
    database.change(
        f"UPDATE {database.table} SET tag = '{'x' * 200}' WHERE id = (SELECT MAX(id) FROM {database.table})"
    )
    drained(make_relay(), database)
    assert service.bodies(key="k") == ["2"]
    assert database.set_aside() == [("1", "row_unreadable"), ("3", "message_too_large")]


def test_send_07_strict_lets_later_messages_of_a_key_wait_for_a_row_that_holds_no_message(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    lane = lane_of("orders", "k")
    neighbour = next(key for key in map(str, range(1_000)) if lane_of("orders", key) == lane)
    database.put("unreadable", "later", key="k")
    database.put("another key", key=neighbour)
    database.put("unreadable", "without a key")
    make_unreadable(database, "unreadable")
    relay = make_relay(strict=True)
    relay.drain()
    assert database.waiting() == ["later"]
    assert [len(messages) for *_, messages in service.requests] == [1, 1]
    assert service.bodies(key=neighbour) == ["another key"]
    assert service.bodies() == ["without a key"]
    database.change(f"DELETE FROM {database.table} WHERE lane IS NULL")
    drained(relay, database)
    assert service.bodies(key="k") == ["later"]


@pytest.mark.parametrize("commit", [2, 3])
@pytest.mark.parametrize("error", [OSError("disk"), Crash()])
def test_send_07_what_a_failed_commit_set_aside_is_neither_told_nor_counted(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, commit: int, error: BaseException
) -> None:
    """Commits of a pass: new lanes, claims (which set aside rows without a message), outcomes."""
    database.put("unreadable", topic="a")
    database.put("1", topic="nowhere")
    make_unreadable(database, "unreadable")
    service.missing.add("nowhere")
    failures = {commit: error}

    def fail(number: int, done: bool) -> None:
        if not done and number in failures:
            raise failures.pop(number)

    watched = database.watched(fail)
    told: list[SetAside] = []
    relay = make_relay(connect=watched.connect, dialect=database.dialect, on_set_aside=told.append)
    with pytest.raises((Unavailable, Crash)):
        relay.run_once()
    # What would have been set aside can be sent now.
    service.missing.clear()
    database.change(f"UPDATE {database.table} SET headers = NULL WHERE lane IS NOT NULL")
    drained(relay, database)
    aside = database.set_aside()
    assert aside == ([] if commit == 2 else [("unreadable", "row_unreadable")])
    assert [one.code for one in told] == [code for _, code in aside]
    assert relay.stats().set_aside == len(aside)
    assert service.all_bodies("nowhere") == ["1"]


def test_send_07_a_wrong_token_sets_nothing_aside(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    class Locked:
        def send_fixed(self, *arguments: Any, **names: Any) -> Any:
            raise Unauthenticated("no")

    database.put("1")
    assert make_relay(producer=Locked()).run_once().repeated == 1
    assert database.set_aside() == []
    clock.now_ms += LEASE_MS
    drained(make_relay(), database)
    assert service.all_bodies() == ["1"]


# What can no longer be repeated -----------------------------------------------------------------------------------


def test_send_07_a_request_that_the_service_may_have_forgotten_is_not_repeated(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1", key="k")
    service.faults.append(Fault.LOST)
    relay = make_relay()
    assert relay.run_once().repeated == 1
    database.put("2", key="k")
    clock.now_ms += REPEATABLE_MS
    drained(relay, database)
    assert service.bodies(key="k") == ["1", "2"]
    assert database.set_aside() == [("1", "outbox_outcome_unknown")]


def test_send_07_a_service_that_was_certainly_away_for_days_gets_everything(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1", key="k")
    relay = make_relay()
    service.faults.extend([Fault.AWAY] * 3)
    for _ in range(3):
        assert relay.run_once().repeated == 1
        clock.now_ms += REPEATABLE_MS // 2
    drained(relay, database)
    assert service.bodies(key="k") == ["1"]


@pytest.mark.parametrize("code", ["request_too_large", "too_large"])
@pytest.mark.parametrize("bodies", [["1"], ["1", "2"]])
def test_send_07_a_request_that_may_be_stored_is_not_sent_in_parts_when_its_size_is_refused(
    database: OutboxDatabase,
    service: OutboxService,
    make_relay: MakeRelay,
    clock: Clock,
    code: str,
    bodies: list[str],
) -> None:
    """A limit of the service, or of a proxy, was lowered after the attempt that stored it."""
    database.put(*bodies, key="k")
    service.faults.append(Fault.LOST)
    relay = make_relay()
    assert relay.run_once().repeated == 1
    clock.now_ms += LEASE_MS
    service.refusing = TooLarge("at most 64 KiB", code=code)
    assert relay.run_once().set_aside == len(bodies)
    service.refusing = None
    database.put("later", key="k")
    drained(relay, database)
    assert service.bodies(key="k") == [*bodies, "later"]
    with database.transaction() as connection:
        aside = database.outbox.status(connection).messages
    assert [one.code for one in aside] == ["outbox_outcome_unknown"] * len(bodies)
    assert "at most 64 KiB" in aside[0].detail


def test_send_07_a_request_that_is_certainly_not_stored_is_divided_when_its_size_is_refused(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1", "2", key="k")
    service.refusing = TooLarge("at most 64 KiB", code="request_too_large")
    relay = make_relay()
    assert relay.run_once().divided == 1
    service.refusing = None
    drained(relay, database)
    assert [len(messages) for *_, messages in service.requests] == [2, 1, 1]


@pytest.mark.parametrize("status", [404, 408])
def test_send_07_a_request_that_may_be_stored_is_repeated_when_a_proxy_refuses_it(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock, status: int
) -> None:
    database.put("1", "2", key="k")
    service.faults.append(Fault.LOST)
    relay = make_relay()
    assert relay.run_once().repeated == 1
    clock.now_ms += LEASE_MS
    service.refusing = error_of(status, {}, b"<html></html>")
    assert relay.run_once().repeated == 1
    clock.now_ms += LEASE_MS
    service.refusing = None
    assert relay.run_once().duplicates == 2
    assert service.bodies(key="k") == ["1", "2"]
    assert database.waiting() == database.set_aside() == []


def test_send_07_a_request_whose_rows_were_deleted_by_hand_is_not_repeated(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay, clock: Clock
) -> None:
    database.put("1", "2", key="k")
    service.faults.append(Fault.LOST)
    relay = make_relay()
    assert relay.run_once().repeated == 1
    database.change(f"DELETE FROM {database.table} WHERE id = (SELECT MIN(id) FROM {database.table})")
    database.put("3", key="k")
    clock.now_ms += LEASE_MS
    drained(relay, database)
    assert database.set_aside() == [("2", "outbox_outcome_unknown")]
    assert service.bodies(key="k") == ["1", "2", "3"]


def test_send_07_a_restored_database_does_not_lose_messages_to_sequences_of_its_past(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1", key="k")
    drained(make_relay(), database)
    copy = database.rows(f"SELECT producer_id, producer_seq FROM {database.table}_lanes")
    relay = make_relay()
    database.put("2", key="k")
    drained(relay, database)
    producer_id, seq = copy[0]
    database.change(f"UPDATE {database.table}_lanes SET producer_id = '{producer_id}', producer_seq = {seq}")
    database.put("3", key="k")
    drained(make_relay(), database)
    assert service.bodies(key="k") == ["1", "2", "3"]


# Its life ---------------------------------------------------------------------------------------------------------


@pytest.mark.threads  # it stops the relay from what the relay calls
def test_run_ends_when_it_is_stopped_and_closing_gives_the_leases_up(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    database.put("1")
    relay = make_relay()
    service.meanwhile = relay.stop
    relay.run()
    assert relay.stats().sent == 1
    relay.run()
    service.faults.append(Fault.CRASH_BEFORE)
    database.put("2")
    dying = make_relay()
    with pytest.raises(Crash):
        dying.run_once()
    dying.close()
    drained(make_relay(), database)
    assert service.all_bodies() == ["1", "2"]


@pytest.mark.threads  # it uses the connection, or the relay, from the test's own thread
def test_wake_ends_the_wait_for_new_messages(
    database: OutboxDatabase, service: OutboxService, make_relay: MakeRelay
) -> None:
    relay = make_relay(poll_ms=3_600_000)
    looked = threading.Event()

    def run() -> None:
        relay.run_once()
        looked.set()
        relay.run()

    thread = threading.Thread(target=run)
    thread.start()
    assert looked.wait(10)
    database.put("1")
    service.meanwhile = relay.stop
    relay.wake()
    thread.join(20)
    assert not thread.is_alive()
    assert service.all_bodies() == ["1"]


def test_a_database_without_an_outbox_is_named(database: OutboxDatabase, make_relay: MakeRelay) -> None:
    with pytest.raises(NotFound) as caught:
        make_relay(table="other").run()
    assert caught.value.code == "outbox_not_found"


@pytest.mark.parametrize(
    "settings", [{"messages_max": 0}, {"lease_s": 1.0}, {"first_wait_ms": 10, "wait_ms_max": 5}, {"table": "a b"}]
)
def test_settings_out_of_bounds_are_refused(make_relay: MakeRelay, settings: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        make_relay(**settings)


def test_a_connection_with_autocommit_is_refused(database: OutboxDatabase, make_relay: MakeRelay) -> None:
    if database.is_sqlite:
        return
    import psycopg

    relay = make_relay(connect=lambda: psycopg.connect(database.url, autocommit=True))
    with pytest.raises(Refused, match="autocommit"):
        relay.run_once()


def test_create_is_idempotent_and_leaves_the_commit_to_the_caller(database: OutboxDatabase) -> None:
    with database.transaction() as connection:
        database.outbox.create(connection)
        connection.cursor().execute("CREATE TABLE mine (n INTEGER)")
        connection.rollback()
    if not database.is_sqlite:
        with pytest.raises(Exception, match="mine"):
            database.rows("SELECT n FROM mine")


def test_put_refuses_what_the_service_would_refuse(database: OutboxDatabase) -> None:
    with database.transaction() as connection:
        for topic, message in (("%RETRY%x", b"x"), ("no space", b"x"), ("orders", b"x" * (4 * 2**20 + 1))):
            with pytest.raises(Refused):
                database.outbox.put(connection, topic, message)
        assert database.outbox.put_many(connection, "orders", []) == []
    assert database.waiting() == []
