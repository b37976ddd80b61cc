"""A reset of offsets while the revive job is at work: what was in flight before it is void (SPEC POP-18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltamq.api.ports import Ports
from deltamq.tables.paths import Space
from tests.api.queue_calls import Consumer, Queue, queue_in
from tests.faulty_store import faulty_disk
from tests.queue_engines import ENGINES


@pytest.fixture(params=ENGINES)
def queue(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with queue_in(tmp_path / "warehouse") as found:
        found.engine = request.param
        found.topic()
        yield found


def reset(group: Consumer, to: object, **more: object) -> Any:
    path = f"{group.path}/topics/orders/offsets/reset"
    reply = group.api.call("POST", path, {"to": to, **more})
    assert reply.status == 200, reply
    return reply.json


def revive_around(queue: Queue, act: Callable[[], object]) -> None:
    """A run of the job in which something happens between its decision and its append."""
    store, left = faulty_disk(queue.folder), [act]

    def late(key: str) -> None:
        if left and key.startswith((Space.RETRY.value, Space.DLQ.value)):
            left.pop()()

    store.before["put"] = store.before["put_if_absent"] = late
    queue.revive(store=store)
    assert not left


def revive_until_done(queue: Queue) -> None:
    """Let the job try again what it could not append."""
    for _ in range(3):
        queue.advance(2_000)
        queue.revive()


def _with_an_overdue_message(queue: Queue, name: str = "billing", **settings: Any) -> Consumer:
    """A group that has popped a message, and whose time for it is over."""
    group = queue.group(name, **settings)
    queue.send("a")
    group.pop()
    queue.advance(120_000)
    return group


@pytest.mark.promise("GROUP-5")
@pytest.mark.parametrize("partition_is_there", [False, True])
def test_pop_18_what_a_reset_drops_is_not_brought_back_by_a_revive_that_was_under_way(
    queue: Queue, partition_is_there: bool
) -> None:
    group = queue.group("billing")
    if partition_is_there:
        queue.send("early")
        assert group.nack(group.pop().handles, delay_ms=0) == {}
        queue.advance(1_000)
        queue.revive()
    queue.send("a")
    group.pop(wait_ms=0)
    queue.advance(120_000)
    revive_around(queue, lambda: reset(group, "last", retries="drop"))
    revive_until_done(queue)
    assert group.pop(wait_ms=200).bodies == [], "all of it was dropped before the answer"
    assert group.in_flight() == 0


@pytest.mark.promise("GROUP-5")
def test_pop_18_what_a_reset_goes_back_to_comes_once_though_a_revive_was_under_way(queue: Queue) -> None:
    group = _with_an_overdue_message(queue)
    revive_around(queue, lambda: reset(group, "first"))
    revive_until_done(queue)
    assert [one["body"] for one in group.pop_all(wait_ms=200)] == ["a"]


def test_pop_18_what_was_in_flight_before_a_reset_is_no_dead_letter_of_a_revive_under_way(queue: Queue) -> None:
    group = _with_an_overdue_message(queue, max_attempts=1)
    revive_around(queue, lambda: reset(group, "first"))
    revive_until_done(queue)
    assert queue.api.call("GET", f"{group.path}/dead-letters").json["total"] == 0
    assert group.pop().attempts == [1]


def test_pop_18_a_reset_of_one_partition_only_delays_what_is_brought_back_from_another(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        one, other = queue.topic(2)
        group = queue.group("billing")
        queue.send("void", partition=one)
        queue.send("kept", partition=other)
        assert len(group.pop_all(wait_ms=0)) == 2
        queue.advance(120_000)
        revive_around(queue, lambda: reset(group, {one: 1}))
        revive_until_done(queue)
        assert [m["body"] for m in group.pop_all(wait_ms=200)] == ["kept"]


@pytest.mark.parametrize("engine", ENGINES)
def test_pop_18_what_a_revive_appends_while_a_reset_looks_is_dropped_too(tmp_path: Path, engine: str) -> None:
    store, seldom = faulty_disk(tmp_path), {"lease_ms": 600_000, "lease_renew_ms": 300_000}
    with queue_in(tmp_path, Ports(store=store), seldom) as queue:
        queue.engine = engine
        queue.topic()
        group = _with_an_overdue_message(queue)
        # It has looked at what there is to drop, and is about to say so in the metadata log.
        store.once("before", "put_if_absent", lambda _: queue.revive(), key="sys/meta")
        answer = reset(group, "last", retries="drop")
        assert [row["body"] for row in queue.retries("billing")] == [b"a"], "the job was faster"
        assert answer["offsets"]["%RETRY%billing_orders@broker-a"] == 1
        assert group.pop(wait_ms=200).bodies == []


def test_pop_18_what_was_brought_back_before_a_reset_is_kept_by_default(queue: Queue) -> None:
    group = _with_an_overdue_message(queue)
    queue.revive()
    reset(group, "last")
    assert group.pop_again(1).bodies == ["a"]


@pytest.mark.parametrize("name", ["my app: größe #1?&=+%'\"\\~", "ж" * 255])
def test_model_05_what_a_group_of_any_name_cannot_handle_comes_again_and_is_given_up(queue: Queue, name: str) -> None:
    group = _with_an_overdue_message(queue, name, max_attempts=2, retry_policy={"fixed_ms": 1})
    revive_until_done(queue)
    assert group.pop_again(1).attempts == [2]
    queue.advance(120_000)
    revive_until_done(queue)
    (letter,) = group.api.call("GET", f"{group.path}/dead-letters").json["messages"]
    assert letter["body"] == "a" and letter["attempts"] == 2
    assert name in group.api.call("GET", "/v1/groups").json["groups"]
