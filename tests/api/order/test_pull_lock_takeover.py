"""Pull locks when their broker goes to another process: claims, and which clients wait (SPEC ORDER-4, META-1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from deltamq.mq.limits import PULL_LOCK_SETTLE_MS
from tests.api.exclusive import Member, exclusive_group
from tests.api.running import Api, config_for, running, until
from tests.set_clock import SetClock

PARTITION = "orders@broker-a"
#: While the time of locks passes, no lease ends and no authorization.
PATIENT = {"lease_ms": 600_000, "authorization_ms": 600_000}


@dataclass
class Two:
    """Two processes of one warehouse; the first, which has broker-a and the meta role, can be ended."""

    one: Api
    other: Api
    first_life: ExitStack
    #: By which the other one tells leases and locks.
    lease_clock: SetClock

    def take_over(self) -> None:
        """End the first process, and return when the other serves what it had."""
        self.first_life.close()
        until(lambda: self.other.service.hosting.hosts("broker-a"))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with ExitStack() as first_life, ExitStack() as second_life:
        lease_clock = SetClock()
        one = first_life.enter_context(running(config_for(tmp_path, brokers=("broker-a",), **PATIENT)))
        config = config_for(tmp_path, brokers=("broker-b",), **PATIENT)
        other = second_life.enter_context(running(config, Ports(lease_clock=lease_clock)))
        one.put_topic("orders", partitions=1)
        exclusive_group(one, "billing")
        for number in range(4):
            assert one.send("orders", str(number)).status == 200
        yield Two(one, other, first_life, lease_clock)


def member(two: Two, name: str) -> Member:
    """A client that speaks to the process that stays."""
    return Member(two.other, "billing", "orders", name)


@pytest.mark.promise("LOCK-7")
def test_order_04_who_holds_a_lock_claims_it_after_a_takeover_and_goes_on(two: Two) -> None:
    holder, stranger = member(two, "c0"), member(two, "c1")
    holder.beat()
    before = holder.take(PARTITION)["locks"][PARTITION]
    assert holder.commit(PARTITION, 2, locks={PARTITION: before}).status == 200
    two.take_over()
    assert holder.fetch(PARTITION).json["code"] == "not_lock_holder", "the crash forgot it"
    until(lambda: stranger.send_beat().status == 200)
    assert stranger.take(PARTITION)["refused"] == stranger.take(held=[PARTITION])["refused"] == [PARTITION]
    claimed = holder.take(held=[PARTITION])
    assert claimed["offsets"] == {PARTITION: 2}, "what was committed before is known"
    assert claimed["locks"][PARTITION] >> 32 > before >> 32, "it tells that the broker was taken over"
    assert [m["body"] for m in holder.fetch(PARTITION, "&offset=2").json["messages"]] == ["2", "3"]
    assert holder.commit(PARTITION, 3).status == 200


@pytest.mark.promise("LOCK-7")
def test_order_05_a_contested_partition_waits_for_who_may_hold_it(two: Two) -> None:
    old, new = member(two, "c0"), member(two, "c1")
    old.beat()
    old.take(PARTITION)
    new.beat()
    old.leave()
    assert new.allocated() == [PARTITION]
    two.take_over()
    until(lambda: new.send_beat().status == 200)
    assert new.take(PARTITION)["refused"] == [PARTITION], "the other may be at work"
    claimed = old.take(held=[PARTITION])["locks"]
    assert old.commit(PARTITION, 3, locks=claimed).status == 200
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(new.take, PARTITION, wait_ms=10_000)
        until(lambda: two.other.service.locks.waiting)
        assert old.release(PARTITION, locks=claimed) == [PARTITION]
        assert waiting.result(20)["offsets"] == {PARTITION: 3}


def test_order_05_a_contested_partition_is_free_when_nobody_claimed_it(two: Two) -> None:
    old, new = member(two, "c0"), member(two, "c1")
    old.beat()
    old.take(PARTITION)
    new.beat()
    old.leave()
    two.take_over()
    until(lambda: new.send_beat().status == 200)
    two.lease_clock.advance_ms(PULL_LOCK_SETTLE_MS - 1)
    assert new.take(PARTITION)["refused"] == [PARTITION]
    two.lease_clock.advance_ms(1)
    assert new.take(PARTITION)["partitions"] == [PARTITION]
    assert old.take(held=[PARTITION])["refused"] == [PARTITION], "it came too late"


def test_order_05_nobody_waits_for_a_partition_that_nobody_else_had(two: Two) -> None:
    owner = member(two, "c0")
    owner.beat()
    two.take_over()
    until(lambda: owner.send_beat().status == 200)
    assert owner.take(PARTITION)["offsets"] == {PARTITION: 0}


def test_meta_01_a_call_to_a_broker_that_nobody_serves_is_neither_granted_nor_refused(two: Two) -> None:
    """While a broker is being taken over, its clients learn nothing: they ask again."""
    client = member(two, "c0")
    client.beat()
    number = client.take(PARTITION)["locks"][PARTITION]
    service, ready = two.other.service, asyncio.Event()

    async def slow(roles: Mapping[str, int]) -> None:
        if "broker-a" in roles:
            await ready.wait()

    service.hosting.hooks.taken.append(slow)
    two.first_life.close()
    until(lambda: service.hosting.held_since("broker-a") is not None)
    answer = client.take(PARTITION, held=[PARTITION])
    assert answer["unanswered"] == [PARTITION] and answer["refused"] == answer["partitions"] == []
    path = "/v1/groups/billing/topics/orders/locks"
    released = two.other.call("DELETE", path, {"client_id": "c0", "partitions": [PARTITION]})
    assert (released.status, released.json["code"]) == (503, "broker_unavailable")
    assert client.fetch(PARTITION).status == 503
    service.loop.call_soon_threadsafe(ready.set)
    until(lambda: service.hosting.hosts("broker-a"))
    until(lambda: client.send_beat().status == 200)
    claimed = client.take(held=[PARTITION])["locks"]
    assert claimed[PARTITION] >> 32 > number >> 32, "nobody has taken it away"


def test_meta_01_a_forwarded_request_is_not_forwarded_again(two: Two) -> None:
    body = {"client_id": "c0", "partitions": [PARTITION]}
    path = "/v1/groups/billing/topics/orders/locks"
    for method in ("POST", "DELETE"):
        reply = two.other.call(method, path, body, mq_forwarded="somebody")
        assert (reply.status, reply.json["code"]) == (503, "not_owner")
    beat = two.other.call("POST", "/v1/groups/billing/clients/c0/heartbeat", {"topics": {}}, mq_forwarded="somebody")
    assert (beat.status, beat.json["code"]) == (503, "not_owner") and "retry-after" in beat.headers
