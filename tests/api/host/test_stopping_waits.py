"""Requests that wait at another process, when the process that forwarded them stops (SPEC POP-15, META-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api.exclusive import Member, exclusive_group
from tests.api.host.test_static_pops_two_hosts import QUEUE
from tests.api.host.test_static_pops_two_hosts import Two as Both
from tests.api.queue_calls import Consumer
from tests.api.running import Api, Reply, config_for, running, until
from tests.api.static_pops import Static

A, B = "broker-a", "broker-b"
#: Longer than the drain, which cuts off what still waits then, and answers it with 500.
WAIT_MS = 20_000
DRAIN_MS = 4_000


@dataclass
class Two:
    """`b` serves broker-b and the meta role; `a` serves broker-a, and is stopped."""

    a: Api
    b: Api
    life_of_a: ExitStack

    def stopped_while(self, ask: Callable[[], Reply], waits: Callable[[], object]) -> Reply:
        """The answer to a request through `a`, which is stopped when the request waits."""
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            until(waits)
            self.life_of_a.close()
            return answer.result(60)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with running(config_for(tmp_path / "warehouse", brokers=(B,))) as b, ExitStack() as life_of_a:
        a = life_of_a.enter_context(running(config_for(tmp_path / "warehouse", brokers=(A,), drain_ms=DRAIN_MS)))
        until(lambda: all(one.service.meta.now.brokers.available == (A, B) for one in (a, b)))
        until(lambda: b.service.hosting.hosts(B) and a.service.hosting.hosts(A))
        yield Two(a, b, life_of_a)


@pytest.fixture
def exclusive(two: Two) -> Member:
    """A client of an exclusive group that asks `a` for what `b` serves."""
    two.a.put_topic("orders", routes=["orders@broker-b"])
    exclusive_group(two.a, "billing")
    client = Member(two.a, "billing", "orders", "c0")
    client.beat()
    return client


def test_pop_15_a_pop_that_waits_at_another_process_ends_when_this_one_stops(two: Two) -> None:
    two.a.put_topic("orders", routes=["orders@broker-b"])
    pop = "/v1/groups/g/topics/orders/pop"
    assert two.a.call("POST", pop, {}).status == 200

    def is_waiting() -> object:
        meta = two.b.service.meta.now
        return two.b.service.lanes.group_topic(meta.topics.topic("orders"), meta.groups.group("g")).waiters

    answer = two.stopped_while(lambda: two.a.call("POST", pop, {"wait_ms": WAIT_MS}), is_waiting)
    assert (answer.status, answer.json["messages"]) == (200, [])


def test_static_20_a_pop_that_goes_to_many_processes_ends_when_this_one_stops(two: Two) -> None:
    """It asks the other process no more; that asked without a pause, as a pop here did not wait any longer."""
    static = Static(two.a, "orders").put(1, (B,))
    static.send(0, "0")
    static.remap(A)
    Both(two.a, two.b).settle("orders")
    assert two.a.call("PUT", "/v1/groups/g", {"order": True}).status == 201
    assert len(Consumer(two.b, "g", "orders").pop(order=True).messages) == 1

    def is_waiting() -> object:
        meta = two.a.service.meta.now
        return two.a.service.lanes.group_topic(meta.topics.topic("orders"), meta.groups.group("g")).waiters

    peers, before = two.a.service.peers, 0

    def is_on_its_way() -> object:
        nonlocal before
        before = peers.asked
        return is_waiting()

    asked: dict[str, Any] = {"wait_ms": WAIT_MS, "partition": QUEUE}
    answer = two.stopped_while(lambda: two.a.call("POST", "/v1/groups/g/topics/orders/pop", asked), is_on_its_way)
    assert (answer.status, answer.json["messages"]) == (200, [])
    assert peers.asked - before <= 4


def test_meta_01_a_fetch_that_waits_at_another_process_ends_when_this_one_stops(two: Two, exclusive: Member) -> None:
    exclusive.take("orders@broker-b")
    partition = two.b.hosted("orders", "orders@broker-b")
    answer = two.stopped_while(
        lambda: exclusive.fetch("orders@broker-b", f"&wait_ms={WAIT_MS}"), lambda: partition.has_waiters
    )
    assert (answer.status, answer.json["code"]) == (503, "stopping")


def test_meta_01_a_lock_that_is_waited_for_at_another_process_is_unanswered_when_this_one_stops(
    two: Two, exclusive: Member
) -> None:
    exclusive.take("orders@broker-b")
    other = Member(two.a, "billing", "orders", "c1")
    other.beat()
    answer = two.stopped_while(
        lambda: other.send_take("orders@broker-b", wait_ms=WAIT_MS), lambda: two.b.service.locks._waiters
    )
    assert (answer.status, answer.json["unanswered"]) == (200, ["orders@broker-b"])


def test_meta_01_a_heartbeat_that_waits_at_another_process_ends_when_this_one_stops(
    two: Two, exclusive: Member
) -> None:
    epoch = exclusive.beat()["allocation_epoch"]
    answer = two.stopped_while(
        lambda: exclusive.send_beat(f"?wait_ms={WAIT_MS}&allocation_epoch={epoch}"),
        lambda: two.b.service.online._waiters,
    )
    assert (answer.status, answer.json["code"]) == (503, "stopping")
